"""What a predictor is worth before it is used: nested cross-validation and its learning curve."""

import math
import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas.errors import UsageError
from hwnas.predictors import checks
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.predictor import LEAST_ROWS, Prediction, Predictor
from hwnas.predictors.scores import Scores, score, sizes

Rows = NDArray[np.int64]
SHARES = (0.25, 0.5, 0.75)  # of the training rows, for the learning curve


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """Mean error (MAPE, percent) of predictors fitted on so many rows."""

    rows: int
    mape: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Scores of rows never seen by the predictor that predicted them, all folds together.

    `curve` is measured; `power` and `floor` describe it as floor + factor * rows ** -power.
    `held_out` is what was predicted, in the order of the rows.
    """

    scores: Scores
    curve: tuple[CurvePoint, ...]
    floor: float
    factor: float
    power: float
    fit_cpu_s: float
    held_out: Prediction = field(repr=False, compare=False)

    def expected_mape(self, rows: int) -> float:
        """Return the error (percent) that the curve expects with so many rows."""
        return self.floor + self.factor * math.exp(-self.power * math.log(rows))

    def gain(self, more: int) -> float:
        """Return by how many percentage points the error would fall with `more` rows."""
        rows = self.scores.rows
        return max(0.0, self.expected_mape(rows) - self.expected_mape(rows + more))


def evaluate(
    genes: ArrayLike,
    costs: ArrayLike,
    y: ArrayLike,
    *,
    folds: int = 5,
    shares: tuple[float, ...] = SHARES,
    seed: int = 0,
) -> Evaluation:
    """Return the nested cross-validation of the default predictor on these rows.

    Every fold is predicted by a predictor (its weights, intervals and all) fitted on the others.
    The learning curve also has predictors fitted on these `shares` of them, which takes most of
    the time.
    """
    table, price = checks.features(genes, costs)
    truth = checks.target(y, rows=len(table), least=_least_rows(folds))
    checks.different(table, price)
    size = sizes(truth)
    said = _Said(genes=table, costs=price, y=truth, seed=seed)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(truth))
    inner = len(truth) - math.ceil(len(truth) / folds)  # what every fold leaves, or one row more
    seen: dict[int, list[float]] = {}
    predictions = np.empty((3, len(truth)))
    seconds = []
    for fold in range(folds):
        out = order[fold::folds]
        rest = np.setdiff1d(order, out)
        started = time.process_time()
        predictions[:, out] = said(out, rest)
        seconds.append(time.process_time() - started)
        for rows in _sizes(inner, shares):
            mean = said(out, rng.permutation(rest)[:rows]).mean
            error = 100.0 * float((np.abs(mean - truth[out]) / size[out]).mean())
            seen.setdefault(rows, []).append(error)
    scores = score(truth, *predictions)
    seen[inner] = [scores.mape]
    curve = tuple(CurvePoint(rows=n, mape=float(np.mean(seen[n]))) for n in sorted(seen))
    floor, factor, power = fitted_law(curve)
    return Evaluation(
        scores=scores,
        curve=curve,
        floor=floor,
        factor=factor,
        power=power,
        fit_cpu_s=float(np.mean(seconds)),
        held_out=Prediction(*predictions),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Said:
    """What predictors fitted on some of these rows say of others."""

    genes: FloatArray
    costs: FloatArray
    y: FloatArray
    seed: int

    def __call__(self, rows: Rows, known: Rows) -> Prediction:
        """Return what is said of `rows` by those that are `known`.

        Where these are all the same, nothing can be fitted: it is their median and quantiles.
        """
        genes, costs, y = self.genes[known], self.costs[known], self.y[known]
        if checks.constant(y) or checks.alike(genes, costs):
            return Prediction(*(np.full(len(rows), np.quantile(y, q)) for q in (0.5, 0.05, 0.95)))
        predictor = Predictor.fit(genes, costs, y, seed=self.seed)
        return predictor.predict(self.genes[rows], self.costs[rows])


def _least_rows(folds: int) -> int:
    """Return how many rows leave enough to fit on when a fold is held out."""
    if folds < 2:
        raise UsageError(f"folds is {folds}; accepted: from 2", "folds=5")
    return -(-LEAST_ROWS * folds // (folds - 1)) + 1


def _sizes(rows: int, shares: tuple[float, ...]) -> list[int]:
    return sorted({int(share * rows) for share in shares if share * rows >= LEAST_ROWS})


def fitted_law(curve: tuple[CurvePoint, ...]) -> tuple[float, float, float]:
    """Return (floor, factor, power) of the falling power law nearest to the curve.

    With one or two points the floor is taken as zero and the power as one half.
    """
    rows = np.array([point.rows for point in curve], dtype=np.float64)
    error = np.array([point.mape for point in curve])
    powers = np.array([0.5]) if len(curve) < 3 else np.linspace(0.25, 1.5, 26)
    best = (np.inf, 0.0, 0.0, 0.5)
    for power in powers:
        floor, factor = _line(rows**-power, error, free=len(curve) >= 3)
        miss = float(((floor + factor * rows**-power - error) ** 2).sum())
        if miss < best[0]:
            best = (miss, floor, factor, float(power))
    return best[1:]


def _line(x: NDArray[np.float64], y: FloatArray, *, free: bool) -> tuple[float, float]:
    """Return (intercept, slope) of the least-squares line with neither negative."""
    slope = float(np.cov(x, y, bias=True)[0, 1] / max(x.var(), 1e-30)) if free else -1.0
    intercept = float(y.mean() - slope * x.mean())
    if not free or intercept < 0.0:
        return 0.0, float(x @ y / (x @ x))
    if slope < 0.0:
        return float(y.mean()), 0.0
    return intercept, slope
