"""Whether a profile that can be read agrees with itself and can be trusted."""

import numpy as np

from hwnas.errors import HwnasError
from hwnas.profiling.profiles import Profile
from hwnas.profiling.records import GRADES, Record, arch_digest
from hwnas.profiling.sampling import space_of
from hwnas.profiling.statistics import trimmed
from hwnas.spaces import is_known

_ROUNDING = 1e-3


def check_profile(profile: Profile) -> list[str]:
    """Return what looks wrong across a profile that was read, in words; empty when sound."""
    if not profile.records:
        return ["holds no measurements"]
    problems = []
    for record in profile.records.values():
        name = f"{arch_digest(record.arch)[:12]} on {record.backend}"
        found = [*_arch_problems(record), *_figure_problems(record)]
        problems += [f"{name}: {problem}" for problem in found]
    graded_low = [record for record in profile.measured() if record.grade == GRADES[-1]]
    if profile.measured() and len(graded_low) > len(profile.measured()) / 2:
        problems.append(f"{len(graded_low)} of {len(profile.measured())} records have grade D")
    if len(profile.failed()) > len(profile.records) / 10:
        problems.append(f"{len(profile.failed())} of {len(profile.records)} measurements failed")
    return problems


def _arch_problems(record: Record) -> list[str]:
    """Return what is wrong with an architecture, as far as its space is known here."""
    if not isinstance(record.arch.get("genes"), dict):
        return ["its architecture has no genes"]
    if not is_known(record.arch["space"]):
        return []
    try:
        space_of(record.arch).arch(record.arch["genes"])
    except HwnasError as error:
        return [error.message]
    return []


def _figure_problems(record: Record) -> list[str]:
    """Return which figures do not follow from the samples, or cannot be."""
    problems = []
    memory, latency, settings = record.memory, record.latency, record.settings
    if memory is not None and not 0 < memory.before_mb <= memory.peak_mb:
        problems.append(f"peak_mb is {memory.peak_mb}, before_mb {memory.before_mb}")
    if latency is None:
        return problems
    samples = np.array(latency.samples_ms)
    middle = float(np.median(trimmed(samples)))
    if middle == 0:
        problems.append("takes no time at all")
    again = {
        "median_ms": middle / latency.scale,
        "p90_ms": float(np.percentile(samples, 90)) / latency.scale,
        "p99_ms": float(np.percentile(samples, 99)) / latency.scale,
    }
    for name, value in again.items():
        stated = getattr(latency, name)
        if abs(value - stated) > _ROUNDING * stated + 1e-4:
            problems.append(f"{name} is {stated}, its samples give {value:.5f}")
    rate = record.throughput_per_s
    if rate is not None:
        expected = settings.batch * 1e3 / latency.median_ms
        if rate <= 0 or (settings.workers == 1 and abs(rate / expected - 1) > _ROUNDING):
            problems.append(f"throughput_per_s is {rate}, its median gives {expected:.1f}")
    return problems
