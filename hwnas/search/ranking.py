"""Non-dominated sorting and crowding of whole populations; all objectives are minimised."""

from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from hwnas.search.arrays import Floats

Ranks = NDArray[np.int64]
PEELED = 64


def ranks(values: Floats, *, enough: int | None = None) -> Ranks:
    """Return the index of the front of each row: 0 is not dominated, 1 only by front 0, ...

    Sorting stops once `enough` rows are ranked; rows not reached get one rank after the last.
    Two objectives take O(n log n); more take one pass over the remaining rows per front.
    """
    values = np.asarray(values, np.float64)
    if values.shape[1] == 1:
        return np.asarray(np.unique(values[:, 0], return_inverse=True)[1], np.int64)
    enough = len(values) if enough is None else enough
    return _two(values, enough) if values.shape[1] == 2 else _many(values, enough)


def _two(values: Floats, enough: int) -> Ranks:
    """Peel fronts off the rows sorted by the first objective, a few in whole arrays.

    In that order a row is in the front when its second objective is below all before it. Tables
    with very many fronts are finished row by row, which takes O(n log n) whatever they are.
    """
    order, same = _sorted_distinct(values)
    seconds = values[order, 1]
    found = np.full(len(order), -1, np.int64)
    left = np.arange(len(order))
    rank = 0
    while len(left) and rank < PEELED and len(order) - len(left) < enough:
        lowest = np.minimum.accumulate(seconds[left])
        front = np.ones(len(left), bool)
        front[1:] = seconds[left[1:]] < lowest[:-1]
        found[left[front]] = rank
        left = left[~front]
        rank += 1
    if len(left) and len(order) - len(left) < enough:
        found[left] = rank + _swept(seconds[left])
    else:
        found[left] = rank
    return found[same]


def _sorted_distinct(values: Floats) -> tuple[Ranks, Ranks]:
    """Return the first of each distinct row in lexical order, and where each row's is therein."""
    order = np.lexsort((values[:, 1], values[:, 0]))
    ordered = values[order]
    new = np.ones(len(ordered), bool)
    new[1:] = (ordered[1:] != ordered[:-1]).any(axis=1)
    same = np.empty(len(values), np.int64)
    same[order] = np.cumsum(new) - 1
    return order[new], same


def _swept(seconds: Floats) -> Ranks:
    """Return the ranks of rows sorted by the first objective from their second ones.

    Each front is represented by its lowest second objective so far; those ascend with the rank,
    so the front of a row is found by bisection.
    """
    lowest: list[float] = []
    found: list[int] = []
    for second in seconds.tolist():
        rank = bisect_right(lowest, second)
        lowest[rank : rank + 1] = [second]
        found.append(rank)
    return np.array(found, np.int64)


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
    order, same = _sorted_distinct(values)
    seconds = values[order, 1]
    front = np.ones(len(order), bool)
    front[1:] = seconds[1:] < np.minimum.accumulate(seconds)[:-1]
    return front[same]


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
