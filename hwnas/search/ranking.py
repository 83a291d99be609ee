"""Non-dominated sorting and crowding of whole populations; all objectives are minimised."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ranks = NDArray[np.int64]


def ranks(values: Floats, *, enough: int | None = None) -> Ranks:
    """Return the index of the front of each row: 0 is not dominated, 1 only by front 0, ...

    Sorting stops once `enough` rows are ranked; rows not reached get one rank after the last.
    Two objectives take O(n log n); more take one pass over the remaining rows per front.
    """
    values = np.asarray(values, np.float64)
    if values.shape[1] == 1:
        return np.asarray(np.unique(values[:, 0], return_inverse=True)[1], np.int64)
    if values.shape[1] == 2:
        return _two(values)
    return _many(values, len(values) if enough is None else enough)


def _two(values: Floats) -> Ranks:
    """Sweep by the first objective; each front is represented by its lowest second objective.

    Those lowest values ascend with the rank, so the front of a row is found by bisection.
    """
    from bisect import bisect_right

    order = np.lexsort((values[:, 1], values[:, 0]))
    firsts, seconds = values[order, 0].tolist(), values[order, 1].tolist()
    lowest: list[float] = []
    found: list[int] = []
    previous = (np.nan, np.nan)
    for pair in zip(firsts, seconds, strict=True):
        # equal rows do not dominate each other
        if pair != previous:
            rank = bisect_right(lowest, pair[1])
            if rank == len(lowest):
                lowest.append(pair[1])
            else:
                lowest[rank] = pair[1]
            previous = pair
        found.append(rank)
    result = np.empty(len(values), np.int64)
    result[order] = found
    return result


def _many(values: Floats, enough: int) -> Ranks:
    result = np.full(len(values), -1, np.int64)
    left = np.lexsort(values.T[::-1])
    rank, ranked = 0, 0
    while len(left) and ranked < enough:
        front = first_front(values[left])
        result[left[front]] = rank
        ranked += int(front.sum())
        left = left[~front]
        rank += 1
    result[result < 0] = rank
    return result


def first_front(values: Floats) -> NDArray[np.bool_]:
    """Return which rows no other row dominates."""
    values = np.asarray(values, np.float64)
    if values.shape[1] == 1:
        return np.asarray(values[:, 0] == values[:, 0].min(initial=np.inf))
    if values.shape[1] == 2:
        return _first_of_two(values)
    order = np.lexsort(values.T[::-1])
    alive = np.ones(len(values), bool)
    for row in order.tolist():
        if alive[row]:
            worse = (values >= values[row]).all(axis=1) & (values > values[row]).any(axis=1)
            alive &= ~worse
    return alive


def _first_of_two(values: Floats) -> NDArray[np.bool_]:
    order = np.lexsort((values[:, 1], values[:, 0]))
    ordered = values[order]
    best_before = np.concatenate([[np.inf], np.minimum.accumulate(ordered[:, 1])[:-1]])
    new = np.ones(len(ordered), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    # an equal row shares the fate of the first of its kind
    kept = (ordered[:, 1] < best_before)[
        np.maximum.accumulate(np.where(new, np.arange(len(new)), 0))
    ]
    result = np.empty(len(values), bool)
    result[order] = kept
    return result


def crowding(values: Floats, rank: Ranks) -> Floats:
    """Return the crowding distance of each row within its front; ends are infinite.

    Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II", 2002, III-B.
    """
    distance = np.zeros(len(values))
    for column in values.T:
        order = np.lexsort((column, rank))
        value, front = column[order], rank[order]
        starts = np.concatenate([[True], front[1:] != front[:-1]])
        stops = np.append(starts[1:], True)
        first = np.maximum.accumulate(np.where(starts, np.arange(len(value)), 0))
        last = np.minimum.accumulate(np.where(stops, np.arange(len(value)), len(value))[::-1])[::-1]
        span = value[last] - value[first]
        gap = np.zeros(len(value))
        gap[1:-1] = value[2:] - value[:-2]
        with np.errstate(invalid="ignore", divide="ignore"):
            share = np.where(span > 0, gap / span, 0.0)
        share[starts | stops] = np.inf
        distance[order] += share
    return distance
