"""The default predictor: a linear base, forests, and weights from what each had not seen.

Members: Student-t processes on the linear and the logarithmic scale, one with distances between
architectures, extremely randomised trees on costs and genes, and a random forest on what the
better base leaves over (its cross-fitted residual). Weights are non-negative, sum to one (but
for a small common correction), and minimise absolute relative errors out of fold. Intervals come
from the same out-of-fold errors, scaled by how uncertain a process is of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hwnas.predictors.columns import Columns, FloatArray, trees_see
from hwnas.predictors.forest import Float32Array, Forest, Walker, grow_extra, grow_random
from hwnas.predictors.intervals import Errors
from hwnas.predictors.posterior import Known, Posterior
from hwnas.predictors.process import ANY, Process, Recipe, fit_process
from hwnas.predictors.threads import one_blas_thread
from hwnas.predictors.weights import simplex_weights

ALWAYS = ("costs", "choices", "counts")
RECIPES = {
    "linear": Recipe(linear=ALWAYS),
    "logarithmic": Recipe(linear=ALWAYS, logarithmic=True),
    "distances": Recipe(
        linear=ALWAYS,
        extra=("logs", "trends"),
        radial=("costs", "genes", "choices", "counts"),
        tails=ANY,
    ),
}
SURE = "distances"  # the process that says how uncertain a row is
MOST_KNOWN = 200  # rows on which that is conditioned
# Rows up to which intervals follow it, at most MOST_KNOWN: with more they cover as much without,
# and a search is several times as fast.
FEW_KNOWN = 100
TREES = 32
REPAIR_TREES = 16
PIECE = 1024  # rows predicted at once: larger pieces fall out of the cache
BEYOND = (0.2, 5.0)  # of the least and the largest measured value
BELIEF = 100  # rows' worth of belief that the mixture is not biased
FEW_ROWS = 60  # below: ten folds instead of five


class Mixture(NamedTuple):
    """Prediction of each row, and the spread on which the width of its interval depends."""

    value: FloatArray
    spread: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Stack:
    """Fitted members and their weights; `names` is the order of `weights`.

    `limits` are the least and the largest value that a process may answer far outside of what was
    measured. `known` are measured rows; predictors of earlier versions have none.
    """

    columns: Columns
    processes: dict[str, Process]
    base: str
    extra: Forest
    repair: Forest
    weights: FloatArray
    errors: Errors
    limits: FloatArray
    known: Known | None

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the members, in the order of their weights."""
        return (*self.processes, "extra", "repair")


class Runner:
    """A stack made ready to predict: the forests are compiled once."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self._extra = Walker(stack.extra)
        self._repair = Walker(stack.repair)
        self._weights = dict(zip(stack.names, stack.weights.tolist(), strict=True))

    def __call__(self, genes: FloatArray, costs: FloatArray) -> Mixture:
        """Return value and spread of these rows, a cache-sized piece at a time."""
        value, spread = np.empty(len(genes)), np.empty(len(genes))
        for start in range(0, len(genes), PIECE):
            at = slice(start, start + PIECE)
            value[at], spread[at] = self._piece(genes[at], costs[at])
        return Mixture(value, spread)

    @cached_property
    def _posterior(self) -> Posterior | None:
        if self.stack.known is None:
            return None
        known = self.stack.columns.blocks(*self.stack.known)
        return Posterior.given(self.stack.processes[SURE], known)

    def in_range(self, genes: FloatArray, costs: FloatArray) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what was measured, and is like it."""
        inside = self.stack.columns.in_range(genes, costs)
        if self._posterior is not None:
            for start in range(0, len(genes), PIECE):
                at = slice(start, start + PIECE)
                blocks = self.stack.columns.blocks(genes[at], costs[at])
                inside[at] &= ~self._posterior.far(blocks)
        return inside

    def _piece(self, genes: FloatArray, costs: FloatArray) -> Mixture:
        stack, weights = self.stack, self._weights
        blocks = stack.columns.blocks(genes, costs)
        rows = trees_see(blocks)
        total, spread = np.zeros(len(genes)), np.ones(len(genes))
        if weights["extra"] or stack.errors.power[0]:
            votes = self._extra(rows)
            total += weights["extra"] * np.exp(votes.mean)
            spread = votes.spread
        if stack.errors.deviation[0] and self._posterior is not None:
            spread = np.sqrt(1.0 + self._posterior.left(blocks))
        for name, process in stack.processes.items():
            repaired = weights["repair"] if name == stack.base else 0.0
            if not weights[name] and not repaired:
                continue
            value = np.clip(process.predict(blocks), *stack.limits)
            total += weights[name] * value
            if repaired:
                total += repaired * value * np.exp(self._repair(rows).mean)
        return Mixture(total, spread)


