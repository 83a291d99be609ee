"""Counting and drawing architectures.

Drawing towards a cost: genes are drawn independently from distributions tilted by how much each
value adds to the cost (a linear fit on random architectures). The tilt that centres the cost on
a target is looked up for targets spread over the wanted range, and what falls outside is drawn
again, so the bounds hold exactly while the genes stay as random as the bounds allow.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import InfeasibleError, UsageError

if TYPE_CHECKING:
    from hwnas.spaces.space import Codes, Space

Floats = NDArray[np.float64]
_TILTS = np.concatenate([-np.geomspace(64, 0.05, 40), [0.0], np.geomspace(0.05, 64, 40)])
_FIT_ROWS = 4096
_MOST_ROUNDS = 200
_MOST_TO_LIST = 1 << 14
_RANDOM_STARTS = 4


def count(space: "Space") -> int:
    """Return the exact number of canonical architectures."""
    children: dict[str, list[str]] = defaultdict(list)
    for gene, condition in space.requires.items():
        children[condition.on].append(gene)

    @cache
    def below(gene: str) -> int:
        total = 0
        for value in space.genes[gene]:
            product = 1
            for child in children[gene]:
                if value in space.requires[child].values:
                    product *= below(child)
            total += product
        return total

    result = 1
    for gene in space.genes:
        if gene not in space.requires:
            result *= below(gene)
    return result


def uniform(space: "Space", n: int, rng: np.random.Generator) -> "Codes":
    """Return `n` rows with every gene uniform on its own."""
    return rng.integers(0, space.cardinalities, (n, len(space.genes)), dtype=np.int64)


def evenly(space: "Space", n: int, rng: np.random.Generator) -> "Codes":
    """Return `n` rows among which every gene takes its values equally often, as far as `n` allows.

    A single row is as random as one of `uniform`.
    """
    columns = []
    for cardinality in space.cardinalities.tolist():
        rounds = [rng.permutation(cardinality) for _ in range(max(1, -(-n // cardinality)))]
        # Shuffled once more, or genes with as many values would go together at the cut.
        columns.append(rng.permutation(np.concatenate(rounds)[:n]))
    return np.stack(columns, 1).astype(np.int64)


def within(
    space: "Space", n: int, rng: np.random.Generator, bounds: Mapping[str, tuple[float, float]]
) -> "Codes":
    """Return `n` canonical rows whose costs lie within `bounds` (metric -> low, high)."""
    metric = next(iter(bounds))
    low, high = _reachable(space, bounds, metric)
    tilted = _tilted(space, metric)
    found: list[Codes] = []
    missing = n
    for _ in range(_MOST_ROUNDS):
        targets = rng.uniform(low, high, max(256, 4 * missing))
        codes = space.canonical(tilted.draw(targets, rng))
        costs = space.cost(codes)
        inside = np.ones(len(codes), bool)
        for name, (least, most) in bounds.items():
            values = getattr(costs, name)
            inside &= (values >= least) & (values <= most)
        accepted = codes[inside]
        found.append(accepted[rng.permutation(len(accepted))[:missing]])
        missing -= len(found[-1])
        if missing <= 0:
            return np.concatenate(found)
    raise _nothing_found(space, bounds)


def _reachable(
    space: "Space", bounds: Mapping[str, tuple[float, float]], metric: str
) -> tuple[float, float]:
    for name, (low, high) in bounds.items():
        if low > high:
            raise UsageError(f"{name}: the range {low:g}..{high:g} is empty")
        smallest, largest = cost_range(space, name)
        if high < smallest or low > largest:
            claim = "no architecture" if _is_small(space) else "found no architecture"
            known = "reachable" if _is_small(space) else "found"
            raise InfeasibleError(
                f"{claim} of {space.name} with {name} in {low:,.0f}..{high:,.0f}; "
                f"{known}: {smallest:,.0f}..{largest:,.0f}",
                f"hwnas space show {space.name}",
            )
    low, high = bounds[metric]
    smallest, largest = cost_range(space, metric)
    return max(low, smallest), min(high, largest)


def _nothing_found(space: "Space", bounds: Mapping[str, tuple[float, float]]) -> InfeasibleError:
    asked = " and ".join(f"{name} {low:,.0f}..{high:,.0f}" for name, (low, high) in bounds.items())
    return InfeasibleError(f"found no architecture of {space.name} with {asked}", "widen the range")


@cache
def cost_range(space: "Space", metric: str) -> tuple[int, int]:
    """Return the least and the greatest cost: of all architectures of a small space.

    Of a large one what walks over single genes reach, from both ends and from random starts, so
    that there may be still less or more.
    """
    if _is_small(space):
        costs = getattr(space.cost(_every_row(space)), metric)
        return int(costs.min()), int(costs.max())
    return _extreme(space, metric, -1), _extreme(space, metric, 1)


def _every_row(space: "Space") -> "Codes":
    numbers = np.arange(math.prod(space.cardinalities.tolist()))
    strides = np.cumprod(space.cardinalities) // space.cardinalities
    rows: Codes = numbers[:, None] // strides % space.cardinalities
    return rows


def _is_small(space: "Space") -> bool:
    return math.prod(map(len, space.genes.values())) <= _MOST_TO_LIST


def _extreme(space: "Space", metric: str, sign: int) -> int:
    def values(codes: "Codes") -> Floats:
        return sign * np.asarray(getattr(space.cost(space.canonical(codes)), metric), np.float64)

    some = uniform(space, _FIT_ROWS, np.random.default_rng(0))
    best_of_some = some[np.argsort(values(some))[-_RANDOM_STARTS:]]
    # Not in canonical form: a gene that matters only after another has changed keeps its end.
    end = space.cardinalities - 1 if sign > 0 else np.zeros_like(space.cardinalities)
    return sign * int(max(_climbed(space, start, values) for start in (end, *best_of_some)))


def _climbed(space: "Space", codes: "Codes", values: Callable[["Codes"], Floats]) -> float:
    """Return the value from which no change of a single gene leads higher."""
    best = float(values(codes[None])[0])
    while True:
        neighbours = single_changes(space, codes)
        found = values(neighbours)
        if found.max(initial=best) <= best:
            return best
        best, codes = float(found.max()), neighbours[int(found.argmax())]


def single_changes(space: "Space", codes: "Codes") -> "Codes":
    """Return every row that differs from one row of codes in a single gene."""
    rows = []
    for column, cardinality in enumerate(space.cardinalities.tolist()):
        for value in range(cardinality):
            if value != codes[column]:
                row = codes.copy()
                row[column] = value
                rows.append(row)
    return np.array(rows, np.int64).reshape(-1, len(codes))


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
