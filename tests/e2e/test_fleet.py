"""What a fleet writes down and sends out again, without a cluster."""

import dataclasses
from collections import deque

import pytest

from hwnas.errors import UnreliableError
from hwnas.pipeline.fleet import Errand, Report, _collect, bench_on
from hwnas.profiling.jobs import grid
from hwnas.profiling.packs import Model, write_pack
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Device, Header, Latency, Record, Settings
from hwnas.testing.onnx_models import TOY_ARCHS, conv_stack

ARCHS = [{"space": "toy", "genes": {"d": d}} for d in range(3)]
JOBS = grid(ARCHS)


def header(device):
    described = Device(
        name=device, fingerprint=device, cpu="c", cores=1, memory_mb=1, architecture="a", os="o"
    )
    return Header(device=described, runtimes={}, created_at=0.0)


def record(job, memory_ms, measured_at):
    latency = Latency(
        samples_ms=[memory_ms], median_ms=memory_ms, p90_ms=memory_ms, p99_ms=memory_ms, n=1,
        kept_share=1.0, preempted=0, half_width=0.0, clock="wall", privilege="fifo",
        memory_ms=memory_ms,
    )  # fmt: skip
    return Record(
        arch=job.arch, backend=job.backend, backend_version="1", settings=Settings(),
        measured_at=measured_at, latency=latency, grade="A",
    )  # fmt: skip


class Cluster:
    """Does errands in order; memories were so slow at each measurement of an architecture."""

    def __init__(self, levels):
        self.levels = levels
        self.queue = deque()
        self.done = []

    def submit(self, errand):
        self.queue.append(errand)

    def __iter__(self):
        while self.queue:
            errand = self.queue.popleft()
            number = errand.job.arch["genes"]["d"]
            levels = self.levels[errand.device]
            if levels is None:
                yield Report(device=errand.device, refusal=UnreliableError("busy"))
                continue
            self.done.append((errand.device, number))
            measured = record(errand.job, levels[number].pop(0), float(len(self.done)))
            yield Report(device=errand.device, header=header(errand.device), record=measured)


@pytest.mark.parametrize(("second", "kept"), [(1.0, 1.0), (1.2, 1.1)])
def test_what_met_a_slower_memory_is_measured_once_more_on_that_device(tmp_path, second, kept):
    cluster = Cluster({"a": [[1.1, second], [1.0], [1.01]], "b": [[1.1], [1.1], [1.1]], "c": None})
    told = []
    outputs = {device: tmp_path / f"{device}.jsonl" for device in "abc"}
    todo = dict.fromkeys("abc", JOBS)
    measured, refusals = _collect(cluster, outputs, todo, told.append)
    assert cluster.done == [*(("a", d) for d in range(3)), *(("b", d) for d in range(3)), ("a", 0)]
    assert measured == {"a": 3, "b": 3, "c": 0}
    assert list(refusals) == ["c"]
    assert [(step.done, step.total) for step in told][-2:] == [(6, 10), (7, 10)]
    found = read_profile(outputs["a"]).records[JOBS[0].key]
    assert found.latency.memory_ms == kept
    assert dataclasses.replace(found, measured_at=0.0) == record(JOBS[0], kept, 0.0)
    assert not outputs["c"].exists()


def test_baselines_reach_the_errands_that_are_yet_to_be_sent(tmp_path):
    key = ("onnxruntime", 1, "default")
    there = []

    class Workers(Cluster):
        def __iter__(self):
            for number, report in enumerate(super().__iter__(), start=1):
                # What a later worker finds for itself does not replace what the first one found.
                found = {("fifo", key): float(number), (f"p{number}", key): 5.0}
                yield dataclasses.replace(report, baselines=found)
                there.append(dict(submitted[-1].baselines))

        def submit(self, errand):
            super().submit(errand)
            submitted.append(errand)

    submitted = []
    cluster = Workers({"a": [[1.1, 1.0], [1.0], [1.0]]})
    _collect(cluster, {"a": tmp_path / "a.jsonl"}, {"a": JOBS}, None)
    assert [sorted(of for of, _ in one) for one in there] == [
        ["fifo", *(f"p{n}" for n in range(1, count + 1))] for count in (1, 2, 3, 4)
    ]
    assert {one["fifo", key] for one in there} == {1.0}
    assert len(submitted) == 4  # what was disturbed, too


def test_a_worker_in_place_of_another_takes_its_baseline_over(tmp_path, options):
    path = tmp_path / "toy.pack"
    write_pack(path, [Model(arch=TOY_ARCHS[0], onnx=conv_stack(width=8))])
    (job,) = jobs = grid(TOY_ARCHS[:1])

    def worker():
        return bench_on(
            0, pack=path.read_bytes(), devices=["a"], jobs=jobs, options=options, known={"a": None}
        )

    first = worker()
    report = first(Errand(device="a", job=job))
    first.close()
    ((of, reference_ms),) = report.baselines.items()
    assert reference_ms > 0
    second = worker()
    told = {of: 3 * reference_ms, ("another", of[1]): 7.0}
    again = second(Errand(device="a", job=job, baselines=told))
    second.close()
    assert again.baselines == {of: 3 * reference_ms}
    assert again.record.latency.reference_drift < -0.3
    assert again.record.graph == report.record.graph is not None
