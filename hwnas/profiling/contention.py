"""Whether others use the memory system now, which slows a model down unseen.

Neighbours on a host share its last-level cache and its memory with this machine. They cost a vision
transformer up to a quarter of its speed for seconds at a time, while a model that fits into the
caches of a core, as the reference model does, notices nothing, and no counter of this machine
shows it. A pass over an array larger than such caches does.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

CONTENTION_LIMIT = 0.02
_ELEMENTS = 6_000_000  # 24 MB
_WARM_UP = 6  # what ran before has filled the caches; the last-level one takes its time to learn
_PASSES = 7
_LEARNING = 20
_FLOOR_SHARE = 0.1
_KEPT = 1000


@dataclass(slots=True)
class MemoryProbe:
    """Says how slow the memory is, compared with the fastest tenth of what it has seen.

    To be kept for as long as one measures: a new one first has to learn what rest is. `cost_s` is
    how long the last look at the memory took.
    """

    cost_s: float = 0.0
    _array: NDArray[np.float32] | None = None
    _levels: list[float] = field(default_factory=list)

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
        self._levels = [*self._levels[1 - _KEPT :], level]
        return level

    def excess(self, seconds: Callable[[], float]) -> float:
        """Return by which share the memory is slower now than at rest."""
        while len(self._levels) < _LEARNING:
            self.level(seconds)
        return max(0.0, self.level(seconds) / self.rest_ms - 1)

    @property
    def rest_ms(self) -> float:
        """The time of a pass at rest, as far as is known."""
        return float(np.quantile(self._levels, _FLOOR_SHARE))
