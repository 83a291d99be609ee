"""Where a model's milliseconds go, block by block, from ONNX Runtime's own timings.

Its timers cost some microseconds a node, which would make many small nodes look expensive. So the
model is also timed without them, and each node is relieved of the same amount, such that the sum
is the real latency.
"""

import json
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import HwnasError
from hwnas.io import onnxwire
from hwnas.io.scratch import scratch_folder
from hwnas.profiling.backends.ort import feeds_for, first_line, open_session, refusals
from hwnas.profiling.locks import device_lock
from hwnas.profiling.privilege import privileged

RUNTIME = "(runtime)"
_WARMUP = 5
_KERNEL = "_kernel_time"
_HALVINGS = 40
_CAST = re.compile(r"^Inserted(PrecisionFree)?Cast_")


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The time of one block of the model, per run. `operators` is its time by kind."""

    block: str
    ms: float
    share: float
    operators: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The rows, slowest first, which add up to `total_ms`. `timers_ms` were taken off."""

    total_ms: float
    timers_ms: float
    rows: tuple[Row, ...]


def explain(
    model: Path,
    *,
    threads: int = 1,
    batch: int = 1,
    runs: int = 30,
    lock_folder: Path | None = None,
) -> Explanation:
    """Return where the time of `model` goes. Its nodes must be called "<block>/<operator>".

    What the runtime added and cannot be assigned to a block is under "(runtime)".
    Raises UnreliableError beside a profiler, which it would disturb.
    """
    with (
        device_lock(folder=lock_folder),
        scratch_folder() as folder,
    ):
        session = open_session(model, threads=threads, profile_prefix=f"{folder}/profile")
        plain = open_session(model, threads=threads)
        feeds = feeds_for(session, batch)
        try:
            with privileged(threads=threads):
                for _ in range(_WARMUP + runs):
                    session.run(None, feeds)
                plain_ms = _median_ms(plain, feeds, runs)
        except refusals() as error:
            reason = first_line(error)
            raise HwnasError(f"onnxruntime cannot run {model.name}: {reason}") from error
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    kernels = [event for event in events if str(event.get("name", "")).endswith(_KERNEL)]
    per_run = len(kernels) // (_WARMUP + runs)
    table = [kernels[start : start + per_run] for start in range(0, len(kernels), per_run)]
    return _explained(table[_WARMUP:], _Blocks(model.read_bytes()), plain_ms)


def _median_ms(session: Any, feeds: dict[str, Any], runs: int) -> float:  # noqa: ANN401 - untyped
    times = []
    for _ in range(_WARMUP + runs):
        start = time.perf_counter()
        session.run(None, feeds)
        times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times[_WARMUP:])


class _Blocks:
    """Finds the block of a kernel, whose name may come from a node or from its output."""

    def __init__(self, model: bytes) -> None:
        named = [(name, outputs) for name, outputs in onnxwire.nodes(model) if "/" in name]
        self._of_output = {output: _parent(name) for name, outputs in named for output in outputs}
        self._known = {_parent(name) for name, _ in named}

    def of(self, kernel: str) -> str:
        """Return the block of a kernel's name."""
        # Where a type is not computed in, the runtime casts, and renames the outputs it casts to.
        kernel = _CAST.sub("", kernel)
        output = kernel.removesuffix("_nchwc")
        if output in self._of_output:
            return self._of_output[output]
        parts = kernel.split("/")
        for length in range(len(parts), 0, -1):
            block = "/".join(parts[:length])
            if block in self._known:
                return block
        return RUNTIME


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _explained(
    runs: Sequence[Sequence[dict[str, Any]]], blocks: _Blocks, plain_ms: float
) -> Explanation:
    # One column per kernel of the network, in the order of execution, which does not change.
    columns = list(zip(*runs, strict=True))
    timed = [statistics.median(event["dur"] / 1e3 for event in column) for column in columns]
    relief = _relief(timed, plain_ms)
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for column, ms in zip(columns, timed, strict=True):
        block = blocks.of(column[0]["name"].removesuffix(_KERNEL))
        operator = str(column[0].get("args", {}).get("op_name", "?"))
        times[block][operator] += max(ms - relief, 0.0)
    total = sum(sum(operators.values()) for operators in times.values())
    rows = [
        Row(
            block=block,
            ms=sum(operators.values()),
            share=sum(operators.values()) / total if total else 0.0,
            operators=dict(sorted(operators.items(), key=lambda item: -item[1])),
        )
        for block, operators in times.items()
    ]
    return Explanation(
        total_ms=total,
        timers_ms=sum(timed) - total,
        rows=tuple(sorted(rows, key=lambda row: -row.ms)),
    )


def _relief(timed: Sequence[float], wanted: float) -> float:
    """Return what to take off each time, none below zero, so that they add up to `wanted`."""
    low, high = 0.0, max(timed, default=0.0)
    if sum(timed) <= wanted:
        return 0.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if sum(max(ms - middle, 0.0) for ms in timed) > wanted:
            low = middle
        else:
            high = middle
    return high
