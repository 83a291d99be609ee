"""A new device from 10 to 20 measurements, when predictors of other devices exist.

The prediction is the geometric mean of a non-negative mix of the old devices' predictions and a
ridge regression on their logarithms: the first cannot extrapolate wildly, the second bends.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from hwnas.errors import UsageError
from hwnas.predictors import checks
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.intervals import Errors
from hwnas.predictors.predictor import Prediction

LEAST_ROWS = 5
PENALTIES = (0.03, 0.1, 0.3, 1.0, 3.0)  # relative to one row of standardised logarithms


@dataclass(frozen=True, kw_only=True, slots=True)
class Transferred:
    """A predictor of a new device from the predictions of old ones."""

    mix: FloatArray
    centre: FloatArray
    slope: FloatArray
    level: float
    errors: Errors

    def predict(
        self, source_predictions: ArrayLike, *, level: float = 0.9, tilt: float | None = None
    ) -> Prediction:
        """Return value and interval of each row of (n, d) predictions for the old devices."""
        sources = _sources(source_predictions, columns=len(self.mix))
        value = self._value(sources)
        low, high = self.errors.bounds(np.ones(len(value)), level=level, tilt=tilt)
        return Prediction(value, value * (1.0 + low), value * (1.0 + high))

    def _value(self, sources: FloatArray) -> FloatArray:
        bent = self.level + (np.log(sources) - self.centre) @ self.slope
        return np.asarray(np.sqrt(sources @ self.mix * np.exp(bent)))

    @classmethod
    def fitted(cls, sources: FloatArray, y: FloatArray, errors: Errors) -> Self:
        """Return the two regressions fitted on these rows, with errors found elsewhere."""
        logs = np.log(sources)
        centre, level = logs.mean(axis=0), float(np.log(y).mean())
        return cls(
            mix=_mix(sources, y),
            centre=centre,
            slope=_ridge(logs - centre, np.log(y) - level),
            level=level,
            errors=errors,
        )


def transfer(source_predictions: ArrayLike, y: ArrayLike) -> Transferred:
    """Return a predictor of a new device fitted on its measurements `y` (n,).

    `source_predictions` (n, d) are what predictors of the old devices say about the measured
    architectures. Intervals come from leaving out one row at a time; with 10 to 20 rows they
    are indicative.
    """
    sources = _sources(source_predictions, columns=None)
    truth = checks.target(y, rows=len(sources), least=LEAST_ROWS)
    if truth.min() <= 0.0:
        raise UsageError(f"a measurement is {truth.min():g}, expected positive values")
    nothing = Errors.learn(np.zeros(2))
    relative = np.empty(len(truth))
    for row in range(len(truth)):
        rest = np.arange(len(truth)) != row
        without = Transferred.fitted(sources[rest], truth[rest], nothing)
        relative[row] = truth[row] / without.predict(sources[[row]]).mean[0] - 1.0
    return Transferred.fitted(sources, truth, Errors.learn(relative))


def _sources(values: ArrayLike, *, columns: int | None) -> FloatArray:
    sources, _ = checks.features(values, np.zeros((len(np.asarray(values)), 0)))
    if columns is not None and sources.shape[1] != columns:
        raise UsageError(f"predictions of {sources.shape[1]} devices, fitted on {columns}")
    if sources.size and sources.min() <= 0.0:
        row, column = np.argwhere(sources <= 0.0)[0]
        raise UsageError(
            f"prediction of device {column}, row {row + 1}: {sources[row, column]:g}, "
            "expected positive values"
        )
    return sources


def _mix(sources: FloatArray, y: FloatArray) -> FloatArray:
    """Return non-negative weights with the smallest squared relative error, slightly shrunk."""
    from scipy.optimize import nnls

    unit = np.exp(np.mean(np.log(sources / y[:, None]), axis=0))
    devices = len(unit)
    pull = 0.1 * math.sqrt(devices)
    rows = np.concatenate([sources / unit / y[:, None], pull * np.eye(devices)])
    weights, _ = nnls(rows, np.concatenate([np.ones(len(y)), np.full(devices, pull / devices)]))
    return np.asarray(weights / unit)


def _ridge(logs: FloatArray, target: FloatArray) -> FloatArray:
    """Return the slopes with the penalty that predicts left-out rows best."""
    size = np.maximum(logs.std(axis=0), 1e-12)
    unit = logs / size
    best, best_error = np.zeros(logs.shape[1]), np.inf
    for penalty in PENALTIES:
        square = unit.T @ unit + penalty * np.eye(unit.shape[1])
        slope = np.linalg.solve(square, unit.T @ target)
        leverage = np.einsum("ij,ji->i", unit, np.linalg.solve(square, unit.T)) + 1.0 / len(unit)
        error = float((((target - unit @ slope) / np.maximum(1.0 - leverage, 1e-3)) ** 2).sum())
        if error < best_error:
            best, best_error = slope / size, error
    return best
