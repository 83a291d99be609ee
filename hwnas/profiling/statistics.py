"""Robust figures from a few hundred noisy run times."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Times = NDArray[np.float64]

_MAD_TO_SIGMA = 1.4826
_NEAR = 0.005
_MEDIAN_INEFFICIENCY = 1.253  # standard error of a median over that of a mean, for normal noise
# Fewer do not tell what is an outlier: of three, two that happen to agree would outvote the third.
_FEWEST_TO_TRIM = 8
# Student's quantiles of 97.5 % for 1, 2, ... degrees of freedom; from there on nearly 1.96 + 2.4/n.
_QUANTILES = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a series of run times says. `half_width` is relative to the median."""

    median: float
    p90: float
    p99: float
    kept_share: float
    half_width: float


def trimmed(times: Times) -> Times:
    """Return the times within three robust standard deviations of the median, or near it.

    Of a few times all are returned.
    """
    if len(times) < _FEWEST_TO_TRIM:
        return times
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
    error = _MEDIAN_INEFFICIENCY * spread / float(np.sqrt(len(kept)))
    return min(1.0, _quantile(len(kept) - 1) * error / median)


def _quantile(freedom: int) -> float:
    return _QUANTILES[freedom - 1] if freedom <= len(_QUANTILES) else 1.96 + 2.4 / freedom


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
