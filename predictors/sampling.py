"""Which architectures to measure: spread over what is expected, or where it is least known."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas.errors import UsageError
from hwnas.predictors import checks
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.posterior import Posterior
from hwnas.predictors.predictor import Predictor
from hwnas.predictors.stack import SURE
from hwnas.predictors.threads import one_blas_thread

MOST_CANDIDATES = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Genes and costs of the architectures that were measured already."""

    genes: ArrayLike
    costs: ArrayLike


def stratified(mean_prediction: ArrayLike, n: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return `n` indices, one from each of `n` equally filled ranges of the prediction."""
    values = np.asarray(mean_prediction, dtype=np.float64)
    if not 1 <= n <= len(values):
        raise UsageError(f"{n} of {len(values)} architectures asked for")
    order = np.argsort(values, kind="stable")
    edges = np.linspace(0, len(values), n + 1).astype(np.int64)
    picks = [order[rng.integers(a, b)] for a, b in pairwise(edges)]
    return np.array(picks, dtype=np.int64)


def most_uncertain(
    predictor: Predictor,
    genes: ArrayLike,
    costs: ArrayLike,
    n: int,
    *,
    measured: Measured,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the indices of `n` candidates to measure next, a batch without near-duplicates.

    One after the other, the candidate whose value is least certain given `measured` and those
    picked before it, under the covariance of the predictor's process. Of many candidates a
    random MOST_CANDIDATES are considered.
    """
    table, price = checks.features(genes, costs)
    if not 1 <= n <= len(table):
        raise UsageError(f"{n} of {len(table)} architectures asked for")
    with one_blas_thread():
        return _most_uncertain(predictor, table, price, n, measured=measured, rng=rng)


def _most_uncertain(
    predictor: Predictor,
    table: FloatArray,
    price: FloatArray,
    n: int,
    *,
    measured: Measured,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    pool = np.sort(rng.permutation(len(table))[: max(MOST_CANDIDATES, n)])
    columns = predictor.stack.columns
    known = columns.blocks(*checks.features(measured.genes, measured.costs))
    posterior = Posterior.given(predictor.stack.processes[SURE], known)
    left = posterior.covariance(columns.blocks(table[pool], price[pool]))
    importance = predictor.predict(table[pool], price[pool]).mean ** -2.0
    picks: list[int] = []
    for _ in range(n):
        removed = importance @ left**2 / (np.diag(left) + 1.0)
        removed[picks] = -np.inf
        pick = int(np.argmax(removed))
        picks.append(pick)
        column = left[:, pick]
        left = left - np.outer(column, column) / (left[pick, pick] + 1.0)
    return np.asarray(pool[picks])
