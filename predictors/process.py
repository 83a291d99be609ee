"""Student-t Gaussian process on blocks of columns: the linear base of the predictor.

The kernel is a constant, a linear kernel per block and, if asked for, one Gaussian kernel over a
weighted sum of block distances. Variances and weights come from the marginal likelihood with
weak priors. Measurements have outliers (a throttled device, a busy one), so the noise is
Student-t, fitted by variational EM: every row has a weight, and rows far off count little. On the
linear scale the noise is proportional to the value. Once fitted, the linear part is a weight per
column and the Gaussian part a weight per anchor row: predicting needs two matrix products.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.predictors.columns import FloatArray

Blocks = Mapping[str, FloatArray]

LIKELIHOOD_ROWS = 400  # kernel parameters are fitted on at most so many rows
MOST_ROWS = 1000  # larger tables are thinned: the cost is cubic
ANCHOR_NUMBERS = 64_000  # anchors times columns: bounds the time of a prediction
ANCHORS = (200, 1000)
ROUNDS = 5
HEAVY = (1.5, 2.0)  # degrees of freedom: nearly the median, which absolute errors ask for
ANY = (1.5, 2.0, 3.0, 4.0, 6.0, 10.0, 50.0)
JITTER = 1e-8


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """Which blocks a process sees: always, only on evidence (weak prior), and by distance.

    `tails` are the degrees of freedom among which those of the noise are chosen.
    """

    linear: tuple[str, ...]
    extra: tuple[str, ...] = ()
    radial: tuple[str, ...] = ()
    logarithmic: bool = False
    tails: tuple[float, ...] = HEAVY

    def prior(self) -> tuple[FloatArray, FloatArray]:
        """Return (means, deviations) of the logarithms of the parameters."""
        share = 0.3 / max(len(self.radial), 1)
        mean = [0.0] * len(self.linear) + [-4.0] * len(self.extra)
        deviation = [2.0] * len(self.linear) + [2.0] * len(self.extra)
        if self.radial:
            mean += [-2.0] + [math.log(share)] * len(self.radial)
            deviation += [2.0] + [1.5] * len(self.radial)
        return np.array([*mean, -3.0]), np.array([*deviation, 3.0])


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A fitted process, reduced to what predicting needs.

    `natural` are the variances and inverse squared lengths in the order of the recipe, the
    variance of the noise last.
    """

    recipe: Recipe
    offset: float
    scale: float
    natural: FloatArray
    weights: FloatArray
    radial_scale: FloatArray
    anchors: NDArray[np.float32]
    anchor_weights: NDArray[np.float32]

    def predict(self, blocks: Blocks) -> FloatArray:
        """Return the value of each row, on the scale of the target."""
        names = self.recipe.linear + self.recipe.extra
        total = np.zeros(len(blocks[names[0]]))
        start = 0
        for name in names:
            stop = start + blocks[name].shape[1]
            total += blocks[name] @ self.weights[start:stop]
            start = stop
        if self.recipe.radial:
            total += self._radial(blocks)
        value = self.offset + self.scale * total
        return np.exp(value) if self.recipe.logarithmic else value

    def _radial(self, blocks: Blocks) -> NDArray[np.float32]:
        rows = stacked(self.recipe, blocks, self.radial_scale)
        exponent = rows @ self.anchors.T
        exponent -= 0.5 * np.einsum("ij,ij->i", rows, rows)[:, None]
        exponent -= 0.5 * np.einsum("ij,ij->i", self.anchors, self.anchors)
        np.exp(np.minimum(exponent, 0.0, out=exponent), out=exponent)
        return np.asarray(exponent @ self.anchor_weights)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that has to be stored, except the recipe."""
        return {
            "offset_scale": np.array([self.offset, self.scale]),
            "natural": self.natural,
            "weights": self.weights,
            "radial_scale": self.radial_scale,
            "anchors": self.anchors,
            "anchor_weights": self.anchor_weights,
        }

    @classmethod
    def from_arrays(cls, recipe: Recipe, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the process stored by `arrays`."""
        offset, scale = arrays["offset_scale"]
        rest = {name: array for name, array in arrays.items() if name != "offset_scale"}
        return cls(recipe=recipe, offset=float(offset), scale=float(scale), **rest)


