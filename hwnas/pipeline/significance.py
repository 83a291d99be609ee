"""Whether a difference is chance: 95 % intervals that need neither scipy nor normality."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, sqrt

import numpy as np
from numpy.typing import NDArray

Z = 1.959964  # two-sided 95 % of a normal distribution
_ONE_SIDED = 1.644854  # 95 % of it lie below
_TAIL = 0.025
_FEWEST = 6  # fewer paired values cannot exclude chance at 95 %, whatever they are
_EXACT_UP_TO = 60
_HOLD = 0.9  # of the intervals of predictors
_UNLIKELY = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate and its 95 % interval; the ends are None where there is too little to tell."""

    centre: float
    low: float | None = None
    high: float | None = None

    def widened(self, half_width: float) -> "Interval":
        """Return the interval with an independent error of this half width added."""
        if self.low is None or self.high is None:
            return self
        return Interval(
            centre=self.centre,
            low=self.centre - sqrt((self.centre - self.low) ** 2 + half_width**2),
            high=self.centre + sqrt((self.high - self.centre) ** 2 + half_width**2),
        )

    def stretched(self, bias: float) -> "Interval":
        """Return the interval with an unknown bias of at most this size allowed for."""
        if self.low is None or self.high is None:
            return self
        return Interval(centre=self.centre, low=self.low - bias, high=self.high + bias)


def signed_rank(differences: Sequence[float]) -> Interval:
    """Return the typical difference of pairs: Hodges-Lehmann, interval of Wilcoxon's signed ranks.

    Assumes independent pairs whose differences are spread symmetrically; outliers do little.
    """
    values = np.asarray(differences, dtype=np.float64)
    n = len(values)
    if n == 0:
        raise ValueError("no pairs")
    rows, columns = np.triu_indices(n)
    means = np.sort((values[rows] + values[columns]) / 2)
    centre = float(np.median(means))
    if n < _FEWEST:
        return Interval(centre=centre)
    rank = _critical_rank(n)
    return Interval(centre=centre, low=float(means[rank]), high=float(means[-1 - rank]))


def shares_difference(first: tuple[float, int], second: tuple[float, int]) -> Interval:
    """Return second - first for two independent shares, each with its count (Newcombe's interval).

    For shares of the same images it is wider than it need be: what both miss is in it twice.
    """
    from hwnas.export.validate_accuracy import wilson

    (p, n), (q, m) = first, second
    low_p, high_p = wilson(round(p * n), n)
    low_q, high_q = wilson(round(q * m), m)
    return Interval(
        centre=q - p,
        low=q - p - sqrt((q - low_q) ** 2 + (high_p - p) ** 2),
        high=q - p + sqrt((high_q - q) ** 2 + (p - low_p) ** 2),
    )


def most_lost(lost: int, gained: int, *, pairs: int) -> float:
    """Return what a share loses at most, with 95 % confidence, where of paired cases these changed.

    The upper end of Agresti and Min's interval for paired shares (2005): half a case is added to
    each of the four kinds, so that cases without any change prove little, too, where they are few.
    """
    total = pairs + 2
    share = (lost - gained) / total
    variance = ((lost + gained + 1) / total - share**2) / total
    return share + _ONE_SIDED * sqrt(variance)


def _critical_rank(n: int) -> int:
    """Return how many of the sorted pairwise means lie below the interval's lower end."""
    if n > _EXACT_UP_TO:
        spread = sqrt(n * (n + 1) * (2 * n + 1) / 24)
        return int(n * (n + 1) / 4 - 0.5 - Z * spread)
    below = np.cumsum(_rank_sum_chances(n))
    return int(np.searchsorted(below, _TAIL, side="right")) - 1


def _rank_sum_chances(n: int) -> NDArray[np.float64]:
    """Return the chance of each sum of the ranks 1..n, each taken with probability 1/2."""
    chances = np.zeros(n * (n + 1) // 2 + 1)
    chances[0] = 1.0
    for rank in range(1, n + 1):
        moved = np.zeros_like(chances)
        moved[rank:] = chances[:-rank]
        chances = (chances + moved) / 2
    return chances


def too_few_hold(held: int, tried: int) -> bool:
    """Return whether `held` of so many 90 % intervals that held the truth are no bad luck."""
    miss = 1.0 - _HOLD
    chance = sum(comb(tried, k) * _HOLD**k * miss ** (tried - k) for k in range(held + 1))
    return chance < _UNLIKELY
