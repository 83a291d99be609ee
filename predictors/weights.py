"""Non-negative weights that sum to one, for members that predict the same thing."""

from itertools import combinations

import numpy as np

from hwnas.predictors.columns import FloatArray

SWEEPS = 20
LEAST = 0.02  # members with less are not worth their time
PULL = 20.0  # rows' worth of belief in equal weights of the good members


def simplex_weights(ratios: FloatArray) -> FloatArray:
    """Return the weights for which `ratios @ weights` is nearest to one in absolute terms.

    `ratios` are predictions divided by the truth, (rows, members). Every subset of members is
    solved with equal sum, the best with no negative weight is kept: exact, for a handful of
    members. Absolute errors are reached by reweighting squares.
    """
    rows, members = ratios.shape
    miss = ratios - 1.0
    single = np.abs(miss).mean(axis=0)
    prior = 1.0 / np.maximum(single, 1e-9) ** 2
    prior /= prior.sum()
    weights = prior
    floor = max(0.1 * float(np.median(np.abs(miss @ weights))), 1e-9)
    for _ in range(SWEEPS):
        importance = 1.0 / np.maximum(np.abs(miss @ weights), floor)
        square = miss.T @ (importance[:, None] * miss)
        square[np.diag_indices(members)] += 1e-6 * np.trace(square) / members
        new = _smallest(square)
        if np.allclose(new, weights, atol=1e-6):
            break
        weights = new
    mixed = (rows * weights + PULL * prior) / (rows + PULL)
    mixed[mixed < min(LEAST, mixed.max())] = 0.0
    return np.asarray(mixed / mixed.sum())


def _smallest(square: FloatArray) -> FloatArray:
    """Return the point of the simplex where the quadratic form `square` is smallest."""
    members = len(square)
    best, best_value = np.full(members, 1.0 / members), np.inf
    for size in range(1, members + 1):
        for subset in combinations(range(members), size):
            at = list(subset)
            part = np.linalg.solve(square[np.ix_(at, at)], np.ones(size))
            part /= part.sum()
            value = float(part @ square[np.ix_(at, at)] @ part)
            if value < best_value and (part >= 0.0).all():
                best_value = value
                best = np.zeros(members)
                best[at] = part
    return best
