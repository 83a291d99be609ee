"""`hwnas search --verify`: the best are built, measured and ranked again by what was measured."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.cli.main import main
from hwnas.errors import UnreliableError
from hwnas.io import read_journal
from hwnas.pipeline import verifying
from hwnas.pipeline.accuracies import Accuracy, read_accuracies
from hwnas.pipeline.fronts import latest_front, read_verified
from hwnas.pipeline.rundir import Run, open_run
from hwnas.profiling.jobs import Progress
from hwnas.profiling.machine import device
from hwnas.profiling.profiles import ProfileWriter, read_profile
from hwnas.profiling.records import Failure, Header, Settings
from hwnas.profiling.sampling import space_of
from hwnas.search.api import ENGINES
from hwnas.search.evolution import Nsga2
from hwnas.testing.profiles import made_up_profile
from hwnas.testing.searchable_runs import HERE, searchable_run

pytestmark = pytest.mark.slow


class Bench:
    """Stands in for the profiler: answers with latencies of its own, in the order asked."""

    def __init__(
        self, latencies: Sequence[float | None], *, grade="A", stop_after: int = 10**9
    ) -> None:
        self.left, self.grade, self.stop_after = list(latencies), grade, stop_after
        self.measured: list[str] = []

    def __call__(self, jobs, *, provide, provide_module, output, options, progress) -> None:
        path = Path(output)
        known = set(read_profile(path).records) if path.exists() else set()
        header = Header(device=device(name=options.device_name), runtimes={}, created_at=0.0)
        with ProfileWriter(path, header) as writer:
            for done, job in enumerate([job for job in jobs if job.key not in known], start=1):
                if len(self.measured) == self.stop_after:
                    raise KeyboardInterrupt
                assert provide(job.arch, job.settings).startswith(b"\x08")  # an ONNX file
                record = self._record(job)
                writer.add(record)
                self.measured.append(record.arch["genes"])
                progress(
                    Progress(done=done, total=len(jobs), record=record, elapsed_s=0.0, eta_s=0.0)
                )

    def _record(self, job):
        space = space_of(job.arch)
        arch = space.arch_from_json({k: v for k, v in job.arch.items() if k != "options"})
        latency = self.left.pop(0)
        made = made_up_profile("x", [(arch, latency or 1.0)], settings=job.settings)
        (record,) = made.records.values()
        if latency is None:
            failure = Failure(kind="timeout", reason="no answer")
            return replace(record, arch=dict(job.arch), latency=None, grade=None, failure=failure)
        return replace(record, arch=dict(job.arch), grade=self.grade)


class SoonBusy(Bench):
    """A bench on which so many batches can be measured."""

    def __init__(self, latencies: Sequence[float], *, batches: int) -> None:
        super().__init__(latencies)
        self.batches = batches

    def __call__(self, jobs, **options) -> None:
        if not self.batches:
            raise UnreliableError("the cores are 93% busy")
        self.batches -= 1
        super().__call__(jobs, **options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("verify") / "run"
    return searchable_run(folder, {HERE: (Settings(),), "pi5": (Settings(),)}).folder


@pytest.fixture(autouse=True)
def small_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Search a tenth as long as usual."""
    monkeypatch.setitem(ENGINES, "nsga2", lambda: Nsga2(population=96, generations=20))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Run:
    shutil.copytree(made, tmp_path / "run")
    return open_run(tmp_path / "run")


