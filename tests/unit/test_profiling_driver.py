import dataclasses
import errno

import pytest

from hwnas.errors import HwnasError
from hwnas.profiling.bench import Bench
from hwnas.profiling.driver import _run_all as run_all
from hwnas.profiling.driver import grid, preflight
from hwnas.profiling.driver import missing_jobs as missing
from hwnas.profiling.jobs import Job, Options
from hwnas.profiling.machine import device
from hwnas.profiling.paces import baselines, paces_here, paces_of
from hwnas.profiling.profiles import Profile, best_records, write_profile
from hwnas.profiling.records import Device, Failure, Header, Latency, Record, Settings
from hwnas.profiling.remote import FreshWorkers, RemoteWorker, WorkerError
from hwnas.profiling.rounds import Rounds

ARCHS = [{"space": "toy", "genes": {"d": d}, "digest": str(d)} for d in range(3)]
VERSIONS = {"onnxruntime": "1", "openvino": "1"}


def test_the_grid_is_every_combination_once():
    jobs = grid(ARCHS, backends=["a", "b"], threads=[1, 2], batches=[1, 4], precisions=["x", "y"])
    assert len(jobs) == len({job.key for job in jobs}) == 3 * 2 * 2 * 2 * 2


def test_all_settings_of_an_architecture_follow_each_other():
    jobs = grid(ARCHS, threads=[1, 2])
    assert [job.arch["digest"] for job in jobs] == ["0", "0", "1", "1", "2", "2"]


def test_the_preflight_counts_the_threads_of_all_workers():
    few = preflight(grid(ARCHS))
    many = preflight(grid(ARCHS, threads=[2], workers=[10_000]))
    assert not any("threads on" in reason for reason in few.reasons)
    assert any("20000 threads on" in reason for reason in many.refusals)


def profile_of(*records):
    device = Device(
        name="n", fingerprint="f", cpu="c", cores=1, memory_mb=1, architecture="a", os="o"
    )
    header = Header(device=device, runtimes={}, created_at=0.0)
    return Profile(header=header, records=best_records(records))


def record(number, **changes):
    latency = Latency(
        samples_ms=[1.0],
        median_ms=1.0,
        p90_ms=1.0,
        p99_ms=1.0,
        n=1,
        kept_share=1.0,
        preempted=0,
        half_width=0.0,
        clock="wall",
        privilege="fifo",
        reference_ms=1.02,
        reference_drift=0.02,
    )
    kept = {key: changes.pop(key) for key in ("grade", "measured_at", "backend") if key in changes}
    return Record(
        arch=ARCHS[number],
        backend=kept.get("backend", "onnxruntime"),
        backend_version="1",
        settings=Settings(),
        measured_at=kept.get("measured_at", 1.0),
        latency=dataclasses.replace(latency, **changes),
        grade=kept.get("grade", "A"),
    )


def test_a_resumed_profile_keeps_its_first_baseline():
    early = record(0, measured_at=1.0, reference_ms=1.02, reference_drift=0.02)
    late = record(1, measured_at=2.0, reference_ms=2.0, reference_drift=1.0)
    found = baselines(paces_of(profile_of(late, early)), "fifo", VERSIONS)
    assert found == {("onnxruntime", 1, "default"): pytest.approx(1.0)}


@pytest.mark.parametrize(
    "changes",
    [{"grade": "C"}, {"privilege": "none"}, {"reference_ms": None}, {"backend": "openvino"}],
)
def test_baselines_are_not_taken_from_other_conditions(changes):
    found = baselines(paces_of(profile_of(record(0, **changes))), "fifo", VERSIONS)
    assert ("onnxruntime", 1, "default") not in found


def test_another_version_of_the_runtime_is_no_drift():
    assert baselines(paces_of(profile_of(record(0))), "fifo", {"onnxruntime": "2"}) == {}


def test_only_profiles_of_this_device_tell_its_pace(tmp_path):
    elsewhere = profile_of(record(0, reference_ms=1.0))
    slower = profile_of(record(0, reference_ms=3.0, reference_drift=0.5))
    header = dataclasses.replace(slower.header, device=device())
    mine = dataclasses.replace(slower, header=header)
    paths = [tmp_path / "elsewhere.jsonl", tmp_path / "mine.jsonl"]
    for path, one in zip(paths, (elsewhere, mine), strict=True):
        write_profile(path, one)
    (pace,) = paces_here(paths)
    assert (pace.key, pace.reference_ms) == (("onnxruntime", 1, "default"), pytest.approx(2.0))


def test_what_is_graded_so_or_worse_is_measured_again():
    jobs = grid(ARCHS)
    known = profile_of(record(0, grade="A"), record(1, grade="C"), record(2, grade="D"))
    assert missing(jobs, known, Options()) == []
    assert [job.arch for job in missing(jobs, known, Options(again="C"))] == ARCHS[1:]
    assert [job.arch for job in missing(jobs, known, Options(again="D"))] == ARCHS[2:]


