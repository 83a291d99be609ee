"""Robust figures from a few hundred noisy run times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826
_NEAR = 0.005
_MEDIAN_INEFFICIENCY = 1.253  # standard error of a median over that of a mean, for normal noise


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a series of run times says. `half_width` is relative to the median."""

    median: float
    p90: float
    p99: float
    kept_share: float
    half_width: float


def trimmed(times: Times) -> Times:
    """Return the times within three robust standard deviations of the median, or near it."""
    centre = np.median(times)
    deviation = np.abs(times - centre)
    limit = 3 * _MAD_TO_SIGMA * np.median(deviation)
    # Where most times agree to a thousandth, or are equal, the rest is no outlier for that.
    kept: Times = times[deviation <= max(limit, _NEAR * abs(centre))]
    return kept


def half_width(kept: Times) -> float:
    """Return the relative half width of the median's 95 % confidence interval, at most 1.

    Assumes independent samples; what differs from process to process is not in it.
    """
    if len(kept) < 2:
        return 1.0
    median = float(np.median(kept))
    if median <= 0:
        return 1.0
    spread = float(np.std(kept, ddof=1))
    return min(1.0, 1.96 * _MEDIAN_INEFFICIENCY * spread / float(np.sqrt(len(kept))) / median)


def summarise(times: Times) -> Summary:
    """Return the summary of run times. Percentiles are those of all of them, not of the kept."""
    kept = trimmed(times)
    return Summary(
        median=float(np.median(kept)),
        p90=float(np.percentile(times, 90)),
        p99=float(np.percentile(times, 99)),
        kept_share=len(kept) / len(times),
        half_width=half_width(kept),
    )
