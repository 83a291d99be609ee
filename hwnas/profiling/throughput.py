"""Inferences per second of several processes at once, each pinned to its own core.

One thread per process and one process per core beats larger batches and more threads on the CPUs
measured so far, so this is what throughput means here.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwnas.profiling.machine import conditions_since, cpu_times
from hwnas.profiling.records import Conditions, Latency
from hwnas.profiling.remote import RemoteWorker
from hwnas.profiling.statistics import summarise

_MOST_SAMPLES = 300
_START_IN_S = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Throughput:
    """Runs per second of all processes, and the latency of a run while they compete."""

    per_s: float
    latency: Latency
    conditions: Conditions


def measure_throughput(
    request: dict[str, Any], *, workers: int, seconds: float, timeout_s: float
) -> Throughput:
    """Return the throughput of `workers` processes that run the model of `request` at once.

    Not with real-time priority: these processes never rest, and others could not run at all, or
    the kernel would stop them for a part of each second.
    """
    cores = request["cores"]
    privileges = [name for name in request["privileges"] if name != "fifo"]
    pages = request["settings"]["pages"]
    with ExitStack() as stack:
        crew = [stack.enter_context(RemoteWorker(pages=pages)) for _ in range(workers)]
        requests = [
            {**request, "cores": own, "privileges": privileges}
            for own in shares_of(cores, workers=workers, threads=request["settings"]["threads"])
        ]
        for worker, one in zip(crew, requests, strict=True):
            worker.send({**one, "op": "prepare"})
        for worker in crew:
            worker.receive(timeout_s=timeout_s)
        before = cpu_times()
        # By the clock that all processes share and nobody sets: the date may jump.
        start_at = time.monotonic() + _START_IN_S
        for worker, one in zip(crew, requests, strict=True):
            worker.send({**one, "op": "rate", "start_at": start_at, "seconds": seconds})
        replies = [worker.receive(timeout_s=timeout_s + seconds) for worker in crew]
    conditions = conditions_since(before, own_seconds=sum(reply["own_s"] for reply in replies))
    return _combined(replies, conditions)


def shares_of(cores: Sequence[int], *, workers: int, threads: int) -> list[list[int]]:
    """Return the cores of each worker: its own, or none in particular where there are too few."""
    if len(cores) < workers * threads:
        return [[] for _ in range(workers)]
    return [list(cores[i * threads : (i + 1) * threads]) for i in range(workers)]


def _combined(replies: list[dict[str, Any]], conditions: Conditions) -> Throughput:
    samples = [ms for reply in replies for ms in reply["samples_ms"]]
    shown = [samples[i] for i in _evenly(len(samples))]
    summary = summarise(np.array(shown))
    return Throughput(
        conditions=conditions,
        per_s=sum(len(reply["samples_ms"]) / reply["elapsed_s"] for reply in replies),
        latency=Latency(
            samples_ms=shown,
            median_ms=summary.median,
            p90_ms=summary.p90,
            p99_ms=summary.p99,
            n=len(shown),
            kept_share=summary.kept_share,
            preempted=0,
            half_width=summary.half_width,
            clock="wall",
            privilege=replies[0]["privilege"],
        ),
    )


def _evenly(count: int) -> list[int]:
    """Return at most as many indices as are kept, spread over all samples."""
    kept = min(count, _MOST_SAMPLES)
    return [index * count // kept for index in range(kept)]
