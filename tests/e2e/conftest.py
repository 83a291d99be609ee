"""What tests share: of profiling quick options, a lock, a busy machine; of reports a run."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from hwnas.profiling.bench import Bench
from hwnas.profiling.jobs import Job, Options
from hwnas.profiling.locks import FOLDER_VARIABLE
from hwnas.profiling.machine import Preflight, Readings
from hwnas.profiling.measure import Plan
from hwnas.profiling.records import Conditions, Latency, Record
from hwnas.testing.finished_runs import made_up_run
from hwnas.testing.profiles import NANO, QUICK

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def options(tmp_path: Path) -> Options:
    """Return options that measure quickly whatever the machine does."""
    quick = Plan(min_runs=9, max_runs=18, max_s=0.5, patience_s=0.5)
    return Options(force=True, memory=False, plan=quick, lock_folder=tmp_path / "locks")


@pytest.fixture
def own_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the lock of the device apart from that of tests that run at the same time."""
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))


@pytest.fixture
def modelled_latencies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what this process profiles take a time that follows from the model, not from the day.

    For tests of what is done with measurements; on a busy machine these may forbid any budget.
    """

    def measured(bench: Bench, job: Job, model: Mapping[str, Any], worker: object) -> Record:
        size = Path(model["path"]).stat().st_size if "path" in model else 10**6
        latency = Latency(
            samples_ms=[size / 1e6], median_ms=size / 1e6, p90_ms=size / 1e6, p99_ms=size / 1e6,
            n=1, kept_share=1.0, preempted=0, half_width=0.001, clock="wall", privilege="none",
            reference_ms=1.0, reference_drift=0.0,
        )  # fmt: skip
        return Record(**bench._what(job), latency=latency, conditions=Conditions(), grade="A")

    monkeypatch.setattr(Bench, "_worker", lambda bench, job: None)
    monkeypatch.setattr(Bench, "_measured", measured)


@pytest.fixture
def busy_machine(monkeypatch: pytest.MonkeyPatch) -> Preflight:
    """Let the pre-flight find the cores 93 % busy."""
    busy = Preflight(
        refusals=("the cores are 93% busy with other work (limit 10%)",),
        cautions=(),
        readings=Readings(cores=2),
        privilege="none",
    )
    monkeypatch.setattr("hwnas.profiling.driver.preflight", lambda *_, **__: busy)
    return busy


@pytest.fixture
def run(hwnas: Run, tmp_path: Path) -> Run:
    """Return a function that runs a verb in the test's folder and checks its exit code."""

    def checked(*arguments: str, code: int = 0) -> CompletedProcess[str]:
        child = hwnas(*arguments, cwd=tmp_path)
        assert child.returncode == code, child.stderr
        return child

    return checked


@pytest.fixture
def run_json(run: Run) -> Callable[..., Any]:
    """Return a function that runs a verb and returns what it prints with --json."""
    return lambda *arguments: json.loads(run(*arguments, "--json").stdout)


@pytest.fixture
def measured(run: Run, tmp_path: Path) -> Path:
    """Return a profile of three `nano` subnets on this machine."""
    run(*NANO, "-n", "3", "-o", "p.jsonl", *QUICK)
    return tmp_path / "p.jsonl"


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that has everything; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("runs") / "nano-toys"
    made_up_run(folder)
    return folder


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run."""
    folder = tmp_path / "nano-toys"
    shutil.copytree(finished, folder)
    return folder
