"""The speed of several files, measured in turns in one session on this device.

Each round measures every file under the guarded protocol; what is compared is the median over
rounds of the ratios within a round, which a machine that changes its pace between rounds does not
move.
"""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hwnas.errors import HwnasError
from hwnas.profiling.bench import Bench
from hwnas.profiling.driver import preflight
from hwnas.profiling.jobs import Job, Options
from hwnas.profiling.locks import device_lock
from hwnas.profiling.machine import device
from hwnas.profiling.measure import Plan
from hwnas.profiling.paces import Pace, baselines, pace_of
from hwnas.profiling.records import GRADES, Pages, Record, Settings
from hwnas.profiling.reference import reference_model
from hwnas.profiling.remote import FreshWorkers, RemoteWorker

BACKEND = "onnxruntime"


@dataclass(frozen=True, kw_only=True, slots=True)
class Race:
    """How files are measured: `rounds` times each, at most `seconds` a time.

    A single file has none to be compared with, and is measured once, for as long.
    """

    threads: int = 1
    batch: int = 1
    pages: Pages = "default"
    rounds: int = 3
    seconds: float = 1.0


def race(
    files: Mapping[str, Path],
    *,
    how: Race,
    paces: Sequence[Pace] = (),
    lock_folder: Path | None = None,
) -> dict[str, dict[str, Any]]:
    """Return for each file what is kept of its latency; `ratio` is to the first file's.

    `paces`: what is known of this device, so that latencies can be compared with earlier ones.
    Raises UnreliableError beside another profiler, HwnasError naming a file that does not run.
    """
    here = device()
    rounds: list[dict[str, Record]] = []
    turns = how.rounds if len(files) > 1 else 1
    seconds = how.seconds * how.rounds / turns
    with (
        device_lock(folder=lock_folder),
        RemoteWorker(pages=how.pages) as worker,
        closing(FreshWorkers(uses=1)) as fresh,
        tempfile.TemporaryDirectory(prefix="hwnas-") as folder,
    ):
        at_length = replace(how, seconds=seconds)
        bench = _bench(files, at_length, paces, Path(folder), worker=worker, fresh=fresh)
        for _ in range(turns):
            rounds.append({name: _record(bench, name, how) for name in files})
    first = next(iter(files))
    common = {
        "device": here.name,
        "fingerprint": here.fingerprint,
        "threads": how.threads,
        "batch": how.batch,
        "pages": how.pages,
    }
    return {
        name: _summary([turn[name] for turn in rounds], [turn[first] for turn in rounds]) | common
        for name in files
    }


def _bench(
    files: Mapping[str, Path],
    how: Race,
    paces: Sequence[Pace],
    folder: Path,
    *,
    worker: RemoteWorker,
    fresh: FreshWorkers,
) -> Bench:
    plan = Plan(min_runs=30, max_runs=200, max_s=how.seconds)
    options = Options(force=True, memory=False, plan=plan)
    (folder / "reference.onnx").write_bytes(reference_model())
    from hwnas.profiling.backends import backend

    state = preflight([_job(next(iter(files)), how)], options=options)
    versions = {BACKEND: backend(BACKEND).version()}
    known = baselines(paces, state.privilege, versions)
    return Bench(
        provide={"onnx": lambda arch, _settings: files[arch["file"]]},
        options=options,
        preflight=state,
        versions=versions,
        folder=folder,
        workers={how.pages: worker},
        turns=fresh,
        baselines=known,
        expected=dict(known),
    )


def _job(name: str, how: Race) -> Job:
    settings = Settings(threads=how.threads, batch=how.batch, pages=how.pages)
    return Job(arch={"space": "file", "genes": {}, "file": name}, backend=BACKEND,
               settings=settings)  # fmt: skip


def _record(bench: Bench, name: str, how: Race) -> Record:
    record = bench.record(_job(name, how))
    if record.failure is not None:
        raise HwnasError(f"{name} cannot be run: {record.failure.reason}")
    return record


def _summary(records: Sequence[Record], first: Sequence[Record]) -> dict[str, Any]:
    times = [_median_ms(record) for record in records]
    worst = max(records, key=lambda record: GRADES.index(record.grade or "D"))
    latencies = [record.latency for record in records if record.latency is not None]
    pace = pace_of(records[0])  # of all: they are of one session
    assert pace is not None
    return {
        "median_ms": median(times),
        "p99_ms": median(latency.p99_ms for latency in latencies),
        "ratio": median(time / _median_ms(other) for time, other in zip(times, first, strict=True)),
        "grade": worst.grade,
        "reasons": list(worst.reasons),
        "clock": latencies[0].clock,
        "backend": BACKEND,
        "backend_version": pace.version,
        "privilege": pace.privilege,
        "reference_ms": pace.reference_ms,
    }


def _median_ms(record: Record) -> float:
    assert record.latency is not None
    return record.latency.median_ms
