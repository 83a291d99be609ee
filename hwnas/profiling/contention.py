"""Whether others use the memory or the core now, which slows a model down unseen.

Neighbours on a host share its last-level cache and its memory with this machine. They cost a vision
transformer up to a quarter of its speed for seconds at a time, while a model that fits into the
caches of a core, as the reference model does, notices nothing, and no counter of this machine
shows it. A pass over an array larger than such caches does.

On some hosts they also get the other hardware thread of this machine's core, or its frequency.
Then everything takes up to twice as long, without any time being stolen: that the reference model
shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CONTENTION_LIMIT = 0.02
# More than what a processor's clock drifts by within minutes, of which there is no end to wait for.
CORE_LIMIT = 0.1
_ELEMENTS = 6_000_000  # 24 MB
_WARM_UP = 6  # what ran before has filled the caches; the last-level one takes its time to learn
_PASSES = 7
_LEARNING = 20
_FLOOR_SHARE = 0.1
_KEPT = 300  # about 20 s of measuring: who stays for longer is not waited for


@dataclass(slots=True)
class Levels:
    """How long something took that only others slow down; its fastest tenth is taken for rest.

    To be kept for as long as one measures: new ones first have to learn what rest is.
    """

    _kept: list[float] = field(default_factory=list)

    def __len__(self) -> int:
        """Return how many are known."""
        return len(self._kept)

    def expect(self, level: float) -> None:
        """Take what is known from an earlier session for rest, as long as new ones are few."""
        if not self._kept:
            self._kept = [level] * round(_FLOOR_SHARE * _KEPT)

    def add(self, level: float) -> None:
        """Learn one more; the oldest are forgotten."""
        self._kept = [*self._kept[1 - _KEPT :], level]

    @property
    def rest(self) -> float:
        """The level at rest, as far as is known."""
        return float(np.quantile(self._kept, _FLOOR_SHARE))

    def excess(self) -> float:
        """Return by which share the newest is above rest."""
        return max(0.0, self._kept[-1] / self.rest - 1)


@dataclass(slots=True)
class MemoryProbe:
    """Says how slow the memory is. `cost_s` is how long the last look at it took."""

    cost_s: float = 0.0
    _array: NDArray[np.float32] | None = None
    _levels: Levels = field(default_factory=Levels)

    def level(self, seconds: Callable[[], float]) -> float:
        """Return the typical time of a pass in ms, by a clock."""
        if self._array is None:
            self._array = np.ones(_ELEMENTS, np.float32)
        times = []
        for _ in range(_WARM_UP + _PASSES):
            start = seconds()
            self._array.sum()
            times.append((seconds() - start) * 1e3)
        self.cost_s = sum(times) / 1e3
        level = float(np.median(times[_WARM_UP:]))
        self._levels.add(level)
        return level

    def excess(self, seconds: Callable[[], float]) -> float:
        """Return by which share the memory is slower now than at rest."""
        while len(self._levels) < _LEARNING:
            self.level(seconds)
        self.level(seconds)
        return self._levels.excess()

    @property
    def rest_ms(self) -> float:
        """The time of a pass at rest, as far as is known."""
        return self._levels.rest
