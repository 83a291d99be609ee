"""How good predictions are: relative errors, rank correlations, coverage of intervals."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.predictors.columns import FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors of predictions on rows that had not been seen; shares and errors in percent.

    They are relative to `sizes` of the measured values.
    """

    rows: int
    mape: float
    within_5: float
    within_10: float
    spearman: float
    kendall: float
    coverage_90: float
    width_90: float


def score(y: FloatArray, mean: FloatArray, low: FloatArray, high: FloatArray) -> Scores:
    """Return the scores of predictions with 90 % intervals; the width is the median's."""
    size = sizes(y)
    relative = np.abs(mean - y) / size
    inside = (y >= low) & (y <= high)
    return Scores(
        rows=len(y),
        mape=100.0 * float(relative.mean()),
        within_5=100.0 * float((relative <= 0.05).mean()),
        within_10=100.0 * float((relative <= 0.10).mean()),
        spearman=spearman(mean, y),
        kendall=kendall(mean, y),
        coverage_90=100.0 * float(inside.mean()),
        width_90=100.0 * float(np.median((high - low) / size)),
    )


def shift_of(y: FloatArray) -> float:
    """Return what is added to targets that are not all positive, so that ratios mean something."""
    lowest, highest = float(y.min()), float(y.max())
    return 0.0 if lowest > 0.0 else (highest - lowest or 1.0) - lowest


def sizes(y: FloatArray) -> FloatArray:
    """Return what errors are relative to, as in a fit: the values, shifted if not all positive."""
    return y + shift_of(y)


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Return Spearman's rank correlation; ties share their mean rank; 0 if one is constant."""
    first, second = _ranks(a), _ranks(b)
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size > 0.0 else 0.0


def kendall(a: FloatArray, b: FloatArray) -> float:
    """Return Kendall's tau-b; 0 if one of the two is constant."""
    first, second = (np.unique(values, return_inverse=True)[1] for values in (a, b))
    one, two = _untied(first), _untied(second)
    if not one or not two:
        return 0.0
    neither = one + two - _untied(first * len(b) + second)
    discordant = 2 * _inversions(second[np.lexsort((second, first))])
    return (neither - 2 * discordant) / math.sqrt(one * two)


def _inversions(ranks: NDArray[np.int64]) -> int:
    """Return how many pairs stand in falling order.

    Their ranks differ in a highest bit: of those that agree above it, every 0 counts the 1 before.
    """
    count = 0
    for bit in range(int(ranks.max()).bit_length()):
        grouped = ranks[np.argsort(ranks >> (bit + 1), kind="stable")]
        group, high = grouped >> (bit + 1), (grouped >> bit) & 1
        before = np.cumsum(high) - high
        inside = before - before[np.searchsorted(group, group)]
        count += int(inside[high == 0].sum())
    return count


def _untied(values: NDArray[np.int64]) -> int:
    """Return the number of ordered pairs that are not tied."""
    _, counts = np.unique(values, return_counts=True)
    return int(len(values) ** 2 - (counts.astype(np.int64) ** 2).sum())


def _ranks(values: FloatArray) -> FloatArray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[place])
