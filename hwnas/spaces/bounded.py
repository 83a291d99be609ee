"""Drawing architectures whose costs lie within bounds.

Genes are drawn independently from distributions tilted by how much each value adds to the cost (a
linear fit on random architectures); the tilt that centres the cost on a target is looked up for
targets spread over the wanted range. What falls outside is dropped, so the bounds hold exactly
while the genes stay as random as the bounds allow. Where that leaves a part of the range short,
more are drawn towards it, and walk there by random changes of single genes that never lead away.
"""

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import InfeasibleError, UsageError
from hwnas.spaces.sampling import Floats, cost_range, is_small, uniform

if TYPE_CHECKING:
    from hwnas.spaces.space import Codes, Space

Bounds = Mapping[str, tuple[float, float]]
Counts = NDArray[np.int64]
_TILTS = np.concatenate([-np.geomspace(64, 0.05, 40), [0.0], np.geomspace(0.05, 64, 40)])
_FIT_ROWS = 4096
_MOST_BINS = 16
_ROUNDS = 8
_FEWEST_DRAWN = 256
_DRAWN_PER_WANTED = 4
_MOST_WANTED = 1 << 15
_MOST_WALKING = 1 << 15
_STEPS_PER_GENE = 8


def within(space: "Space", n: int, rng: np.random.Generator, bounds: Bounds) -> "Codes":
    """Return `n` canonical rows whose costs lie within `bounds` (metric -> low, high).

    The range of the first metric has up to 16 equal parts, and as many rows from each as far as
    they are found.
    """
    goal = _Goal(space, bounds, bins=max(1, min(n, _MOST_BINS)))
    pool = goal.candidates(n, rng)
    if 0 < len(pool) < n:
        more = min(n * n // len(pool), _MOST_WANTED)
        pool = np.concatenate([pool, goal.candidates(more, rng)])
    occupied = np.ones(goal.bins, bool)
    for _ in range(_ROUNDS):
        share = -(-n // occupied.sum())
        lacking = np.where(occupied, np.maximum(share - goal.counts(pool), 0), 0)
        if not lacking.any():
            break
        pool = np.concatenate([pool, goal.walked(lacking, rng)])
        occupied = goal.counts(pool) > 0 if len(pool) else occupied
    if len(pool) < n:
        pool = np.concatenate([pool, goal.beside(pool, n - len(pool), rng)])
    return pool[_in_turns(goal.bins_of(pool))[:n]]


def candidates(space: "Space", n: int, rng: np.random.Generator, bounds: Bounds) -> "Codes":
    """Return up to `n` rows within `bounds`, denser in some parts of the range than in others."""
    return _Goal(space, bounds, bins=1).candidates(n, rng)[:n]


class _Goal:
    """Bounds of costs, with equal parts of the range of the first metric as bins."""

    def __init__(self, space: "Space", bounds: Bounds, *, bins: int) -> None:
        self._space, self._bounds, self.bins = space, bounds, bins
        self._metric = next(iter(bounds))
        ranges = {name: _reachable(space, name, *bound) for name, bound in bounds.items()}
        self._scales = {name: max(1, np.ptp(cost_range(space, name))) for name in bounds}
        self._ends = ranges[self._metric]
        self._edges = np.linspace(*self._ends, bins + 1)
        self._tilted = _tilted(space, self._metric)

    def candidates(self, n: int, rng: np.random.Generator) -> "Codes":
        """Return, in random order, those rows of several times `n` draws that are inside."""
        targets = rng.uniform(*self._ends, max(_FEWEST_DRAWN, _DRAWN_PER_WANTED * n))
        inside = self._inside(self._tilted.draw(targets, rng))
        return inside[rng.permutation(len(inside))]

    def walked(self, wanted: Counts, rng: np.random.Generator) -> "Codes":
        """Return rows inside, of each bin about as many as are wanted if they can be found."""
        tries = np.maximum(_DRAWN_PER_WANTED * wanted, _FEWEST_DRAWN // self.bins)
        aims = np.repeat(np.arange(self.bins), np.where(wanted > 0, tries, 0))
        aims = rng.permutation(aims)[:_MOST_WALKING]
        low, high = self._edges[aims], self._edges[aims + 1]
        codes = self._tilted.draw(rng.uniform(low, high), rng)
        away = self._away(codes, low, high)
        for _ in range(_STEPS_PER_GENE * codes.shape[1]):
            arrived = np.bincount(aims[away == 0], minlength=self.bins)
            walking = np.flatnonzero((away > 0) & (arrived < wanted)[aims])
            if not len(walking):
                break
            changed = _changed(self._space, codes[walking], rng)
            then = self._away(changed, low[walking], high[walking])
            kept = then <= away[walking]
            codes[walking[kept]], away[walking[kept]] = changed[kept], then[kept]
        return self._inside(codes)

    def beside(self, codes: "Codes", n: int, rng: np.random.Generator) -> "Codes":
        """Return `n` rows inside that changes of single genes lead to from `codes`, also inside."""
        if not len(codes):
            raise _nothing_found(self._space, self._bounds)
        codes = codes[rng.integers(len(codes), size=n)]
        for _ in range(_STEPS_PER_GENE * codes.shape[1]):
            changed = _changed(self._space, codes, rng)
            codes = np.where((self._away(changed, *self._ends) == 0)[:, None], changed, codes)
        return self._inside(codes)

    def counts(self, codes: "Codes") -> Counts:
        """Return how many rows are in each bin."""
        counts: Counts = np.bincount(self.bins_of(codes), minlength=self.bins)
        return counts

    def bins_of(self, codes: "Codes") -> Counts:
        """Return the bin of each row."""
        costs = getattr(self._space.cost(codes), self._metric)
        bins: Counts = np.searchsorted(self._edges[1:-1], costs, side="right")
        return bins

    def _inside(self, codes: "Codes") -> "Codes":
        away = self._away(codes, *self._bounds[self._metric])
        inside: Codes = self._space.canonical(codes)[away == 0]
        return inside

    def _away(self, codes: "Codes", low: Floats | float, high: Floats | float) -> Floats:
        """Return by how much rows miss the bounds, or `low` and `high` in the first metric."""
        costs = self._space.cost(codes)
        total = np.zeros(len(codes))
        for name, bound in self._bounds.items():
            least, most = (low, high) if name == self._metric else bound
            values = getattr(costs, name)
            missed = np.maximum(least - values, 0) + np.maximum(values - most, 0)
            total += missed / self._scales[name]
        return total


def _in_turns(bins: Counts) -> Counts:
    """Return the places of the first of every bin, then those of the second, and so on."""
    order = np.argsort(bins, kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(bins)) - np.searchsorted(bins[order], bins[order])
    return np.argsort(rank, kind="stable")


def _changed(space: "Space", codes: "Codes", rng: np.random.Generator) -> "Codes":
    """Return the rows with a random value of a random gene in each."""
    columns = rng.integers(codes.shape[1], size=len(codes))
    codes = codes.copy()
    codes[np.arange(len(codes)), columns] = rng.integers(0, space.cardinalities[columns])
    return codes


def _reachable(space: "Space", name: str, low: float, high: float) -> tuple[float, float]:
    if low > high:
        raise UsageError(f"{name}: the range {low:g}..{high:g} is empty")
    smallest, largest = cost_range(space, name)
    if high < smallest or low > largest:
        claim = "no architecture" if is_small(space) else "found no architecture"
        known = "reachable" if is_small(space) else "found"
        raise InfeasibleError(
            f"{claim} of {space.name} with {name} in {low:,.0f}..{high:,.0f}; "
            f"{known}: {smallest:,.0f}..{largest:,.0f}",
            f"hwnas space show {space.name}",
        )
    return max(low, smallest), min(high, largest)


def _nothing_found(space: "Space", bounds: Bounds) -> InfeasibleError:
    asked = " and ".join(f"{name} {low:,.0f}..{high:,.0f}" for name, (low, high) in bounds.items())
    return InfeasibleError(f"found no architecture of {space.name} with {asked}", "widen the range")


class _Tilted:
    """Independent gene distributions, tilted so that the mean cost hits a target."""

    def __init__(self, space: "Space", metric: str) -> None:
        rng = np.random.default_rng(0)
        codes = uniform(space, _FIT_ROWS, rng)
        values = getattr(space.cost(codes), metric).astype(float)
        spread = values.std() or 1.0  # where all cost the same, there is nothing to tilt
        self._effects = _additive_effects(space, codes, (values - values.mean()) / spread)
        means = [self._mean_cost(space, metric, tilt, rng) for tilt in _TILTS]
        self._means = np.maximum.accumulate(np.array(means))

    def draw(self, targets: Floats, rng: np.random.Generator) -> "Codes":
        """Return one row per target, its expected cost near the target."""
        tilts = np.interp(targets, self._means, _TILTS)
        return self._draw(tilts, rng)

    def _mean_cost(
        self, space: "Space", metric: str, tilt: float, rng: np.random.Generator
    ) -> float:
        codes = self._draw(np.full(256, tilt), rng)
        return float(getattr(space.cost(codes), metric).mean())

    def _draw(self, tilts: Floats, rng: np.random.Generator) -> "Codes":
        columns = []
        for effects in self._effects:
            logits = tilts[:, None] * effects
            weights = np.exp(logits - logits.max(1, keepdims=True))
            cumulative = weights.cumsum(1)
            thresholds = rng.random(len(tilts)) * cumulative[:, -1]
            columns.append((cumulative < thresholds[:, None]).sum(1))
        return np.stack(columns, 1).astype(np.int64)


@cache
def _tilted(space: "Space", metric: str) -> _Tilted:
    return _Tilted(space, metric)


def _additive_effects(space: "Space", codes: "Codes", values: Floats) -> list[Floats]:
    """Return, per gene, what each of its values adds to `values` on average."""
    one_hot = [
        np.eye(cardinality)[codes[:, column]]
        for column, cardinality in enumerate(space.cardinalities)
    ]
    design = np.concatenate(one_hot, axis=1)
    gram = design.T @ design + 1e-3 * len(codes) * np.eye(design.shape[1])
    solution = np.linalg.solve(gram, design.T @ values)
    return np.split(solution, np.cumsum(space.cardinalities)[:-1])
