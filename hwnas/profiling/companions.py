"""Which measured model of a profile the others are measured beside, and at which level.

The first that is measured becomes the companion of those with the same settings; they are told at
its latency. A session that goes on takes the companion of the one before. At its end all are told
at the middle of what the companion took before each of them: their quotients hold, and one process
in one minute knows that latency badly.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from hwnas.profiling.contention import CORE_LIMIT
from hwnas.profiling.grading import graded_again
from hwnas.profiling.jobs import Job
from hwnas.profiling.profiles import Profile, profile_so_far, rewrite_records
from hwnas.profiling.records import SOUND, Grade, Latency, Record, Settings
from hwnas.profiling.statistics import trimmed

# What is of one kind and measured in the same way: by space, backend and settings.
Group = tuple[str, str, str]
# A companion under one version of its backend: another version is another speed.
_Which = tuple[Group, str, str]
_FAST_SHARE = 0.1
_SAME = 1e-6


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

    def missed(self, jobs: Sequence[Job]) -> list[Job]:
        """Return a job of each kind for which none of `beside` has a companion."""
        first = {_group_of(job): job for job in reversed(jobs) if _is_served(job.settings)}
        there = {group for group, known in self._chosen.items() if known.elsewhere}
        return [job for group, job in first.items() if group not in there] if self.beside else []

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
    """Tell the measurements of a profile, where there is one, at what their companions really take.

    The file is replaced at once; what is told as before stays as it is.
    """
    profile = profile_so_far(path)
    if profile is None:
        return
    levels = levels_of(profile)
    if any(told_at(record, levels) is not record for record in profile.measured()):
        rewrite_records(path, lambda record: told_at(record, levels))


def at_one_level(profile: Profile) -> Profile:
    """Return a profile of several sessions with its measurements told at what companions take."""
    levels = levels_of(profile)
    told = {key: told_at(record, levels) for key, record in profile.records.items()}
    return replace(profile, records=told)


@dataclass(frozen=True, slots=True)
class Level:
    """What a companion takes, and the grade of its own measurement."""

    ms: float
    grade: Grade | None


def levels_of(profile: Profile) -> dict[_Which, Level]:
    """Return what each companion of a profile takes, by what was seen of it at any time.

    A process has luck or not with its memory, a minute with its neighbours; the middle of many
    blocks depends on neither. Those beside which others had the core do not count.
    """
    seen = defaultdict[_Which, list[Latency]](list)
    for record in profile.measured():
        latency = record.latency
        if latency is None or latency.reference_rest_ms is None or latency.companion is None:
            continue
        seen[_which(record, latency)].append(latency)
    levels = {}
    for record in profile.measured():
        own = record.latency
        # What was measured beside itself is a companion of another profile, at whose level it is.
        if own is None or own.companion is not None or (which := _which(record, own)) not in seen:
            continue
        # Processor time and the wall's differ by what others take: a session with privilege and
        # one without do not see the same.
        looks = [look.reference_rest_ms for look in seen[which] if look.clock == own.clock]
        levels[which] = Level(_at_rest([*filter(None, looks), _own(own)]), record.grade)
    return levels


def _which(record: Record, latency: Latency) -> _Which:
    """Return at whose level a measurement is told: its companion's, or its own."""
    return (_group_of(record), record.backend_version, latency.companion or record.key[0])


def _at_rest(times: Sequence[float]) -> float:
    """Return the middle of the times at which nobody else had the core."""
    rest = float(np.quantile(times, _FAST_SHARE))
    return float(np.median([time for time in times if time <= (1 + CORE_LIMIT) * rest]))


def _own(latency: Latency) -> float:
    """Return what a companion was measured to take, however it has been told since."""
    return float(np.median(trimmed(np.array(latency.samples_ms))))


def told_at(record: Record, levels: Mapping[_Which, Level]) -> Record:
    """Return a measurement as it is told where companions take so long."""
    latency = record.latency
    if latency is None:
        return record
    level = levels.get(_which(record, latency))
    if level is None:
        return record
    share = level.ms / (latency.median_ms if latency.companion is None else _told_level(latency))
    if abs(share - 1) < _SAME:
        return record
    told = _retold(latency, share)
    rate = record.throughput_per_s
    changed = replace(record, latency=told, throughput_per_s=None if rate is None else rate / share)
    if latency.companion is None:
        return changed
    letter, reasons = graded_again(record, told, companion=level.grade)
    return replace(changed, grade=letter, reasons=reasons)


def _preferred(records: Sequence[Record]) -> Record:
    """Return the companion of the most measurements, else the one nearest to their middle.

    What neighbours cost the smallest models is not what they cost the others.
    """
    served = Counter(record.latency.companion for record in records if record.latency is not None)
    times = {record.key: record.latency.median_ms for record in records if record.latency}
    middle = float(np.median(list(times.values())))
    return min(
        records,
        key=lambda record: (
            -served[record.key[0]],
            abs(np.log(times.get(record.key, np.inf) / middle)),
        ),
    )


def _told_level(latency: Latency) -> float:
    """Return the latency of the companion that a measurement was told at."""
    assert latency.reference_ms is not None
    assert latency.reference_drift is not None
    return latency.reference_ms / (1 + latency.reference_drift)


def _retold(latency: Latency, share: float) -> Latency:
    drift = latency.reference_drift
    if drift is not None and latency.companion is not None:  # a companion's own is no level
        drift = (1 + drift) / share - 1
    return replace(
        latency,
        median_ms=latency.median_ms * share,
        p90_ms=latency.p90_ms * share,
        p99_ms=latency.p99_ms * share,
        scale=latency.scale / share,
        reference_drift=drift,
    )
