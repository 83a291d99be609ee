"""How far a measurement can be trusted, in a letter, and why.

A: repeats within half a percent. B: within one to two. C: for orders of magnitude and rankings.
D: only kept because somebody insisted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from hwnas.profiling.contention import CONTENTION_LIMIT
from hwnas.profiling.machine import BUSY_LIMIT, STEAL_LIMIT
from hwnas.profiling.records import GRADES, Conditions, Grade, Latency, Record, Settings

# What slows both down cancels out but for about a twentieth (benchmarks/repeatability.py).
_COMPANION_LIMITS = (0.1, 0.4, 1.0)
_RANKS: Grade = "C"
_FORCED = "forced although "


@dataclass(frozen=True, kw_only=True, slots=True)
class _Finding:
    caps_at: Grade
    reason: str


def grade(
    latency: Latency,
    *,
    settings: Settings,
    conditions: Conditions,
    refusals: Sequence[str] = (),
    companion: Grade | None = None,
) -> tuple[Grade, list[str]]:
    """Return the grade of a latency and the reasons that it is not better.

    `refusals` are those of a pre-flight that was overruled; `companion`: the grade of that.
    """
    findings = [
        *(_Finding(caps_at="C", reason=_FORCED + reason) for reason in refusals),
        *_about_clock(latency, settings, conditions),
        *_about_spread(latency),
        *_about_disturbance(latency, conditions),
        *_about_companion(companion),
    ]
    worst = max((GRADES.index(finding.caps_at) for finding in findings), default=0)
    return GRADES[worst], [finding.reason for finding in findings if finding.caps_at != "A"]


def graded_again(
    record: Record, latency: Latency, *, companion: Grade | None = None
) -> tuple[Grade, list[str]]:
    """Return grade and reasons of a record that is told as `latency` from now on."""
    assert record.latency is not None
    forced = [reason for reason in record.reasons if reason.startswith(_FORCED)]
    again = partial(
        grade,
        settings=record.settings,
        conditions=record.conditions,
        refusals=[reason.removeprefix(_FORCED) for reason in forced],
        companion=companion,
    )
    _, before = again(record.latency)
    letter, reasons = again(latency)
    return letter, reasons + [reason for reason in record.reasons if reason not in before]


def _about_clock(latency: Latency, settings: Settings, conditions: Conditions) -> list[_Finding]:
    busy = (conditions.busy_share or 0.0) > BUSY_LIMIT
    if latency.clock == "device" or (latency.privilege != "none" and not busy):
        return []
    if latency.privilege != "none":
        crowded = settings.threads > 1 or settings.workers > 1
        text = f"cores {conditions.busy_share:.0%} busy with other work, held off by privilege"
        return [_Finding(caps_at="C" if crowded else "B", reason=text)]
    if latency.clock == "thread_cpu":
        reason = "no scheduling privilege: processor time of the thread"
        if busy:
            reason += f", 5 to 25 % high as cores are {conditions.busy_share:.0%} busy"
        return [_Finding(caps_at="C" if busy else "B", reason=reason)]
    reason = "no scheduling privilege: wall clock"
    if busy:
        reason += f" while cores are {conditions.busy_share:.0%} busy with other work"
    return [_Finding(caps_at="D" if busy else "B", reason=reason)]


def _about_spread(latency: Latency) -> list[_Finding]:
    findings = []
    width = latency.half_width
    text = f"median known to +-{width:.1%} after {latency.n} runs"
    findings.append(_by_size(width, (0.0075, 0.015, 0.05), text))
    lost = 1 - latency.kept_share
    findings.append(_by_size(lost, (0.35, 0.45, 0.5), f"{lost:.0%} of the runs were outliers"))
    return findings


def _about_disturbance(latency: Latency, conditions: Conditions) -> list[_Finding]:
    findings = []
    tried = latency.n + latency.preempted - latency.preempted_kept
    share = latency.preempted / tried
    text = f"{latency.preempted} of {tried} runs were preempted"
    text += ", which count for lack of others" if latency.preempted_kept else " and repeated"
    if latency.privilege == "fifo":
        text += "; the kernel took the core from real-time threads"
    findings.append(_by_size(share, (0.1, 0.3, 0.6), text))
    if latency.reference_drift is not None:
        drift = latency.reference_drift
        if latency.companion is None:
            text, limits = f"the reference model moved by {drift:+.1%}", (0.02, 0.05, 0.15)
        else:
            text, limits = f"its companion took {drift:+.1%} meanwhile", _COMPANION_LIMITS
        findings.append(_by_size(abs(drift), limits, text))
    if latency.contention is not None:
        text = f"others slowed the memory down by {latency.contention:.0%}"
        findings.append(_by_size(latency.contention, (CONTENTION_LIMIT, 0.1, 0.3), text))
    stolen = conditions.steal_share or 0.0
    text = f"{stolen:.1%} of the time was stolen by other guests"
    findings.append(_by_size(stolen, (STEAL_LIMIT / 2, STEAL_LIMIT, 0.1), text))
    return findings


def _about_companion(companion: Grade | None) -> list[_Finding]:
    """Return how far its latency can be trusted; in proportion to it, others can be ranked."""
    if companion is None:
        return []
    caps_at = min(companion, _RANKS)
    return [_Finding(caps_at=caps_at, reason=f"its companion has grade {companion}")]


def _by_size(value: float, limits: tuple[float, float, float], reason: str) -> _Finding:
    """Return the finding: A up to the first limit, B up to the second, C up to the third."""
    level = sum(value > limit for limit in limits)
    return _Finding(caps_at=GRADES[level], reason=reason)