@pytest.mark.parametrize("second", [1.0, 1.2, 1.3, None])
@pytest.mark.parametrize(("witness", "fine"), [("memory_ms", 1.02), ("reference_ms", 1.1)])
def test_what_met_a_slower_machine_than_others_is_measured_once_more(second, witness, fine):
    levels = {"0": [1.2, second], "1": [1.0], "2": [fine]}
    jobs = [Job(arch=arch, backend="onnxruntime", settings=Settings()) for arch in ARCHS[:3]]
    names = {job.key: str(i) for i, job in enumerate(jobs)}
    asked, written = [], []

    class FakeBench:
        def record(self, job):
            name = names[job.key]
            asked.append(name)
            level = levels[name].pop(0)
            measured = record(int(name), **{witness: level})
            failure = Failure(kind="timeout", reason="no result")
            return measured if level else dataclasses.replace(
                measured, latency=None, grade=None, failure=failure
            )  # fmt: skip

    class Written:
        def add(self, one):
            written.append(one)

    steps, notes = [], []
    run_all(jobs, FakeBench(), Written(), steps.append, notes.append)
    assert ["1 of 3 measurements met" in note for note in notes] == [True]
    assert asked == ["0", "1", "2", "0"]
    # What is worse than what is there already is not written.
    assert len(written) == (4 if second in (1.0, 1.2) else 3)
    assert [(step.done, step.total) for step in steps] == [(1, 3), (2, 3), (3, 4), (4, 4)]


def test_levels_of_other_pages_are_not_compared():
    jobs = grid(ARCHS[:1], pages=["default", "huge"])
    rounds = Rounds(jobs)
    faster = record(0, memory_ms=0.5, reference_ms=0.5)
    huge = dataclasses.replace(faster, settings=jobs[1].settings)
    assert rounds.take(record(0, memory_ms=1.0, reference_ms=1.0)) == (True, [])
    assert rounds.take(huge) == (True, [])
    assert rounds.measured == 2


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("no such operator"), OSError(28)])
def test_whatever_keeps_a_model_from_being_built_is_recorded(tmp_path, error):
    def fails(arch, settings):
        raise error

    bench = Bench(
        provide={"onnx": fails}, options=Options(), preflight=preflight([]), versions=VERSIONS,
        folder=tmp_path, workers={"default": None}, baselines={},
        turns=FreshWorkers(uses=1),
    )  # fmt: skip
    found = bench.record(grid(ARCHS)[0])
    assert found.failure.kind == "build"
    assert found.failure.reason in ("MemoryError", "no such operator", "28")


def test_a_full_disk_is_no_fault_of_a_model(tmp_path):
    def fails(arch, settings):
        raise OSError(errno.ENOSPC, "No space left on device")

    bench = Bench(
        provide={"onnx": fails}, options=Options(), preflight=preflight([]), versions=VERSIONS,
        folder=tmp_path, workers={"default": None}, baselines={},
        turns=FreshWorkers(uses=1),
    )  # fmt: skip
    with pytest.raises(HwnasError, match="no space left"):
        bench.record(grid(ARCHS)[0])


def test_a_model_is_written_once_for_all_its_settings_and_again_after_a_failure(tmp_path):
    models = {"0": b"first", "1": b"second"}
    bench = Bench(
        provide={"onnx": lambda arch, settings: models[arch["digest"]]}, options=Options(),
        preflight=preflight([]), versions=VERSIONS, folder=tmp_path, workers={}, baselines={},
        turns=FreshWorkers(uses=1),
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    first, other, second = [*grid(ARCHS[:1], threads=(1, 2)), *grid(ARCHS[1:2])]
    assert bench._model(first) == ({"path": str(path)}, None)
    path.write_bytes(b"kept")
    bench._model(other)
    assert path.read_bytes() == b"kept"
    path.unlink()
    path.mkdir()
    with pytest.raises(OSError, match="directory"):
        bench._model(second)
    path.rmdir()
    bench._model(first)
    assert path.read_bytes() == b"first"


def test_workers_for_turns_are_replaced_after_so_many_uses(monkeypatch):
    stopped = []
    monkeypatch.setattr(RemoteWorker, "stop", lambda self: stopped.append(self._pages))
    workers = FreshWorkers(uses=2)
    one = workers.worker("default")
    assert [workers.worker("default") for _ in range(3)] == [one] * 3
    workers.worker("huge")
    assert stopped == ["default", "default", "huge"]
    workers.close()
    assert stopped[3:] == ["default", "huge"]


class Turns:
    """Notes what its only worker is asked for, and answers nothing."""

    def __init__(self, events):
        self.events = events

    def worker(self, pages):
        return self

    def begin(self, request):
        self.events.append((request["op"], request["companion"]["network"]))

    def ask(self, request, *, timeout_s):
        self.events.append((request["op"], request["companion"]["network"]))
        raise WorkerError("error", "enough")


def test_the_process_of_a_turn_gets_ready_while_the_model_is_built(tmp_path):
    events = []

    def provide(arch, settings):
        events.append(("build", arch["digest"]))
        return b"model"

    bench = Bench(
        provide={"onnx": provide}, options=Options(), preflight=preflight([]), versions=VERSIONS,
        folder=tmp_path, workers={}, baselines={}, turns=Turns(events),
    )  # fmt: skip
    bench.companions.learn(record(0))
    first, second = grid(ARCHS[1:])
    assert bench.record(first).failure.reason == "enough"
    assert events == [("build", "0"), ("companion", "0"), ("build", "1"), ("measure", "0")]
    del events[:]
    bench.record(second)
    assert events == [("companion", "0"), ("build", "2"), ("measure", "0")]
