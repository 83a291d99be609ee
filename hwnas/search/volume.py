"""Hypervolume, exact for any number of objectives, and the free space below a front as boxes.

All objectives are minimised here. Shapes: values (n, m), reference (m,). The hypervolume is the
volume that is dominated by the values and bounded by the reference. Two objectives cost a sort;
three and more recurse over slabs of the last objective, dropping what is dominated in each slab
(after While et al., "A Fast Way of Calculating Exact Hypervolumes", 2012, for the idea of
limiting each recursion to what is not dominated).
"""

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from hwnas.search.arrays import Floats


class Boxes(NamedTuple):
    """Disjoint boxes `low` to `high`, each (boxes, m); a low end may be minus infinity."""

    low: Floats
    high: Floats


def hypervolume(values: Floats, reference: Floats) -> float:
    """Return the volume dominated by the rows of `values` within `reference`."""
    values = np.asarray(values, np.float64)
    reference = np.asarray(reference, np.float64)
    inside = values[(values < reference).all(axis=1)] if len(values) else values
    return _volume(inside, reference) if len(inside) else 0.0


def minimal(values: Floats) -> Floats:
    """Return the distinct rows that no other row dominates, sorted by the first objective."""
    ordered = np.asarray(np.unique(np.asarray(values, np.float64), axis=0))
    if len(ordered) < 2:
        return ordered
    if ordered.shape[1] == 1:
        return ordered[:1]
    if ordered.shape[1] == 2:
        best_before = np.minimum.accumulate(ordered[:, 1])
        return np.asarray(ordered[np.concatenate([[True], ordered[1:, 1] < best_before[:-1]])])
    kept: list[int] = []
    for row, value in enumerate(ordered):
        # rows are in lexicographic order, so only earlier ones can dominate
        if not (ordered[kept] <= value).all(axis=1).any():
            kept.append(row)
    return np.asarray(ordered[kept])


def _volume(values: Floats, reference: Floats) -> float:
    front = minimal(values)
    if front.shape[1] == 1:
        return float(reference[0] - front[0, 0])
    if front.shape[1] == 2:
        widths = np.append(front[1:, 0], reference[0]) - front[:, 0]
        return float(widths @ (reference[1] - front[:, 1]))
    front = front[np.argsort(front[:, -1], kind="stable")]
    tops = np.append(front[1:, -1], reference[-1])
    total = 0.0
    for count, (bottom, top) in enumerate(zip(front[:, -1], tops, strict=True), start=1):
        if top > bottom:
            total += (top - bottom) * _volume(front[:count, :-1], reference[:-1])
    return total


def free_boxes(values: Floats, reference: Floats) -> Boxes:
    """Return disjoint boxes that fill everything below `reference` which `values` do not dominate.

    The hypervolume that a new point y adds is then the sum over the boxes of the products of
    max(0, high - max(low, y)), and so its expectation is a sum of products of expectations when
    the objectives are independent.
    """
    reference = np.asarray(reference, np.float64)
    values = np.asarray(values, np.float64).reshape(-1, len(reference))
    lows, highs = _free(values[(values < reference).all(axis=1)], reference)
    return Boxes(lows, highs)


def _free(values: Floats, reference: Floats) -> tuple[Floats, Floats]:
    size = len(reference)
    if size == 1:
        top = values.min() if len(values) else reference[0]
        return np.full((1, 1), -np.inf), np.full((1, 1), top)
    order = np.argsort(values[:, -1], kind="stable")
    values = values[order]
    edges = np.concatenate([[-np.inf], values[:, -1], reference[-1:]])
    lows, highs = [], []
    for count, (bottom, top) in enumerate(pairwise(edges)):
        if top <= bottom:
            continue
        low, high = _free(minimal(values[:count, :-1]), reference[:-1])
        lows.append(np.column_stack([low, np.full(len(low), bottom)]))
        highs.append(np.column_stack([high, np.full(len(high), top)]))
    return np.concatenate(lows), np.concatenate(highs)


def gains(values: Floats, front: Floats, reference: Floats) -> Floats:
    """Return for each row of `values` how much hypervolume it adds to `front` on its own."""
    boxes = free_boxes(minimal(front), reference)
    total = np.zeros(len(values))
    for low, high in zip(boxes.low, boxes.high, strict=True):
        total += np.prod(np.maximum(high - np.maximum(low, values), 0.0), axis=1)
    return total
