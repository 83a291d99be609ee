"""What a fleet writes down and sends out again, without a cluster."""

import dataclasses
from collections import deque

import pytest

from hwnas.errors import UnreliableError
from hwnas.pipeline.fleet import Errand, Report, _collect
from hwnas.profiling.jobs import grid
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Device, Header, Latency, Record, Settings

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
    for device in "abc":
        for job in JOBS:
            cluster.submit(Errand(device=device, job=job))
    told = []
    outputs = {device: tmp_path / f"{device}.jsonl" for device in "abc"}
    measured, refusals = _collect(cluster, outputs, dict.fromkeys("abc", JOBS), told.append)
    assert cluster.done == [*(("a", d) for d in range(3)), *(("b", d) for d in range(3)), ("a", 0)]
    assert measured == {"a": 3, "b": 3, "c": 0}
    assert list(refusals) == ["c"]
    assert [(step.done, step.total) for step in told][-2:] == [(6, 10), (7, 10)]
    found = read_profile(outputs["a"]).records[JOBS[0].key]
    assert found.latency.memory_ms == kept
    assert dataclasses.replace(found, measured_at=0.0) == record(JOBS[0], kept, 0.0)
    assert not outputs["c"].exists()
