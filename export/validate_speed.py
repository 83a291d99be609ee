"""Latency and memory of a file under the guarded protocol, and what may be concluded from them.

Noise only ever adds time. So a limit that is met on a noisy machine is met; one that is not is
failed only as far as the measurement can be trusted.
"""

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.errors import HwnasError, UnreliableError
from hwnas.export.validate_types import Gate, Limits, Running, State, failed, passed
from hwnas.io.units import DURATION_MS, SIZE_BYTES, format_value
from hwnas.profiling.paces import Pace
from hwnas.profiling.records import Grade, Latency, Record

if TYPE_CHECKING:
    from hwnas.profiling.jobs import Options

# By what a time measured with this grade may exceed the truth; None if nobody knows.
_EXCESS: Mapping[Grade, float | None] = {"A": 1.0, "B": 1.0, "C": 1.5, "D": None}
_MEBIBYTE = 2**20
_TIMEOUT_S = 60.0  # for opening a file, and what is not measuring
_QUIET = "stop other work on this machine and run it again"
SPEED_GATES = ("p50", "p99", "memory")
_TIMES = ("p50", "p99", "promised latency", "exported latency")


def measure_file(
    model: Path,
    *,
    running: Running,
    precision: str,
    batch: int,
    sample: tuple[int, ...] = (),
    paces: tuple[Pace, ...] = (),
) -> Record:
    """Return the measurement of a file on this machine, however busy it is.

    `sample`: the shape of an image, for a file that leaves it free. `paces`: of earlier sessions on
    this device, by which it is seen that others slow it down now.
    Raises UnreliableError if another profiler is measuring, HwnasError if the backend is unknown.
    """
    from hwnas.profiling.backends import FileModel, backend
    from hwnas.profiling.driver import profile
    from hwnas.profiling.jobs import Job
    from hwnas.profiling.profiles import read_profile
    from hwnas.profiling.records import Settings

    known = backend(running.backend).precisions
    settings = Settings(
        threads=running.threads,
        batch=batch,
        precision=precision if precision in known else "fp32",
        pages=running.pages,
    )
    job = Job(arch={"space": "file", "genes": {}}, backend=running.backend, settings=settings)
    options = _options(running.seconds, paces)
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        path = Path(folder) / "profile.jsonl"
        try:
            file = FileModel(path=model, sample=sample)
            profile([job], provide=lambda _arch, _how: file, output=path, options=options)
        except UnreliableError:
            raise
        except HwnasError:
            if not path.exists():  # else the failure is a record, with its reason
                raise
        return read_profile(path).records[job.key]


def _options(seconds: float, paces: tuple[Pace, ...]) -> "Options":
    from hwnas.profiling.jobs import Options
    from hwnas.profiling.measure import Plan

    # More runs than a profile takes: a percentile of the tail needs them.
    plan = Plan(
        target=0.005, min_runs=200, max_runs=1000, max_s=seconds, patience_s=max(8.0, seconds)
    )
    return Options(
        force=True,
        plan=plan,
        timeout_s=_TIMEOUT_S + 2 * plan.patience_s,
        paces=paces,
        at_pace=False,
    )


def speed_gates(record: Record, limits: Limits) -> list[Gate]:
    """Return the gates of latency and memory."""
    if record.failure is not None or record.latency is None:
        reason = "it was not measured" if record.failure is None else record.failure.reason
        return [failed(name, reason) for name in SPEED_GATES]
    latency = record.latency
    return [
        _time_gate("p50", latency.median_ms, limits.max_latency_ms, record),
        _time_gate("p99", latency.p99_ms, limits.max_p99_ms, record),
        _memory_gate(record, limits.max_memory_bytes),
    ]


def unsure_gates(reason: str, limits: Limits) -> list[Gate]:
    """Return the gates of latency and memory where nothing could be measured."""
    wanted = {
        "p50": (limits.max_latency_ms, DURATION_MS),
        "p99": (limits.max_p99_ms, DURATION_MS),
        "memory": (limits.max_memory_bytes, SIZE_BYTES),
    }
    return [
        Gate(
            name=name,
            state="skipped" if limit is None else "unsure",
            wanted="" if limit is None else f"<= {format_value(limit, kind)}",
            reason=reason,
            hint=_QUIET,
        )
        for name, (limit, kind) in wanted.items()
    ]


def missed(gates: Sequence[Gate]) -> list[Gate]:
    """Return the gates whose times are above their limits, or may be."""
    return [gate for gate in gates if gate.name in _TIMES and gate.state in ("failed", "unsure")]


