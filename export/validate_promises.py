"""What was promised of a file, by the search and by the exporter, against what it delivers."""

from collections.abc import Iterator, Mapping
from typing import Any

from hwnas.export.artifact import ModelEntry
from hwnas.export.validate_accuracy import Counted, wilson
from hwnas.export.validate_speed import compared
from hwnas.export.validate_types import Gate, failed, passed, skipped
from hwnas.profiling.contention import CORE_LIMIT
from hwnas.profiling.paces import Pace, pace_key, pace_of
from hwnas.profiling.records import Device, Pages, Record, Settings

# Two sessions on one machine differ by a few percent.
_SLACK = 1.1
_QUIETER = "hwnas doctor says whether this machine is quiet; if it is, search and export anew"


def promised_accuracy(
    promised: Mapping[str, Any], entry: ModelEntry, counted: Counted
) -> Iterator[Gate]:
    """Yield whether the accuracy is what the search foretold and what the exporter counted.

    Only a difference that chance does not explain fails: both sides are estimates.
    """
    estimate = promised.get("accuracy")
    if isinstance(estimate, dict) and "low" in estimate:
        low, high = float(estimate["low"]), float(estimate["high"])
        yield _accuracy_gate("promised accuracy", low, high, counted)
    if entry.images > 0:
        low, high = wilson(round(entry.accuracy * entry.images), entry.images)
        yield _accuracy_gate("exported accuracy", low, high, counted)


def _accuracy_gate(name: str, low: float, high: float, counted: Counted) -> Gate:
    wanted = f"{low:.2%}..{high:.2%}"
    found = f"{counted.interval[0]:.2%}..{counted.interval[1]:.2%}"
    if counted.interval[1] >= low:
        return passed(name, found, wanted=wanted)
    reason = f"{counted.accuracy:.2%} ({found}), said to be {wanted}"
    hint = "the data is another, or the file is damaged"
    return failed(name, reason, wanted=wanted, found=found, hint=hint)


def exported_pace(entry: ModelEntry, fingerprint: str) -> Pace | None:
    """Return the pace of the device when the file was measured; None if it was another device."""
    measured = entry.latency or {}
    try:
        pages: Pages = "huge" if measured.get("pages") == "huge" else "default"
        settings = Settings(threads=int(measured["threads"]), pages=pages)
        pace = Pace(
            key=pace_key(str(measured["backend"]), settings),
            version=str(measured["backend_version"]),
            privilege=measured["privilege"],
            reference_ms=float(measured["reference_ms"]),
        )
    except (KeyError, TypeError, ValueError):  # of an exporter that did not say it
        return None
    return pace if measured.get("fingerprint") == fingerprint and pace.reference_ms > 0 else None


def promised_latency(
    promised: Mapping[str, Any],
    entry: ModelEntry,
    record: Record,
    *,
    device: Device,
    then: Pace | None = None,
) -> Iterator[Gate]:
    """Yield whether the latency is what was foretold for this device, and measured on it.

    What was said is of the device at the pace it had `then`. Where the reference model shows that
    it is slower now, the time at that pace counts.
    """
    if record.latency is None:
        return
    measured = entry.latency or {}
    foretold_ms = _foretold_ms(promised)
    if foretold_ms is not None and _is_for(promised, entry, record):
        devices, is_here = _foretold_for(promised, measured, device)
        if is_here:
            yield _latency_gate("promised latency", foretold_ms, record, then)
        else:
            yield skipped("promised latency", f"foretold for {devices}; this is {device.name}")
    if not measured:
        return
    how = record.settings
    same = (measured.get("threads"), measured.get("batch"), measured.get("pages", "default")) == (
        how.threads, how.batch, how.pages
    )  # fmt: skip
    if measured.get("device") != device.name or not same:
        where = f"{measured.get('device')}, {measured.get('threads')} threads"
        where += f", batch {measured.get('batch')}, {measured.get('pages', 'default')} pages"
        yield skipped("exported latency", f"said for {where}; this is {device.name}")
        return
    limit_ms = _SLACK * float(measured["median_ms"])
    yield _latency_gate("exported latency", limit_ms, record, then)


def _foretold_for(
    promised: Mapping[str, Any], measured: Mapping[str, Any], device: Device
) -> tuple[str, bool]:
    """Return the devices that the search foretold for, and whether this is one of them.

    Older manifests do not name them: the device that the file was exported on counts there.
    """
    devices = promised.get("devices")
    if isinstance(devices, dict):
        return ", ".join(devices), device.fingerprint in devices.values()
    return str(measured.get("device", "another")), measured.get("device") == device.name


def _foretold_ms(promised: Mapping[str, Any]) -> float | None:
    """Return the longest time that the search let expect, None if it spoke of none.

    That is the end of its interval; or what it measured of this subnet, where that was longer.
    """
    estimate, seen = promised.get("latency"), promised.get("verified") or {}
    if not isinstance(estimate, dict) or "high" not in estimate:
        return None
    return max(float(estimate["high"]), _SLACK * float(seen.get("latency", 0.0)))


def _is_for(promised: Mapping[str, Any], entry: ModelEntry, record: Record) -> bool:
    """Return whether the search foretold this precision with these threads and this batch."""
    foretold = {"pages": "default", **(promised.get("settings") or {})}
    present = {
        "backend": record.backend,
        "threads": record.settings.threads,
        "batch": record.settings.batch,
        "precision": entry.precision,
        "pages": record.settings.pages,
    }
    return all(foretold.get(name, value) == value for name, value in present.items())


def _slowdown(record: Record, then: Pace | None) -> float:
    """Return how many times as long as then everything takes; 1.0 if that is not known, or less."""
    now = pace_of(record)
    if now is None or then is None:
        return 1.0
    same = (now.key, now.version, now.privilege) == (then.key, then.version, then.privilege)
    ratio = now.reference_ms / then.reference_ms
    return ratio if same and ratio > 1 + CORE_LIMIT else 1.0


def _latency_gate(name: str, limit_ms: float, record: Record, then: Pace | None) -> Gate:
    assert record.latency is not None
    found_ms = record.latency.median_ms
    wanted, found = f"<= {limit_ms:.3f} ms", f"{found_ms:.3f} ms"
    verdict = compared(found_ms, limit_ms, record)
    if verdict == "passed":
        return passed(name, found, wanted=wanted)
    slowdown = _slowdown(record, then)
    if slowdown > 1 and found_ms / slowdown <= limit_ms:
        told = f"{found}, {found_ms / slowdown:.3f} ms at the pace of then"
        slower = f"the reference model takes {slowdown:.2f} times as long as when that was said"
        return passed(name, told, wanted=wanted, reason=slower)
    reason = f"{found} where {wanted} was said"
    if verdict == "failed":
        return failed(name, reason, wanted=wanted, found=found, hint=_QUIETER)
    why = "; ".join(record.reasons)
    return Gate(name=name, state="unsure", wanted=wanted, found=found, reason=f"{reason}; {why}")
