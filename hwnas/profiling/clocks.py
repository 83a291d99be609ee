"""The clocks of this machine, and what they say of one run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from hwnas.profiling.records import Clock

_LOOKS, _LOOK_S = 5, 0.05


@cache
def thread_clock_step() -> float:
    """Return the steps in which this thread's processor time is counted, in seconds.

    They are looked at: some sandboxes promise nanoseconds and count ten milliseconds.
    """
    told = time.get_clock_info("thread_time").resolution
    return max(told, min(_step(time.thread_time, time.perf_counter) for _ in range(_LOOKS)))


def _step(clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Return by how much a clock moves at once, at least; a long time if it stands still."""
    until, before = wall() + _LOOK_S, clock()
    while (now := clock()) == before:
        if wall() > until:
            return _LOOK_S
    return now - before


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Sources of seconds: the wall, this thread's and this process's processor time.

    Some systems count processor time in steps of milliseconds; there it is of no use.
    """

    wall: Callable[[], float] = time.perf_counter
    thread: Callable[[], float] = time.thread_time
    process: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    thread_step_s: float = field(default_factory=thread_clock_step)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One run, in ms; `thread` is None where this thread did not do the work."""

    wall: float
    thread: float | None
    device: float | None

    def by(self, clock: Clock) -> float:
        """Return the time on one of the clocks."""
        value = {"wall": self.wall, "thread_cpu": self.thread, "device": self.device}[clock]
        return self.wall if value is None else value
