"""Calibrated intervals from out-of-fold errors (split conformal, each side on its own).

An error is `(y / prediction - 1) / scale` of a row that the prediction had not seen. The scale is
a power of the spread between the trees: power zero where the spread says nothing, chosen by the
width of the intervals. Errors of measurements are skewed (a device can only be slowed down), so
each side has its own quantile, and the misses are shared unevenly between the sides where that
makes the interval much shorter. Beyond the least and the largest error the tails are exponential.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.predictors.columns import FloatArray

POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
FEW_ROWS = 40  # below: the spread is not consulted
TILTS = (0.5, 0.1, 0.9)  # share of the misses that lie below the interval
SETTINGS = 4  # numbers chosen on the rows that are also judged: errors are widened for them
POINTS = 2000  # errors kept; more change nothing
LEAST = 0.01  # of its prediction: no value is thought to be less


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Sorted scaled errors, and how the spread of a row becomes its scale.

    `mape` is the mean absolute error relative to the truth, a share. Single numbers are arrays of
    one element, as they are stored.
    """

    scaled: FloatArray
    typical: FloatArray
    power: FloatArray
    tilt: FloatArray
    mape: FloatArray

    @classmethod
    def learn(cls, relative: FloatArray, spread: FloatArray) -> Self:
        """Return the errors of rows that had not been seen; `relative` is y / prediction - 1."""
        rows = len(relative)
        widened = relative * np.sqrt((rows + SETTINGS) / max(rows - SETTINGS, 1))
        typical = np.array([max(float(np.median(spread)), 1e-12)])
        best = None
        for power in POWERS if rows >= FEW_ROWS else POWERS[:1]:
            scale = _scale(spread, typical, power)
            found = cls(
                scaled=np.sort(widened / scale),
                typical=typical,
                power=np.array([power]),
                tilt=np.array(TILTS[:1]),
                mape=np.array([float(np.abs(1.0 / (1.0 + relative) - 1.0).mean())]),
            ).tilted()
            low, high = found.bounds(spread, level=0.9)
            width = float(np.mean(high - low))
            if best is None or width < 0.98 * best[0]:  # a scale has to earn its place
                best = (width, found)
        assert best is not None
        return best[1].thinned()

    def tilted(self) -> Self:
        """Return the same errors with the tilt that makes the interval clearly shorter."""
        best, best_width = self, np.inf
        for tilt in TILTS:
            found = replace(self, tilt=np.array([tilt]))
            low, high = found.bounds(self.typical, level=0.9)
            if float(high[0] - low[0]) < 0.8 * best_width:
                best, best_width = found, float(high[0] - low[0])
        return best

    def thinned(self) -> Self:
        """Return the same distribution with at most POINTS errors."""
        if len(self.scaled) <= POINTS:
            return self
        at = np.linspace(0.0, 1.0, POINTS)
        return replace(self, scaled=np.quantile(self.scaled, at))

    def bounds(
        self, spread: FloatArray, *, level: float, tilt: float | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Return the relative errors between which `level` of the true values lie.

        `tilt`: the share of the misses that lie below; by default what makes the interval short.
        """
        if not 0.0 < level < 1.0:
            raise UsageError(f"level {level!r} is not a share between 0 and 1", "level=0.9")
        scale = self.scale(spread)
        below = (1.0 - level) * (float(self.tilt[0]) if tilt is None else tilt)
        low, high = scale * self._quantile(below), scale * self._quantile(level + below)
        return np.maximum(low, LEAST - 1.0), np.maximum(high, LEAST - 1.0)

    def share_at_most(self, relative: FloatArray, spread: FloatArray) -> FloatArray:
        """Return the probability that y / prediction - 1 is at most `relative`."""
        wanted = relative / self.scale(spread)
        grid, place = self._grid()
        inside = np.interp(wanted, grid, place)
        reach = self._reach()
        below = place[0] * np.exp(np.minimum(wanted - grid[0], 0.0) / reach)
        above = 1.0 - (1.0 - place[-1]) * np.exp(np.minimum(grid[-1] - wanted, 0.0) / reach)
        share = np.where(wanted < grid[0], below, np.where(wanted > grid[-1], above, inside))
        return np.where(relative < LEAST - 1.0, 0.0, share)

    def scale(self, spread: FloatArray) -> FloatArray:
        """Return how uncertain each row is, relative to a typical one."""
        return _scale(spread, self.typical, float(self.power[0]))

    def _quantile(self, share: float) -> float:
        grid, place = self._grid()
        if share < place[0]:
            return float(grid[0] + self._reach() * np.log(share / place[0]))
        if share > place[-1]:
            return float(grid[-1] - self._reach() * np.log((1.0 - share) / (1.0 - place[-1])))
        return float(np.interp(share, place, grid))

    def _reach(self) -> float:
        """Return over which distance the tails fall by a factor of e."""
        return max(float(np.abs(self.scaled - np.median(self.scaled)).mean()), 1e-12)

    def _grid(self) -> tuple[FloatArray, FloatArray]:
        """Return errors and the share of new errors below each: rank / (n + 1)."""
        count = len(self.scaled)
        return self.scaled, np.arange(1, count + 1) / (count + 1)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that has to be stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the errors stored by `arrays`."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def _scale(spread: FloatArray, typical: FloatArray, power: float) -> FloatArray:
    if power == 0.0:
        return np.ones_like(spread)
    return np.asarray(np.clip(spread / typical[0], 0.1, 10.0) ** power)
