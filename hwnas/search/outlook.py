"""What is believed about one measured objective, and what a new measurement would gain.

An objective is modelled as it is, or as the logarithm of what it is above an offset, whichever
explains the measurements better. Values far on the bad side (a failed training) are pulled in
before either: that they are bad is all that matters, and where they lie would bend the rest. Were
it done on each scale by itself, the scale that flattens most of the values would seem to explain
them best.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hwnas.search.arrays import Floats
from hwnas.search.encoder import Table
from hwnas.search.surrogate import Kernel, Process, fit
from hwnas.search.volume import free_boxes, minimal

OFFSETS = (0.02, 0.1, 0.4, 1.5)  # of the logarithm, below the best value, in spreads
MARGIN = 0.05  # of the measured range: how far the reference is beyond the worst value
FENCE = 3.0  # interquartile ranges above the upper quartile, to which worse values are pulled in


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """From an objective to the target of a process and back; `offset` None means no logarithm."""

    offset: float | None
    mean: float
    spread: float

    def value(self, target: Floats) -> Floats:
        """Return the objective of a target."""
        straight = self.mean + self.spread * target
        return straight if self.offset is None else np.exp(straight) + self.offset


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A fitted objective."""

    scale: Scale
    process: Process


def model(kernel: Kernel, table: Table, values: Floats) -> Model:
    """Return the most probable model of `values`; those that are not finite count as worst."""
    finite = np.isfinite(values)
    values = _fenced(np.where(finite, values, values[finite].max() if finite.any() else 0.0))
    spread = _good_spread(values)
    best = float(values.min())
    candidates = [_modelled(kernel, table, values, None)]
    if spread > 0:
        candidates += [_modelled(kernel, table, values, best - share * spread) for share in OFFSETS]
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _modelled(
    kernel: Kernel, table: Table, values: Floats, offset: float | None
) -> tuple[float, Model]:
    """Return (negative log evidence in the units of the values, model)."""
    straight = values if offset is None else np.log(values - offset)
    jacobian = 0.0 if offset is None else float(straight.sum())
    mean, spread = float(straight.mean()), float(straight.std())
    if spread <= 1e-12 * max(1.0, abs(mean)):
        spread = 1.0
    process = fit(kernel, table, (straight - mean) / spread)
    evidence = process.loss + len(values) * math.log(spread) + jacobian
    return evidence, Model(scale=Scale(offset=offset, mean=mean, spread=spread), process=process)


def _fenced(values: Floats) -> Floats:
    low, high = np.quantile(values, (0.25, 0.75))
    return np.minimum(values, high + FENCE * (high - low)) if high > low else values


def _good_spread(values: Floats) -> float:
    """Return how far the good values reach below the median."""
    spread = float(np.median(values) - np.quantile(values, 0.1))
    return spread if spread > 0 else float(values.std())


class Belief:
    """Mean and variance of one objective for some architectures, sharpened by what is assumed."""

    def __init__(self, model: Model, table: Table) -> None:
        self._model, self._table = model, table
        process = model.process
        self._mean, self._half = process.reach(table)
        variance = process.kernel.variances(process.parameters, table)
        self._variance = np.maximum(variance - (self._half**2).sum(axis=0), 1e-10)

    def expected(self, row: int) -> float:
        """Return the most probable value of a row."""
        return float(self._model.scale.value(self._mean[row]))

    def assume(self, row: int) -> None:
        """Take the row as measured with its expected value: means stay, variances shrink."""
        process = self._model.process
        here = self._table.rows(slice(row, row + 1))
        prior, _ = process.kernel(process.parameters, here, self._table)
        covariance = prior[0] - self._half[:, row] @ self._half
        learned = covariance / math.sqrt(self._variance[row] + process.noise)
        self._half = np.vstack([self._half, learned])
        self._variance = np.maximum(self._variance - learned**2, 1e-10)

    def below(self, thresholds: Floats) -> Floats:
        """Return E[max(0, threshold - value)], (thresholds, rows); 0 for minus infinity."""
        from scipy.special import ndtr

        scale = self._model.scale
        mean = scale.mean + scale.spread * self._mean
        spread = scale.spread * np.sqrt(self._variance)
        result = np.zeros((len(thresholds), len(mean)))
        for line, threshold in zip(result, thresholds.tolist(), strict=True):
            room = threshold - (scale.offset or 0.0)
            if scale.offset is None and math.isfinite(room):
                apart = (room - mean) / spread
                density = np.exp(-0.5 * apart**2) / math.sqrt(2.0 * math.pi)
                line[:] = (room - mean) * ndtr(apart) + spread * density
            elif scale.offset is not None and room > 0:
                apart = (math.log(room) - mean) / spread
                expectation = np.exp(mean + 0.5 * spread**2)
                line[:] = room * ndtr(apart) - expectation * ndtr(apart - spread)
        return np.maximum(result, 0.0, out=result)


def optimistic(model: Model, table: Table, *, deviations: float) -> Floats:
    """Return the value so many standard deviations on the good side of the mean."""
    mean, variance = model.process.predict(table)
    return model.scale.value(mean - deviations * np.sqrt(variance))


def expected(model: Model, table: Table) -> Floats:
    """Return the most probable value of each row."""
    return model.scale.value(model.process.mean(table))


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The non-dominated values so far and the reference that bounds the hypervolume."""

    values: Floats
    reference: Floats

    @classmethod
    def of(cls, values: Floats) -> Self:
        """Return the frontier of measured values, bounded just beyond the worst of each."""
        finite = values[np.isfinite(values).all(axis=1)]
        if not len(finite):
            return cls(values=finite, reference=np.full(values.shape[1], np.inf))
        worst, best = finite.max(axis=0), finite.min(axis=0)
        reference = worst + np.maximum(MARGIN * (worst - best), 1e-12 * np.abs(worst) + 1e-300)
        return cls(values=minimal(finite), reference=reference)


def expected_gain(beliefs: Sequence[Belief], frontier: Frontier) -> Floats:
    """Return the expected gain in hypervolume of measuring each row, objectives independent.

    The expectation over each free box is a product over the objectives (Yang et al., "Efficient
    computation of expected hypervolume improvement using box decomposition algorithms", 2019).
    """
    boxes = free_boxes(frontier.values, frontier.reference)
    total: Floats | float = 1.0
    for objective, belief in enumerate(beliefs):
        low, high = boxes.low[:, objective], boxes.high[:, objective]
        ends, where = np.unique(np.concatenate([low, high]), return_inverse=True)
        below = belief.below(ends)
        total = total * (below[where[len(low) :]] - below[where[: len(low)]])
    return np.asarray(np.sum(total, axis=0))


def choose(beliefs: Sequence[Belief], frontier: Frontier, *, count: int) -> NDArray[np.int64]:
    """Return the rows of a batch: the best gain, again and again, each taken as measured."""
    chosen: list[int] = []
    for _ in range(count):
        gain = expected_gain(beliefs, frontier)
        gain[chosen] = -1.0
        row = int(np.argmax(gain))
        chosen.append(row)
        point = [belief.expected(row) for belief in beliefs]
        for belief in beliefs:
            belief.assume(row)
        values = np.vstack([frontier.values, point])
        frontier = Frontier(values=minimal(values), reference=frontier.reference)
    return np.array(chosen, np.int64)
