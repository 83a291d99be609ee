"""Bounds on quantities that are only known with some probability.

An architecture is feasible when each bound is met with the probability that is asked for. The
probability comes from the ends of an estimate's interval, each side on its own: the distribution
is taken to be normal with a spread of its own above and below the value.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hwnas.errors import UsageError
from hwnas.search.arrays import Floats


@dataclass(frozen=True, kw_only=True, slots=True)
class Constraint:
    """`quantity` is at most `most` and at least `least`, each with probability `confidence`."""

    quantity: str
    most: float = math.inf
    least: float = -math.inf
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if math.isnan(self.most) or math.isnan(self.least) or self.least > self.most:
            raise UsageError(f"{self.quantity}: the range {self.least:g}..{self.most:g} is empty")
        if not 0.5 <= self.confidence < 1.0:
            raise UsageError(
                f"confidence {self.confidence:g} for {self.quantity}; accepted: 0.5 to below 1"
            )

    def ends(self, mean: Floats, low: Floats, high: Floats, *, level: float) -> tuple[Floats, ...]:
        """Return the values that `confidence` of the truths are above, and below."""
        widening = NormalDist().inv_cdf(self.confidence) / NormalDist().inv_cdf((1 + level) / 2)
        return mean - widening * (mean - low), mean + widening * (high - mean)

    def violation(self, mean: Floats, low: Floats, high: Floats, *, level: float) -> Floats:
        """Return by how much each row misses, relative to the bound; 0 where it is feasible."""
        lower, upper = self.ends(mean, low, high, level=level)
        missed = np.zeros(len(mean))
        for miss, bound in ((upper - self.most, self.most), (self.least - lower, self.least)):
            if math.isfinite(bound):
                missed += np.maximum(miss, 0.0) / max(abs(bound), 1e-12)
        return missed

    def probability(self, mean: Floats, low: Floats, high: Floats, *, level: float) -> Floats:
        """Return the probability that each row meets both bounds."""
        return np.asarray(
            probability_at_most(self.most, mean, low, high, level=level)
            - probability_at_most(self.least, mean, low, high, level=level)
            + (low == high) * (mean == self.least)
        )


def upper_limits(constraints: Iterable[Constraint]) -> dict[str, float]:
    """Return the most that constraints allow of each quantity that they bound above."""
    limits: dict[str, float] = {}
    for constraint in constraints:
        if math.isfinite(constraint.most):
            least = limits.get(constraint.quantity, math.inf)
            limits[constraint.quantity] = float(min(least, constraint.most))
    return limits


def probability_at_most(
    limit: float, mean: Floats, low: Floats, high: Floats, *, level: float
) -> Floats:
    """Return the probability that the true value is at most `limit`."""
    usual = NormalDist().inv_cdf((1 + level) / 2)
    side = np.where(limit >= mean, high - mean, mean - low) / usual
    certain = np.where(mean <= limit, 1.0, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = (limit - mean) / side
    return np.where(side > 0, _normal(np.where(side > 0, apart, 0.0)), certain)


def _normal(apart: Floats) -> Floats:
    """Return the standard normal distribution function, within 1e-7 (Abramowitz-Stegun 7.1.26)."""
    x = np.abs(apart) / math.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    series = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
    tail = sum(factor * t**power for power, factor in enumerate(series, start=1)) * np.exp(-x * x)
    return np.asarray(np.where(apart >= 0, 1.0 - 0.5 * tail, 0.5 * tail))
