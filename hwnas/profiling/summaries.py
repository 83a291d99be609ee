"""Profiles in a few lines: what was measured per combination of settings, and how two compare."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.profiling.profiles import Difference, Profile, diff_profiles
from hwnas.profiling.records import GRADES, Record, Settings


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """The records of one space, backend and setting. Latencies are None if all failed.

    `drift`: by which share the machine's pace differed among the measurements, up and down, as seen
    by the model that they were made beside; None where too few were. All of them share it.
    """

    space: str
    backend: str
    settings: Settings
    models: int
    failed: int
    least_ms: float | None
    median_ms: float | None
    most_ms: float | None
    best_per_s: float | None
    drift: float | None
    grades: dict[str, int]


Kind = tuple[str, str, Settings]
_FEWEST = 5


def groups(records: Sequence[Record]) -> list[Group]:
    """Return the records by space, backend and settings, in a fixed order."""
    return [_group(kind, members) for kind, members in _by_kind(records)]


def differences(first: Profile, second: Profile) -> list[tuple[Kind, Difference]]:
    """Return how two profiles compare for each space, backend and setting that both measured."""
    ours, theirs = (dict(_by_kind(profile.measured())) for profile in (first, second))
    return [
        (kind, diff_profiles(_part(first, ours[kind]), _part(second, theirs[kind])))
        for kind in ours
        if kind in theirs
    ]


def _by_kind(records: Sequence[Record]) -> list[tuple[Kind, list[Record]]]:
    found: dict[Kind, list[Record]] = defaultdict(list)
    for record in records:
        found[(str(record.arch["space"]), record.backend, record.settings)].append(record)
    return sorted(found.items(), key=lambda item: _order(item[0]))


def _order(kind: Kind) -> tuple[str, str, str, int, int, int]:
    space, backend, settings = kind
    return (
        space, backend, settings.form, settings.workers, settings.threads, settings.batch
    )  # fmt: skip


def _part(profile: Profile, records: Sequence[Record]) -> Profile:
    return Profile(header=profile.header, records={record.key: record for record in records})


def _group(kind: Kind, members: Sequence[Record]) -> Group:
    times = [record.latency.median_ms for record in members if record.latency is not None]
    rates = [record.throughput_per_s for record in members if record.throughput_per_s is not None]
    grades = Counter(record.grade for record in members if record.grade is not None)
    return Group(
        space=kind[0],
        backend=kind[1],
        settings=kind[2],
        models=len(members),
        failed=sum(record.failure is not None for record in members),
        least_ms=min(times, default=None),
        median_ms=float(np.median(times)) if times else None,
        most_ms=max(times, default=None),
        best_per_s=max(rates, default=None),
        drift=_drift(members),
        grades={grade: grades[grade] for grade in GRADES if grades[grade]},
    )


def _drift(members: Sequence[Record]) -> float | None:
    """Return half of what the middle four fifths of the companion's times span, as a share."""
    times = defaultdict[str, list[float]](list)
    for record in members:
        latency = record.latency
        if latency is None or latency.companion is None or latency.reference_rest_ms is None:
            continue
        times[latency.companion].append(latency.reference_rest_ms)
    shares = [time / float(np.median(found)) for found in times.values() for time in found]
    if len(shares) < _FEWEST:
        return None
    low, high = np.quantile(shares, (0.1, 0.9))
    return float(high - low) / 2
