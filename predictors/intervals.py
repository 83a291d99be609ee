"""Calibrated intervals from out-of-fold errors (split conformal, each side on its own).

An error is `(y / prediction - 1) / scale` of a row that the prediction had not seen. The scale is
how uncertain a process is of the row given where was measured, unless the errors contradict it.
Errors of measurements are skewed (a device can only be slowed down), so each side has its own
quantile, and the misses are shared unevenly between the sides where that makes the interval much
shorter. Beyond the least and the largest error the tails are exponential.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.predictors.columns import FloatArray

SCALES = (0.1, 10.0)  # of a row, relative to a typical one
DOUBT = 1.0  # log likelihood that errors have to gain without a scale before it is left out
TILTS = (0.5, 0.1, 0.9)  # share of the misses that lie below the interval
SETTINGS = 4  # numbers chosen on the rows that are also judged: errors are widened for them
POINTS = 2000  # errors kept; more change nothing
LEAST = 0.01  # of its prediction: no value is thought to be less


@dataclass(frozen=True, kw_only=True, slots=True)
class Errors:
    """Sorted scaled errors, and how the spread of a row becomes its scale.

    The spread is the deviation of a process relative to a typical `deviation`; where that is 0, a
    `power` of that between trees, as earlier versions had it. `mape` is the mean absolute error
    relative to the truth, a share. Single numbers are arrays of one element, as they are stored.
    """

    scaled: FloatArray
    tilt: FloatArray
    mape: FloatArray
    deviation: FloatArray = field(default_factory=lambda: np.zeros(1))
    typical: FloatArray = field(default_factory=lambda: np.ones(1))
    power: FloatArray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def learn(cls, relative: FloatArray, deviation: FloatArray | None = None) -> Self:
        """Return the errors of rows that had not been seen; `relative` is y / prediction - 1.

        `deviation`: how uncertain each of them was expected to be, in any unit.
        """
        rows = len(relative)
        typical, scale = _believed(relative, deviation)
        widened = relative * np.sqrt((rows + SETTINGS) / max(rows - SETTINGS, 1))
        found = cls(
            scaled=np.sort(widened / scale),
            tilt=np.array(TILTS[:1]),
            mape=np.array([float(np.abs(1.0 / (1.0 + relative) - 1.0).mean())]),
            deviation=np.array([typical]),
        )
        return found.tilted().thinned()

    def tilted(self) -> Self:
        """Return the same errors with the tilt that makes the interval clearly shorter."""
        best, best_width = self, np.inf
        for tilt in TILTS:
            found = replace(self, tilt=np.array([tilt]))
            width = found.typical_width(level=0.9)
            if width < 0.8 * best_width:
                best, best_width = found, width
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
        below, above = self._ends(level, float(self.tilt[0]) if tilt is None else tilt)
        return np.maximum(scale * below, LEAST - 1.0), np.maximum(scale * above, LEAST - 1.0)

    def typical_width(self, *, level: float) -> float:
        """Return the width of the interval of a typical row, relative to its prediction."""
        below, above = self._ends(level, float(self.tilt[0]))
        return above - below

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
        if self.deviation[0]:
            return np.asarray(np.clip(spread / self.deviation[0], *SCALES))
        if self.power[0]:
            return np.asarray(np.clip(spread / self.typical[0], *SCALES) ** self.power[0])
        return np.ones_like(spread)

    def _ends(self, level: float, tilt: float) -> tuple[float, float]:
        below = (1.0 - level) * tilt
        return self._quantile(below), self._quantile(level + below)

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
        """Return the errors stored by `arrays`, by earlier versions without a `deviation`."""
        return cls(
            **{field.name: arrays[field.name] for field in fields(cls) if field.name in arrays}
        )


def _believed(relative: FloatArray, deviation: FloatArray | None) -> tuple[float, FloatArray]:
    """Return the typical deviation and the scale of each row; 0 and ones if errors contradict it.

    Errors of a Laplace distribution whose width is the scale's are compared with one of one width.
    """
    alike = np.ones_like(relative)
    if deviation is None:
        return 0.0, alike
    typical = max(float(np.median(deviation)), 1e-12)
    scale = np.clip(deviation / typical, *SCALES)
    size, plain = (max(float(np.abs(relative / s).mean()), 1e-30) for s in (scale, alike))
    gained = len(relative) * (np.log(plain / size) - np.log(scale).mean())
    return (typical, scale) if gained > -DOUBT else (0.0, alike)
