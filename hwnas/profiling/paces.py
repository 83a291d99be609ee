"""The pace of a device: what the reference model takes on it, by which sessions are compared.

A session that knows the pace of an earlier one on the same device undoes the difference, and sees
from its first look on that others slow the machine down.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.profiling.machine import device
from hwnas.profiling.profiles import Profile, read_profile
from hwnas.profiling.records import SOUND, Pages, Privilege, Record, Settings

# Which measurements share a pace: by backend, threads and pages.
PaceKey = tuple[str, int, Pages]


def pace_key(backend: str, settings: Settings) -> PaceKey:
    """Return which measurements this one shares its pace with."""
    return (backend, settings.threads, settings.pages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """What the reference model took, in the session whose speed measurements are told at.

    Another version of a runtime has another speed, which is no change of the machine.
    """

    key: PaceKey
    version: str
    privilege: Privilege
    reference_ms: float


def pace_of(record: Record) -> Pace | None:
    """Return the pace that a measurement is told at, None if the reference was not timed."""
    latency = record.latency
    if latency is None or latency.companion is not None or not latency.reference_ms:
        return None
    return Pace(
        key=pace_key(record.backend, record.settings),
        version=record.backend_version,
        privilege=latency.privilege,
        # Undo the drift: what is wanted is the pace of the first session.
        reference_ms=latency.reference_ms / (1 + (latency.reference_drift or 0.0)),
    )


def paces_of(profile: Profile) -> tuple[Pace, ...]:
    """Return the paces of a profile's sound measurements, the first ones first."""
    records = sorted(profile.measured(), key=lambda record: record.measured_at)
    paces = (pace_of(record) for record in records if record.grade in SOUND)
    return tuple(dict.fromkeys(pace for pace in paces if pace is not None))


def profiles_here(paths: Iterable[Path]) -> tuple[Profile, ...]:
    """Return those of the profiles that are of this device."""
    here = device().fingerprint
    return tuple(one for one in map(read_profile, paths) if one.header.device.fingerprint == here)


def paces_here(profiles: Iterable[Path]) -> tuple[Pace, ...]:
    """Return the paces of those profiles that are of this device."""
    return tuple(pace for profile in profiles_here(profiles) for pace in paces_of(profile))


def baselines(
    paces: Iterable[Pace], privilege: Privilege, versions: Mapping[str, str]
) -> dict[PaceKey, float]:
    """Return what the reference took at first under this privilege, with these runtimes."""
    found: dict[PaceKey, float] = {}
    for pace in paces:
        if pace.privilege == privilege and versions.get(pace.key[0]) == pace.version:
            found.setdefault(pace.key, pace.reference_ms)
    return found
