"""Where a model's milliseconds go, block by block, from ONNX Runtime's own timings."""

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.profiling import onnxwire
from hwnas.profiling.backends.ort import feeds_for, open_session
from hwnas.profiling.privilege import privileged

RUNTIME = "(runtime)"
_WARMUP = 5
_KERNEL = "_kernel_time"


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """The time of one block of the model, per run. `operators` is its time by kind."""

    block: str
    ms: float
    share: float
    operators: dict[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    """The rows, slowest first. `total_ms` is slower than an unprofiled run by the timers' cost."""

    total_ms: float
    rows: tuple[Row, ...]


def explain(model: Path, *, threads: int = 1, batch: int = 1, runs: int = 30) -> Explanation:
    """Return where the time of `model` goes. Its nodes must be called "<block>/<operator>".

    What the runtime added and cannot be assigned to a block is under "(runtime)".
    """
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        session = open_session(model, threads=threads, profile_prefix=f"{folder}/profile")
        feeds = feeds_for(session, batch)
        with privileged(threads=threads):
            for _ in range(_WARMUP + runs):
                session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = [event for event in events if str(event.get("name", "")).endswith(_KERNEL)]
    per_run = len(kernels) // (_WARMUP + runs)
    blocks = _Blocks(model.read_bytes())
    return _explained(kernels[_WARMUP * per_run :], blocks, runs)


class _Blocks:
    """Finds the block of a kernel, whose name may come from a node or from its output."""

    def __init__(self, model: bytes) -> None:
        named = [(name, outputs) for name, outputs in onnxwire.nodes(model) if "/" in name]
        self._of_output = {output: _parent(name) for name, outputs in named for output in outputs}
        self._known = {_parent(name) for name, _ in named}

    def of(self, kernel: str) -> str:
        """Return the block of a kernel's name."""
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


def _explained(kernels: Iterable[dict[str, Any]], blocks: _Blocks, runs: int) -> Explanation:
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in kernels:
        block = blocks.of(event["name"].removesuffix(_KERNEL))
        operator = str(event.get("args", {}).get("op_name", "?"))
        times[block][operator] += event["dur"] / 1e3 / runs
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
    return Explanation(total_ms=total, rows=tuple(sorted(rows, key=lambda row: -row.ms)))
