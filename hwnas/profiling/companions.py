"""Which measured model of a profile the others are measured beside, and at which level.

The first that is measured becomes the companion of those with the same settings; they are told at
its latency. A session that goes on takes the companion of the one before. Should it turn out that
even the companion was slowed down when it was measured, all are told anew: their quotients hold.
"""

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hwnas.profiling.jobs import Job
from hwnas.profiling.profiles import Profile, ProfileWriter, profile_so_far
from hwnas.profiling.records import SOUND, Grade, Latency, Record, Settings

# What is of one kind and measured in the same way: by space, backend and settings.
Group = tuple[str, str, str]
# A companion that is now and then so much faster was slowed down when it was measured itself.
_FASTER = 0.03
_FAST_SHARE = 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A measurement that others may be made beside, and the digest of its model's graph.

    One of another profile (`elsewhere`) is measured beside itself, too, to be told at that level.
    """

    job: Job
    elsewhere: bool
    latency_ms: float
    grade: Grade | None
    graph: str | None


@dataclass(slots=True)
class Companions:
    """The companions of a session, by what is known and what is learnt since.

    Those of `beside` come first, as what is measured is compared with them. `profile` is the one
    that is gone on with; its models are kept `in_proportion`, however well the companion is known,
    or else only sound ones count. What other `versions` of the backends took does not.
    """

    profile: Profile | None = None
    beside: Sequence[Profile] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    in_proportion: bool = True
    _chosen: dict[Group, Known] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Take those of the sessions before."""
        for profile in self.beside:
            self._take(profile, unsound=True, elsewhere=True)
        if self.profile is not None:
            self._take(self.profile, unsound=self.in_proportion)

    def _take(self, profile: Profile, *, unsound: bool, elsewhere: bool = False) -> None:
        usable = [
            one
            for one in profile.measured()
            if one.backend_version == self.versions.get(one.backend)
            and (unsound or one.grade in SOUND)
        ]
        for group in {_group_of(record) for record in usable} - self._chosen.keys():
            self._choose(_preferred([one for one in usable if _group_of(one) == group]), elsewhere)

    def of(self, job: Job) -> Known | None:
        """Return what a job is measured beside, None if nothing."""
        found = self._chosen.get(_group_of(job)) if _is_served(job.settings) else None
        if found is None or (found.job.key == job.key and not found.elsewhere):
            return None
        return found

    def learn(self, record: Record) -> None:
        """Take a measurement into account: the first of its kind, or a new one of the companion."""
        if self.in_proportion or record.grade in SOUND:
            self._choose(record)

    def _choose(self, record: Record, elsewhere: bool = False) -> None:
        if record.latency is None or not _is_served(record.settings):
            return
        group = _group_of(record)
        there = self._chosen.get(group)
        if there is None or (there.job.key == record.key and not there.elsewhere):
            job = Job(arch=record.arch, backend=record.backend, settings=record.settings)
            self._chosen[group] = Known(
                job=job,
                elsewhere=elsewhere,
                latency_ms=record.latency.median_ms,
                grade=record.grade,
                graph=record.graph,
            )

    def forget(self, known: Known) -> None:
        """Do without what cannot be made again; the next that is measured takes its place."""
        del self._chosen[_group_of(known.job)]


def _is_served(settings: Settings) -> bool:
    """Return whether there may be a companion: pools of threads are in each other's way."""
    return settings.threads == 1 and settings.workers == 1


def _group_of(one: Job | Record) -> Group:
    """Return what a measurement has in common with those that it can be compared with."""
    _, backend, settings = one.key
    return (str(one.arch.get("space")), backend, settings)


def tell_anew(path: Path) -> None:
    """Append to a profile, where there is one, what has to be told at another latency."""
    profile = profile_so_far(path)
    again = [] if profile is None else told_anew(profile)
    if profile is not None and again:
        with ProfileWriter(path, profile.header) as writer:
            for record in again:
                writer.add(record)


def told_anew(profile: Profile) -> list[Record]:
    """Return the measurements of a profile that have to be told at another latency.

    That is so where their companion has been measured again, or was seen to be faster than that.
    """
    changed = list[Record]()
    measured = profile.measured()
    for companion in measured:
        beside = [record for record in measured if _is_beside(record, companion)]
        if not beside or companion.latency is None:
            continue
        seen = [
            one.latency.reference_rest_ms or np.inf for one in beside if one.latency is not None
        ]
        fastest = float(np.quantile(seen, _FAST_SHARE))
        level = companion.latency.median_ms
        if fastest < (1 - _FASTER) * level:
            changed.append(_retold(companion, companion.latency, fastest / level))
            level = fastest
        for record in beside:
            assert record.latency is not None
            share = level / _told_at(record.latency)
            if abs(share - 1) > 1e-6:
                changed.append(_retold(record, record.latency, share))
    return changed


def _preferred(records: Sequence[Record]) -> Record:
    """Return the companion of the most measurements, else the fastest model."""
    served = Counter(record.latency.companion for record in records if record.latency is not None)
    return min(
        records,
        key=lambda record: (
            -served[record.key[0]],
            record.latency.median_ms if record.latency is not None else np.inf,
        ),
    )


def _is_beside(record: Record, companion: Record) -> bool:
    latency = record.latency
    return (
        latency is not None
        and latency.companion == companion.key[0]
        and _group_of(record) == _group_of(companion)
    )


def _told_at(latency: Latency) -> float:
    """Return the latency of the companion that a measurement was told at."""
    assert latency.reference_ms is not None
    assert latency.reference_drift is not None
    return latency.reference_ms / (1 + latency.reference_drift)


def _retold(record: Record, latency: Latency, share: float) -> Record:
    drift = latency.reference_drift
    told = replace(
        latency,
        median_ms=latency.median_ms * share,
        p90_ms=latency.p90_ms * share,
        p99_ms=latency.p99_ms * share,
        scale=latency.scale / share,
        reference_drift=None if drift is None else (1 + drift) / share - 1,
    )
    rate = record.throughput_per_s
    return replace(
        record,
        latency=told,
        throughput_per_s=None if rate is None else rate / share,
        measured_at=time.time(),
    )