def stacked(recipe: Recipe, blocks: Blocks, scale: FloatArray) -> NDArray[np.float32]:
    """Return the radial blocks side by side, scaled so that plain distances are the kernel's."""
    parts = [blocks[name] * s for name, s in zip(recipe.radial, scale, strict=True)]
    return np.concatenate(parts, axis=1, dtype=np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    """One data set with its kernel pieces: `linear` Gram matrices, `distances` per radial block."""

    recipe: Recipe
    target: FloatArray
    linear: FloatArray
    distances: FloatArray
    mean: FloatArray
    deviation: FloatArray

    def part(self, rows: NDArray[np.int64]) -> "_Problem":
        grid = np.ix_(rows, rows)
        cut = [m[:, grid[0], grid[1]] for m in (self.linear, self.distances)]
        return replace(self, target=self.target[rows], linear=cut[0], distances=cut[1])

    def kernel(self, parameters: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return (kernel without noise, its Gaussian part at amplitude one)."""
        natural = np.exp(parameters)
        count = len(self.linear)
        total = np.ones((len(self.target), len(self.target)))
        total += np.tensordot(natural[:count], self.linear, axes=1)
        gaussian = np.zeros_like(total)
        if len(self.distances):
            exponent = np.tensordot(natural[count + 1 : -1], self.distances, axes=1)
            gaussian = np.exp(-0.5 * exponent)
            total += natural[count] * gaussian
        return total, gaussian

    def loss(self, parameters: FloatArray, noise: FloatArray) -> tuple[float, FloatArray]:
        """Return the negative log posterior of the parameters and its gradient."""
        natural = np.exp(parameters)
        kernel, gaussian = self.kernel(parameters)
        inverse, half_log_determinant = _inverse(kernel, natural[-1] * noise + JITTER)
        solved = inverse @ self.target
        slope = 0.5 * (inverse - np.outer(solved, solved))
        gradient = np.empty_like(parameters)
        count = len(self.linear)
        flat = slope.ravel()
        gradient[:count] = self.linear.reshape(count, -1) @ flat
        if len(self.distances):
            pulled = slope * gaussian
            gradient[count] = pulled.sum()
            by_block = self.distances.reshape(len(self.distances), -1) @ pulled.ravel()
            gradient[count + 1 : -1] = -0.5 * natural[count] * by_block
        gradient[-1] = np.diag(slope) @ noise
        apart = (parameters - self.mean) / self.deviation
        loss = 0.5 * self.target @ solved + half_log_determinant + 0.5 * apart @ apart
        return float(loss), gradient * natural + apart / self.deviation


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """State of the noise: relative variance expected per row, weight per row, tail."""

    base: FloatArray
    weight: FloatArray
    tail: float
    tails: tuple[float, ...]


def fit_process(
    recipe: Recipe, blocks: Blocks, y: FloatArray, folds: NDArray[np.int64], *, seed: int
) -> tuple[Process, FloatArray]:
    """Return the process fitted on all rows and its cross-fitted predictions.

    For the predictions of a fold, kernel parameters are kept and everything else is refitted
    without the fold's rows.
    """
    rng = np.random.default_rng(seed)
    keep = np.sort(rng.permutation(len(y))[:MOST_ROWS])
    values = np.log(y) if recipe.logarithmic else y
    offset, scale = float(values[keep].mean()), float(values[keep].std())
    problem = _problem(
        recipe, {k: v[keep] for k, v in blocks.items()}, (values[keep] - offset) / scale
    )
    few = np.sort(rng.permutation(len(keep))[:LIKELIHOOD_ROWS])
    parameters, rows = _learn(problem, few, offset / scale)
    kernel, _ = problem.kernel(parameters)
    noise = math.exp(parameters[-1])
    rows, solved = _settle(kernel, problem.target, noise, rows, sweeps=5)
    process = _reduced(
        recipe, blocks, keep, parameters=parameters, solved=solved, location=(offset, scale)
    )
    held = process.predict(blocks)  # rows beyond the cap were never fitted
    for fold in range(int(folds.max()) + 1):
        out = folds[keep] == fold
        start = replace(rows, base=rows.base[~out], weight=rows.weight[~out], tails=(rows.tail,))
        _, without = _settle(
            kernel[np.ix_(~out, ~out)], problem.target[~out], noise, start, sweeps=4
        )
        held[keep[out]] = offset + scale * (kernel[np.ix_(out, ~out)] @ without)
        if recipe.logarithmic:
            held[keep[out]] = np.exp(held[keep[out]])
    return process, held


def _problem(recipe: Recipe, blocks: Blocks, target: FloatArray) -> _Problem:
    size = (0, len(target), len(target))
    linear = [
        blocks[n] @ blocks[n].T / max(blocks[n].shape[1], 1) for n in recipe.linear + recipe.extra
    ]
    distances = [_distances(blocks[n]) / max(blocks[n].shape[1], 1) for n in recipe.radial]
    mean, deviation = recipe.prior()
    return _Problem(
        recipe=recipe,
        target=target,
        linear=np.stack(linear),
        distances=np.stack(distances) if distances else np.zeros(size),
        mean=mean,
        deviation=deviation,
    )


def _learn(problem: _Problem, few: NDArray[np.int64], centre: float) -> tuple[FloatArray, _Rows]:
    """Return kernel parameters from the rows `few`, and the state of the noise on all rows."""
    from scipy.optimize import minimize

    part = problem.part(few) if len(few) < len(problem.target) else problem
    count = len(problem.target)
    tails = problem.recipe.tails
    rows = _Rows(base=np.ones(count), weight=np.ones(count), tail=max(tails), tails=tails)
    if not problem.recipe.logarithmic:
        rows = replace(rows, base=_proportional(problem.target, centre))
    parameters = problem.mean
    for turn in range(ROUNDS):
        noise = (rows.base / rows.weight)[few]
        found = minimize(
            part.loss,
            parameters,
            args=(noise,),
            jac=True,
            method="L-BFGS-B",
            bounds=[(-14.0, 8.0)] * len(parameters),
            options={"maxiter": 15 if turn else 40},
        )
        parameters = found.x
        kernel, _ = problem.kernel(parameters)
        rows, solved = _settle(kernel, problem.target, math.exp(parameters[-1]), rows, sweeps=3)
        if not problem.recipe.logarithmic:
            rows = replace(rows, base=_proportional(kernel @ solved, centre))
    return parameters, rows


def _proportional(target: FloatArray, centre: float) -> FloatArray:
    """Return squared values relative to their geometric mean: noise in proportion to the value."""
    value = np.maximum(target + centre, np.quantile(target + centre, 0.02))
    square = np.maximum(value, 1e-3 * abs(centre)) ** 2
    return np.asarray(square / np.exp(np.log(square).mean()))


def _settle(
    kernel: FloatArray, target: FloatArray, noise: float, rows: _Rows, *, sweeps: int
) -> tuple[_Rows, FloatArray]:
    """Return the weights of the rows under Student-t noise, and the solved right-hand side."""
    for _ in range(sweeps):
        level = noise * rows.base / rows.weight + JITTER
        inverse, _ = _inverse(kernel, level)
        miss = level * (inverse @ target)
        doubt = level - level**2 * np.diag(inverse)
        apart = (miss**2 + doubt) / (noise * rows.base)
        weight = (rows.tail + 1.0) / (rows.tail + apart)
        rows = replace(rows, weight=weight, tail=_tail(apart, weight, rows))
    inverse, _ = _inverse(kernel, noise * rows.base / rows.weight + JITTER)
    return rows, inverse @ target


def _tail(apart: FloatArray, weight: FloatArray, rows: _Rows) -> float:
    """Return the degrees of freedom with the best evidence bound."""
    from scipy.special import digamma

    tail = rows.tail
    log_weight = digamma((tail + 1.0) / 2.0) - np.log((tail + apart) / 2.0)
    pull = float((log_weight - weight).sum())
    bound = [
        len(apart) * (t / 2 * math.log(t / 2) - math.lgamma(t / 2)) + t / 2 * pull
        for t in rows.tails
    ]
    return rows.tails[int(np.argmax(bound))]


def _inverse(kernel: FloatArray, level: FloatArray) -> tuple[FloatArray, float]:
    """Return the inverse of kernel + diagonal `level`, and half its log determinant."""
    from scipy.linalg.lapack import dpotrf, dpotri

    noisy = kernel + np.diag(level)
    factor, failed = dpotrf(noisy, lower=1)
    if failed:
        factor, failed = dpotrf(noisy + np.diag(1e-6 * np.diag(noisy)), lower=1)
    inverse, _ = dpotri(factor, lower=1)
    lower = np.tril(inverse)
    return lower + np.tril(lower, -1).T, float(np.log(np.diag(factor)).sum())


def _reduced(
    recipe: Recipe,
    blocks: Blocks,
    keep: NDArray[np.int64],
    *,
    parameters: FloatArray,
    solved: FloatArray,
    location: tuple[float, float],
) -> Process:
    natural = np.exp(parameters)
    names: Sequence[str] = recipe.linear + recipe.extra
    weights = [
        natural[i] / max(blocks[name].shape[1], 1) * (blocks[name][keep].T @ solved)
        for i, name in enumerate(names)
    ]
    shift = float(solved.sum())  # the constant kernel
    process = Process(
        recipe=recipe,
        offset=location[0] + location[1] * shift,
        scale=location[1],
        natural=natural,
        weights=np.concatenate(weights),
        radial_scale=np.zeros(0),
        anchors=np.zeros((0, 0), dtype=np.float32),
        anchor_weights=np.zeros(0, dtype=np.float32),
    )
    if not recipe.radial:
        return process
    sizes = np.array([max(blocks[name].shape[1], 1) for name in recipe.radial])
    scale = np.sqrt(natural[len(names) + 1 : -1] / sizes)
    rows = stacked(recipe, {name: block[keep] for name, block in blocks.items()}, scale)
    anchors, anchor_weights = _anchored(rows, natural[len(names)] * solved)
    return replace(process, radial_scale=scale, anchors=anchors, anchor_weights=anchor_weights)


def _anchored(
    rows: NDArray[np.float32], solved: FloatArray
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return some of the rows, and weights that give the same function on all rows."""
    most = int(np.clip(ANCHOR_NUMBERS / max(rows.shape[1], 1), *ANCHORS))
    if len(rows) <= most:
        return rows, solved.astype(np.float32)
    chosen = np.linspace(0, len(rows) - 1, most).astype(np.int64)
    wide = rows.astype(np.float64)
    kernel = np.exp(-0.5 * _distances(wide))
    tall = kernel[:, chosen]
    square = tall.T @ tall
    square[np.diag_indices_from(square)] += 1e-6 * np.trace(square) / len(square)
    return rows[chosen], np.linalg.solve(square, tall.T @ (kernel @ solved)).astype(np.float32)


def _distances(rows: FloatArray) -> FloatArray:
    square = (rows**2).sum(axis=1)
    return np.asarray(np.maximum(square[:, None] + square - 2.0 * rows @ rows.T, 0.0))
