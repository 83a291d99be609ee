"""How good predictions are: relative errors, rank correlations, coverage of intervals."""

from dataclasses import dataclass

import numpy as np

from hwnas.predictors.columns import FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Scores:
    """Errors of predictions on rows that had not been seen; shares and errors in percent."""

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
    size = np.maximum(np.abs(y), 1e-12)
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


def spearman(a: FloatArray, b: FloatArray) -> float:
    """Return Spearman's rank correlation; ties share their mean rank; 0 if one is constant."""
    first, second = _ranks(a), _ranks(b)
    first, second = first - first.mean(), second - second.mean()
    size = float(np.sqrt((first @ first) * (second @ second)))
    return float(first @ second) / size if size > 0.0 else 0.0


def kendall(a: FloatArray, b: FloatArray) -> float:
    """Return Kendall's tau-b; 0 if one of the two is constant."""
    agreement = 0.0
    for start in range(0, len(a), 512):  # bounded memory
        rows = slice(start, start + 512)
        one = np.sign(a[rows, None] - a[None, :])
        two = np.sign(b[rows, None] - b[None, :])
        agreement += float((one * two).sum())
    size = float(np.sqrt(float(_untied(a)) * float(_untied(b))))
    return agreement / size if size > 0.0 else 0.0


def _untied(values: FloatArray) -> int:
    """Return the number of ordered pairs that are not tied."""
    _, counts = np.unique(values, return_counts=True)
    return int(len(values) ** 2 - (counts.astype(np.int64) ** 2).sum())


def _ranks(values: FloatArray) -> FloatArray:
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[place])
