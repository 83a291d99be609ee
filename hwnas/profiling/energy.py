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
    for folder in sorted(root.glob("intel-rapl:[0-9]")) + sorted(
        root.glob("intel-rapl:[0-9][0-9]")
    ):
        counter = folder / "energy_uj"
        try:
            int(counter.read_text())
            span = int((folder / "max_energy_range_uj").read_text())
        except (OSError, ValueError):
            continue
        found.append(Counter(path=counter, range_uj=span))
    return found


def energy_per_run_mj(
    run: Run,
    *,
    seconds: float = 0.5,
    root: Path = _POWERCAP,
    clock: Callable[[], float] = time.perf_counter,
) -> float | None:
    """Return the millijoules of the whole processor per run, None without a counter.

    What the processor draws when idle is in it, and so is any other work.
    """
    found = counters(root)
    if not found:
        return None
    before = [counter.read() for counter in found]
    start, runs = clock(), 0
    while clock() - start < seconds or runs == 0:
        run()
        runs += 1
    spent = [
        (counter.read() - start_uj) % (counter.range_uj + 1)
        for counter, start_uj in zip(found, before, strict=True)
    ]
    return sum(spent) / runs / 1e3