def shortfall(measured: tuple[Record, Sequence[Gate]]) -> tuple[int, float]:
    """Return how many limits of times are missed, and the latency."""
    record, gates = measured
    latency_ms = math.inf if record.latency is None else record.latency.median_ms
    return len(missed(gates)), latency_ms


def _time_gate(name: str, found_ms: float, limit_ms: float | None, record: Record) -> Gate:
    assert record.latency is not None
    batch = record.settings.batch
    found = f"{found_ms:.3f} ms{f' a batch of {batch}' if batch > 1 else ''}, grade {record.grade}"
    why = "; ".join(record.reasons)
    if limit_ms is None:
        return Gate(name=name, state="told", found=found, reason=why)
    wanted = f"<= {milliseconds(limit_ms)}"
    verdict = compared(found_ms, limit_ms, record)
    if verdict == "passed":
        return passed(name, found, wanted=wanted)
    if verdict == "failed":
        over = found_ms / limit_ms - 1
        return failed(
            name, f"{found_ms:.3f} ms, {over:.0%} above the limit", wanted=wanted, found=found
        )
    reason = f"{found_ms:.3f} ms on a machine too noisy to tell: {why}"
    return Gate(name=name, state="unsure", wanted=wanted, found=found, reason=reason, hint=_QUIET)


def compared(found_ms: float, limit_ms: float, record: Record) -> State:
    """Return whether a time keeps a limit: passed, failed, or unsure."""
    assert record.grade is not None
    assert record.latency is not None
    # Undoing the drift makes a time shorter; on a noisy machine that is no proof.
    slowest = found_ms * max(1.0, record.latency.scale)
    if (found_ms if record.grade in ("A", "B") else slowest) <= limit_ms:
        return "passed"
    excess = _EXCESS[record.grade]
    return "failed" if excess is not None and found_ms > excess * limit_ms else "unsure"


def _memory_gate(record: Record, limit_bytes: float | None) -> Gate:
    if record.memory is None:
        why = next((text for text in record.reasons if "memory" in text), "it was not measured")
        state: State = "skipped" if limit_bytes is None else "unsure"
        return Gate(name="memory", state=state, reason=why)
    peak = record.memory.peak_mb * _MEBIBYTE
    found = f"{megabytes(peak)} (process without it {megabytes(_before(record))})"
    return size_gate("memory", peak, limit_bytes, found=found)


def _before(record: Record) -> float:
    assert record.memory is not None
    return record.memory.before_mb * _MEBIBYTE


def size_gate(name: str, size: float, limit: float | None, *, found: str = "") -> Gate:
    """Return whether a number of bytes keeps a limit."""
    found = found or megabytes(size)
    if limit is None:
        return Gate(name=name, state="told", found=found)
    wanted = f"<= {format_value(limit, SIZE_BYTES)}"
    if size <= limit:
        return passed(name, found, wanted=wanted)
    return failed(name, f"{megabytes(size)}; wanted {wanted}", wanted=wanted, found=found)


def speed_figures(record: Record) -> dict[str, Any]:
    """Return the numbers as JSON, without the samples."""
    figures: dict[str, Any] = {
        "backend": record.backend,
        "backend_version": record.backend_version,
        "threads": record.settings.threads,
        "batch": record.settings.batch,
        "pages": record.settings.pages,
        "grade": record.grade,
        "reasons": list(record.reasons),
    }
    if record.failure is not None:
        figures["failure"] = record.failure.reason
    if record.latency is not None:
        figures["latency"] = _times(record.latency)
        figures["throughput_per_s"] = record.throughput_per_s
    if record.memory is not None:
        figures["memory_peak_bytes"] = round(record.memory.peak_mb * _MEBIBYTE)
        figures["memory_before_bytes"] = round(record.memory.before_mb * _MEBIBYTE)
    return figures


def _times(latency: Latency) -> dict[str, Any]:
    names = ("median_ms", "p90_ms", "p99_ms", "n", "preempted", "half_width", "clock", "privilege",
             "reference_ms", "reference_drift", "scale")  # fmt: skip
    return {name: getattr(latency, name) for name in names}


def milliseconds(value: float) -> str:
    """Return a duration as it is typed."""
    return format_value(value, DURATION_MS)


def megabytes(value: float) -> str:
    """Return a size such as 16.03MB."""
    return f"{value / 1e6:.2f}MB"