def fit_stack(genes: FloatArray, costs: FloatArray, y: FloatArray, *, seed: int) -> Stack:
    """Return the stack fitted on positive targets `y`."""
    with one_blas_thread():
        return _fitted(genes, costs, y, seed=seed)


def _fitted(genes: FloatArray, costs: FloatArray, y: FloatArray, *, seed: int) -> Stack:
    columns = Columns.learn(genes, costs)
    blocks = columns.blocks(genes, costs)
    folds = fold_numbers(len(y), seed=seed)
    processes: dict[str, Process] = {}
    held: dict[str, FloatArray] = {}
    limits = np.array([BEYOND[0] * y.min(), BEYOND[1] * y.max()])
    for name, recipe in RECIPES.items():
        processes[name], guess = fit_process(recipe, blocks, y, folds, seed=seed)
        held[name] = np.clip(guess, *limits)
    base = min(held, key=lambda name: float(np.abs(held[name] / y - 1.0).mean()))
    rows = trees_see(blocks)
    residual = np.log(y / held[base])
    tame = np.exp(clipped(residual)) * held[base]
    extra, votes = crossed(_extra_grower(rows, np.log(tame), seed), rows, folds)
    repair, fixes = crossed(_repair_grower(rows, clipped(residual), seed), rows, folds)
    held["extra"] = np.exp(votes)
    held["repair"] = held[base] * np.exp(fixes)
    table = np.stack(list(held.values()), axis=1)
    weights = simplex_weights(table / y[:, None])
    weights = weights * centred(table @ weights / y)
    keep = np.sort(np.random.default_rng(seed).permutation(len(y))[:MOST_KNOWN])
    known = Known(genes[keep], costs[keep])
    left = None
    if len(y) <= FEW_KNOWN:
        left = Posterior.given(processes[SURE], columns.blocks(*known)).left_out()
    errors = Errors.learn(
        y / (table @ weights) - 1.0, None if left is None else np.sqrt(1.0 + left)
    )
    return Stack(
        columns=columns,
        processes=processes,
        base=base,
        extra=extra,
        repair=repair,
        weights=weights,
        errors=errors,
        limits=limits,
        known=known,
    )


def centred(ratio: FloatArray) -> float:
    """Return the factor that makes `ratio` (prediction / truth) nearest to one, drawn to one."""
    order = np.argsort(ratio)
    share = np.cumsum(ratio[order])
    factor = 1.0 / float(ratio[order][np.searchsorted(share, share[-1] / 2.0)])
    return 1.0 + (factor - 1.0) * len(ratio) / (len(ratio) + BELIEF)


Grower = Callable[[NDArray[np.int64]], Forest]


def _extra_grower(rows: Float32Array, target: FloatArray, seed: int) -> Grower:
    return lambda at: grow_extra(rows[at], target[at], trees=TREES, leaf=2, seed=seed)


def _repair_grower(rows: Float32Array, target: FloatArray, seed: int) -> Grower:
    return lambda at: grow_random(
        rows[at], target[at], trees=REPAIR_TREES, leaf=5, seed=seed, share=0.5
    )


def crossed(
    grow: Grower, rows: Float32Array, folds: NDArray[np.int64]
) -> tuple[Forest, FloatArray]:
    """Return a forest on all rows, and what forests that had not seen each row say of it."""
    mean = np.empty(len(rows))
    for fold in range(int(folds.max()) + 1):
        out = folds == fold
        mean[out] = grow(np.flatnonzero(~out)).leaves(rows[out]).mean(axis=1)
    return grow(np.arange(len(rows))), mean


def clipped(residual: FloatArray) -> FloatArray:
    """Return residuals with outliers drawn in to three robust deviations."""
    centre = float(np.median(residual))
    reach = 3.0 * 1.4826 * float(np.median(np.abs(residual - centre)))
    return np.clip(residual, centre - reach, centre + reach)


def fold_numbers(count: int, *, seed: int) -> NDArray[np.int64]:
    """Return the fold of each row: ten folds for few rows, five for many."""
    folds = np.empty(count, dtype=np.int64)
    order = np.random.default_rng(seed).permutation(count)
    folds[order] = np.arange(count) % min(count, 10 if count < FEW_ROWS else 5)
    return folds
