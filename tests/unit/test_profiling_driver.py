import dataclasses

import pytest

from hwnas.profiling.driver import _baselines as baselines
from hwnas.profiling.driver import _run_all as run_all
from hwnas.profiling.driver import grid, preflight
from hwnas.profiling.driver import missing_jobs as missing
from hwnas.profiling.jobs import Job, Options
from hwnas.profiling.profiles import Profile, best_records
from hwnas.profiling.records import Device, Header, Latency, Record, Settings

ARCHS = [{"space": "toy", "genes": {"d": d}, "digest": str(d)} for d in range(3)]


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
    found = baselines(profile_of(late, early), "fifo")
    assert found == {("onnxruntime", 1, "default"): pytest.approx(1.0)}


@pytest.mark.parametrize(
    "changes",
    [{"grade": "C"}, {"privilege": "none"}, {"reference_ms": None}, {"backend": "openvino"}],
)
def test_baselines_are_not_taken_from_other_conditions(changes):
    assert ("onnxruntime", 1, "default") not in baselines(profile_of(record(0, **changes)), "fifo")


def test_a_new_profile_has_no_baseline():
    assert baselines(None, "fifo") == {}


def test_what_is_graded_so_or_worse_is_measured_again():
    jobs = grid(ARCHS)
    known = profile_of(record(0, grade="A"), record(1, grade="C"), record(2, grade="D"))
    assert missing(jobs, known, Options()) == []
    assert [job.arch for job in missing(jobs, known, Options(again="C"))] == ARCHS[1:]
    assert [job.arch for job in missing(jobs, known, Options(again="D"))] == ARCHS[2:]


def test_what_met_a_slower_memory_than_others_is_measured_once_more():
    levels = {"0": [1.1, 1.0], "1": [1.0], "2": [1.02]}
    jobs = [Job(arch=arch, backend="onnxruntime", settings=Settings()) for arch in ARCHS[:3]]
    names = {job.key: str(i) for i, job in enumerate(jobs)}
    asked, told = [], []

    class FakeBench:
        def record(self, job):
            name = names[job.key]
            asked.append(name)
            number = int(name)
            return record(number, memory_ms=levels[name].pop(0))

    class Written:
        def add(self, one):
            told.append(one)

    steps = []
    run_all(jobs, FakeBench(), Written(), steps.append)
    assert asked == ["0", "1", "2", "0"]
    assert len(told) == 4
    assert [(step.done, step.total) for step in steps] == [(1, 3), (2, 3), (3, 4), (4, 4)]