@pytest.fixture
def worth(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of accuracies that subnets are found to have, in the order asked."""
    values: list[float] = []
    known: dict[object, Accuracy] = {}

    def measure_archs(run, archs, *, work):
        for arch in archs:
            if arch not in known:
                known[arch] = Accuracy(arch=arch, accuracy=values.pop(0), images=9, seconds=0.0)
        return {arch: known[arch] for arch in archs}

    monkeypatch.setattr("hwnas.pipeline.verifying.measure_archs", measure_archs)
    return values


def searched(monkeypatch, bench: Bench, run: Run, *arguments: object) -> int:
    monkeypatch.setattr("hwnas.pipeline.verifying.profile", bench)
    return main(["search", "--run", str(run.folder), *map(str, arguments)])


def test_the_best_as_measured_is_recommended(run: Run, worth, monkeypatch, capsys) -> None:
    worth += [0.77, 0.90, 0.85]
    bench = Bench([0.95, 1.02, 0.99])
    assert searched(monkeypatch, bench, run, "--latency", "1ms", "--verify", 3) == 0
    front = latest_front(run)
    (answer,) = front.answers
    assert answer.recommended == answer.listed[2]  # the second is too slow as measured
    assert "of the 2 that keep the budget, of 3 verified" in answer.reason
    out = capsys.readouterr().out
    assert "predicted / measured / budget" in out
    for index, line in zip(answer.listed, ("950us", "1.02ms", "990us"), strict=False):
        digest = front.choices[index].digest[:12]
        (row,) = [row for row in out.splitlines() if row.startswith(digest)]
        assert f"/ {line} / 1ms" in row
    assert [entry.met for entry in read_verified(run)] == [True, False, True]
    assert "the predictor is wrong here" not in out


@pytest.mark.parametrize("latencies", [(None, 0.95), (None, None, None)], ids=["first", "all"])
def test_what_failed_is_told_beside_what_was_measured(
    latencies, run: Run, worth, monkeypatch, capsys
) -> None:
    worth += [0.99] * len(latencies)
    count = 2 if latencies[1] else 1
    searched(monkeypatch, Bench(latencies), run, "--latency", "1ms", "--verify", count)
    lines = capsys.readouterr().out.splitlines()
    table = lines[lines.index("predicted / measured / budget") + 1 :]
    assert table[0].split() == ["subnet", "accuracy", "latency", "grade", "kept"]
    for latency, row in zip(latencies, table[1:], strict=False):
        assert f"/ {'failed' if latency is None else '950us'} / 1ms" in row


def test_a_refuted_predictor_is_told_of(run: Run, worth, monkeypatch, capsys) -> None:
    worth += [0.31] * 20  # so that better ones are on record, which are tried, too
    bench = Bench([0.95] * 20)
    assert searched(monkeypatch, bench, run, "--latency", "1ms", "--verify", 3) == 0
    out = capsys.readouterr().out
    assert "accuracies are in their intervals: the predictor is wrong here" in out
    assert f"hwnas fit --run {run.folder}" in out


def test_promises_and_deliveries_are_kept(run: Run, worth, monkeypatch, capsys) -> None:
    worth += [0.8, 0.81]
    arguments = ("--latency", "1ms", "--verify", 2, "--json", "--quiet", "--size", "5MB")
    assert searched(monkeypatch, Bench([0.95, 0.96]), run, *arguments) == 0
    document = json.loads(capsys.readouterr().out)
    (answer,) = document["answers"]
    first, second = read_verified(run)
    assert [entry["digest"] for entry in answer["verified"]] == [first.digest, second.digest]
    assert (first.budget, first.device, first.grade) == ("latency 1ms, size 5MB", HERE, "A")
    assert first.measured["latency"] == 0.95
    assert first.measured["accuracy"] == 0.8
    promised = answer["listed"][0]
    assert first.digest == promised["digest"]
    assert first.predicted["latency"].mean == promised["predicted"]["latency"]["mean"]
    assert first.measured["size"] == pytest.approx(promised["costs"]["size"], rel=0.02)
    lines = read_journal(run.folder / "search" / "verified.jsonl")
    assert lines[0]["schema"] == "hwnas/verified"


def test_the_next_ones_are_tried_where_the_first_are_too_slow(run: Run, worth, monkeypatch) -> None:
    worth += [0.8] * 4
    bench = Bench([1.2, 1.2, 1.1, 0.9])
    assert searched(monkeypatch, bench, run, "--latency", "1ms", "--verify", 2) == 0
    (answer,) = latest_front(run).answers
    assert answer.recommended == answer.listed[3]


def test_a_subnet_on_record_as_better_is_recommended(run: Run, worth, monkeypatch, capsys) -> None:
    worth += [0.5, 0.6]  # what the search found turns out worse than what was known
    known = {entry.arch: entry for entry in read_accuracies(run)}
    told = verifying.measure_archs

    def measure_archs(run, archs, *, work):
        fresh = told(run, [arch for arch in archs if arch not in known], work=work)
        return {arch: known.get(arch) or fresh[arch] for arch in archs}

    monkeypatch.setattr("hwnas.pipeline.verifying.measure_archs", measure_archs)
    bench = Bench([0.95, 0.96, *[1.1, 0.9] * 20])  # the best on record is too slow as measured
    assert searched(monkeypatch, bench, run, "--latency", "1ms", "--verify", 2) == 0
    front = latest_front(run)
    (answer,) = front.answers
    assert answer.recommended is not None
    recommended = front.choices[answer.recommended].digest
    verified = {entry.digest: entry for entry in read_verified(run)}
    assert verified[recommended].met
    tried = [entry.digest for entry in read_verified(run)][2:]
    accuracies = {entry.arch.digest: entry.accuracy for entry in known.values()}
    assert [accuracies[digest] for digest in tried] == sorted(
        (accuracies[digest] for digest in tried), reverse=True
    )
    assert recommended == tried[1]
    assert verified[recommended].measured["accuracy"] == accuracies[recommended]
    assert f"; {len(tried)} of these for accuracies measured earlier" in answer.reason
    assert f"recommended (*): {recommended[:12]}" in capsys.readouterr().out


def test_nothing_within_the_budget_is_said(run: Run, worth, monkeypatch, capsys) -> None:
    worth += [0.8] * 3
    arguments = ("--latency", "1ms", "--verify", 1)
    assert searched(monkeypatch, Bench([1.2] * 3), run, *arguments) == 3
    captured = capsys.readouterr()
    assert "recommended: none; none of the 3 best was within the budget" in captured.out
    assert "error: latency 1ms: none of the 3 best" in captured.err
    assert latest_front(run).answers[0].recommended is None


def test_an_impossible_budget_is_not_verified_and_the_others_are(
    run: Run, worth, monkeypatch, capsys
) -> None:
    worth += [0.8]
    arguments = ("--latency", "0.1ms,1ms", "--verify", 1)
    assert searched(monkeypatch, Bench([0.9]), run, *arguments) == 3
    assert "error: latency 100us: no architecture" in capsys.readouterr().err
    first, second = latest_front(run).answers
    assert first.recommended is None
    assert second.reason.startswith("the most accurate as measured")


def test_measurements_that_say_nothing_end_as_unreliable(run, worth, monkeypatch, capsys) -> None:
    worth += [0.8] * 3
    arguments = ("--latency", "1ms", "--verify", 1)
    assert searched(monkeypatch, Bench([1.2] * 3, grade="D"), run, *arguments) == 5
    assert "too busy to tell" in capsys.readouterr().err


def test_an_interrupted_verification_goes_on(run: Run, worth, monkeypatch) -> None:
    worth += [0.8] * 3
    arguments = ("--latency", "1ms", "--verify", 3, "--quiet")
    first = Bench([0.9, 0.91], stop_after=2)
    assert searched(monkeypatch, first, run, *arguments) == 130
    second = Bench([0.92])
    assert searched(monkeypatch, second, run, *arguments) == 0
    assert len(second.measured) == 1
    assert [entry.measured["latency"] for entry in read_verified(run)] == [0.9, 0.91, 0.92]
    assert searched(monkeypatch, Bench([]), run, *arguments) == 0
    assert len(read_verified(run)) == 3


def test_what_was_measured_before_the_machine_was_busy_counts(
    run: Run, worth, monkeypatch, capsys
) -> None:
    worth += [0.99] * 4
    arguments = ("--latency", "1ms,1.2ms", "--verify", 2)
    assert searched(monkeypatch, SoonBusy([1.2, 0.9], batches=1), run, *arguments) == 5
    captured = capsys.readouterr()
    assert "not everything was verified: the cores are 93% busy" in captured.err
    assert captured.out.count("predicted / measured / budget") == 1
    first, second = latest_front(run).answers
    assert first.recommended == first.listed[1]
    assert second.recommended == second.listed[0]
    assert "highest predicted accuracy" in second.reason


def test_what_was_refuted_is_not_recommended_where_no_other_could_be_measured(
    run: Run, worth, monkeypatch, capsys
) -> None:
    worth += [0.8] * 5
    monkeypatch.setattr("hwnas.cli.search.VERIFIED", 1)
    bench = SoonBusy([1.2], batches=1)
    assert searched(monkeypatch, bench, run, "--latency", "1ms") == 5
    assert "error: the cores are 93% busy" in capsys.readouterr().err
    (answer,) = latest_front(run).answers
    assert answer.recommended is None
    assert answer.reason.endswith("when measured; no other was: the cores are 93% busy")


def test_several_devices_are_verified_on_this_one(run: Run, worth, monkeypatch) -> None:
    worth += [0.8]
    budgets = ("--latency", "here=1ms", "--latency", "pi5=8ms")
    assert searched(monkeypatch, Bench([0.9]), run, *budgets, "--verify", 1) == 0
    (entry,) = read_verified(run)
    assert entry.measured["latency:here"] == 0.9
    assert "latency:pi5" not in entry.measured
    assert entry.met


@pytest.mark.usefixtures("busy_machine", "own_lock")
def test_a_busy_machine_is_not_measured(run: Run, capsys) -> None:
    command = ["search", "--run", str(run.folder), "--latency", "1ms", "--json", "--quiet"]
    assert main([*command, "--verify", "1"]) == 5
    captured = capsys.readouterr()
    assert "this machine cannot be measured now: the cores are 93% busy" in captured.err
    assert "--force" in captured.err
    document = json.loads(captured.out)
    assert document["answers"][0]["recommended"]
    assert "93% busy" in document["not_verified"]
    assert main(command) == 0  # nobody insisted
    assert "93% busy" in json.loads(capsys.readouterr().out)["not_verified"]
    assert latest_front(run).answers[0].recommended is not None


@pytest.mark.usefixtures("own_lock")
def test_it_is_really_built_measured_and_evaluated(run: Run, capsys) -> None:
    command = ["search", "--run", str(run.folder), "--latency", "1s", "--verify", "1", "--force"]
    assert main(command) == 0, capsys.readouterr().err
    entry, *_ = read_verified(run)  # others are on record as better than random weights are
    assert entry.met
    assert 0.0 < entry.measured["latency"] < 1000.0
    (accuracy,) = [a for a in read_accuracies(run) if a.arch.digest == entry.digest]
    assert accuracy.accuracy == entry.measured["accuracy"]
    record = next(iter(read_profile(run.folder / "search" / "measured.jsonl").records.values()))
    assert record.latency is not None
    assert record.latency.median_ms == entry.measured["latency"]
