"""Energy from the processor's own counters (RAPL), where they can be read."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hwnas.profiling.measure import Run

_POWERCAP = Path("/sys/class/powercap")


@dataclass(frozen=True, kw_only=True, slots=True)
class Counter:
    """One package's energy counter, in microjoules, and where it wraps around."""

    path: Path
    range_uj: int

    def read(self) -> int:
        """Return the counter's value."""
        return int(self.path.read_text())


def counters(root: Path = _POWERCAP) -> list[Counter]:
    """Return the counters of all processor packages that can be read; none is usual."""
    found = []
    for folder in _packages(root):
        counter = folder / "energy_uj"
        try:
            int(counter.read_text())
            span = int((folder / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
        found.append(Counter(path=counter, range_uj=span))
    return found


def counters_problem(root: Path = _POWERCAP) -> str | None:
    """Return why energy cannot be measured here, None if it can."""
    if counters(root):
        return None
    if any((folder / "energy_uj").exists() for folder in _packages(root)):
        return f"this user may not read the processor's counters ({root}/*/energy_uj)"
    return f"the system shows no counters of the processor ({root})"


def _packages(root: Path) -> list[Path]:
    """Return the folders of whole processors: not of their parts, nor of a platform around them."""
    folders = [*sorted(root.glob("intel-rapl:[0-9]")), *sorted(root.glob("intel-rapl:[0-9][0-9]"))]
    return [folder for folder in folders if _name(folder).startswith("package")]


def _name(folder: Path) -> str:
    try:
        return (folder / "name").read_text()
    except OSError:
        return ""


def energy_per_run_mj(
    run: Run,
    *,
    seconds: float = 0.5,
    root: Path = _POWERCAP,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return the millijoules of the whole processor per run, None where they are not counted.

    What the processor draws when idle is in it, and so is any other work.
    """
    found = counters(root)
    if not found:
        return None
    try:
        before = [counter.read() for counter in found]
        start, runs = clock(), 0
        while clock() - start < seconds or runs == 0:
            run()
            runs += 1
        after = [counter.read() for counter in found]
    except (OSError, ValueError):  # a counter that went away
        return None
    spent = [
        (now - then) % (counter.range_uj + 1)
        for counter, then, now in zip(found, before, after, strict=True)
    ]
    return sum(spent) / runs / 1e3
