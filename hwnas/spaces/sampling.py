"""Counting and drawing architectures, and the ends of what they cost."""

import math
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hwnas.spaces.space import Codes, Space

Floats = NDArray[np.float64]
_FIT_ROWS = 4096
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


@cache
def cost_range(space: "Space", metric: str) -> tuple[int, int]:
    """Return the least and the greatest cost: of all architectures of a small space.

    Of a large one what walks over single genes reach, from both ends and from random starts, so
    that there may be still less or more.
    """
    if is_small(space):
        costs = getattr(space.cost(_every_row(space)), metric)
        return int(costs.min()), int(costs.max())
    return _extreme(space, metric, -1), _extreme(space, metric, 1)


def _every_row(space: "Space") -> "Codes":
    numbers = np.arange(math.prod(space.cardinalities.tolist()))
    strides = np.cumprod(space.cardinalities) // space.cardinalities
    rows: Codes = numbers[:, None] // strides % space.cardinalities
    return rows


def is_small(space: "Space") -> bool:
    """Return whether all rows of codes can be listed."""
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
