"""Gaussian process for tens to hundreds of measured architectures, whose choices have no order.

Kernel: a constant, a linear kernel in the one-hot choices and in every block of columns, and a
Gaussian kernel over all of them. There a choice lies where its letter (the value within the
alphabet that genes share) lies, times the weight of its gene: letters that act alike at all places
come to lie together. Hyper-parameters: the largest marginal likelihood under weak priors, always
from the same start, so that a fit depends on its data alone.
"""

import math
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.search.arrays import Codes, Floats
from hwnas.search.encoder import Table

JITTER = 1e-8
STEPS = 40
CHUNK = 8192
PAIRED = 24  # letters of the largest alphabets whose letters may come to lie together


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel:
    """Where each hyper-parameter stands in a vector, and its prior.

    Order: linear in the choices, linear in each block, Gaussian part; weights of genes, letters
    and blocks in its distance; noise: these are logarithms. Then the nearness of the pairs of
    letters in `pairs`, (pairs, 2). Letters lie on rows of a symmetric matrix, which has the roots
    of their weights on its diagonal and the nearness beside it, so that no order of the letters is
    preferred.
    """

    gene: Codes
    letter: Codes
    blocks: int
    pairs: Codes
    genes: int
    letters: int

    @classmethod
    def of(cls, gene: Codes, letter: Codes, *, blocks: int) -> Self:
        """Return the kernel for these one-hot columns.

        Letters of one gene only stay apart, and so do those of alphabets so large that their pairs
        would outnumber all that is ever measured.
        """
        genes, letters = int(gene.max()) + 1, int(letter.max()) + 1
        shared = np.bincount(letter) > 1
        together = np.zeros((letters, letters), bool)
        for one in range(genes):
            own = letter[gene == one]
            if len(own) <= PAIRED:
                together[np.ix_(own, own)] = True
        together &= shared[:, None] & shared
        pairs = np.argwhere(np.triu(together, 1)).astype(np.int64)
        return cls(
            gene=gene, letter=letter, blocks=blocks, pairs=pairs, genes=genes, letters=letters
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of hyper-parameters of each sort."""
        return (1, self.blocks, 1, self.genes, self.letters, self.blocks, 1, len(self.pairs))

    def split(self, parameters: Floats) -> list[Floats]:
        """Return the hyper-parameters of each sort, logarithms undone."""
        ends = list(accumulate(self.sizes))
        undone = np.exp(parameters[: ends[-2]])
        starts = [0, *ends[:-2]]
        logarithms = [undone[a:b] for a, b in zip(starts, ends[:-1], strict=True)]
        return [*logarithms, parameters[ends[-2] :]]

    def prior(self) -> tuple[Floats, Floats]:
        """Return means and deviations of the hyper-parameters."""
        means = (-1.0, -1.0, -0.7, math.log(2.0 / self.genes), 0.0, math.log(0.1), -4.0, 0.0)
        deviations = (2.0, 2.0, 1.5, 1.0, 0.5, 1.5, 2.0, 0.5)
        return np.repeat(means, self.sizes), np.repeat(deviations, self.sizes)

    def bounds(self) -> list[tuple[float, float]]:
        """Return the ends of the range of each hyper-parameter."""
        ends = [(-10.0, 6.0)] * 6 + [(-9.0, 2.0), (-3.0, 3.0)]
        return [end for end, size in zip(ends, self.sizes, strict=True) for _ in range(size)]

    def places(self, gene: Floats, letter: Floats, nearness: Floats) -> Floats:
        """Return where each one-hot column lies in the distance, (columns, columns)."""
        matrix = np.diag(np.sqrt(letter))
        one, other = self.pairs.T
        matrix[one, other] = matrix[other, one] = nearness
        same = self.gene[:, None] == self.gene
        spread = matrix[np.ix_(self.letter, self.letter)] * same
        return np.asarray(spread * np.sqrt(0.5 * gene[self.gene])[:, None])

    def __call__(self, parameters: Floats, a: Table, b: Table) -> tuple[Floats, Floats]:
        """Return (kernel between the rows of two tables, its Gaussian part at amplitude one)."""
        choice, lines, amplitude, gene, letter, radii, _, nearness = self.split(parameters)
        places = self.places(gene, letter, nearness)
        total = 1.0 + (choice[0] / self.genes) * (a.ones @ b.ones.T)
        columns_a = [a.ones @ places]
        columns_b = [b.ones @ places]
        for line, radius, x, y in zip(lines, radii, a.blocks, b.blocks, strict=True):
            total += (x * (line / x.shape[1])) @ y.T
            scale = math.sqrt(radius / x.shape[1])
            columns_a.append(x * scale)
            columns_b.append(y * scale)
        gaussian = _distances(np.concatenate(columns_a, 1), np.concatenate(columns_b, 1))
        gaussian *= -0.5
        np.exp(gaussian, out=gaussian)
        total += amplitude[0] * gaussian
        return total, gaussian

    def variances(self, parameters: Floats, table: Table) -> Floats:
        """Return the kernel of each row with itself."""
        choice, lines, amplitude, *_ = self.split(parameters)
        total = 1.0 + amplitude[0] + (choice[0] / self.genes) * (table.ones**2).sum(axis=1)
        for line, x in zip(lines, table.blocks, strict=True):
            total += line * (x**2).mean(axis=1)
        return np.asarray(total)


def _distances(x: Floats, y: Floats) -> Floats:
    distances = x @ (-2.0 * y.T)
    distances += (x**2).sum(axis=1)[:, None]
    distances += (y**2).sum(axis=1)
    return np.maximum(distances, 0.0, out=distances)


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """A process conditioned on measured rows; targets have mean 0 and spread 1."""

    kernel: Kernel
    parameters: Floats
    table: Table
    factor: Floats
    weights: Floats
    loss: float

    @property
    def noise(self) -> float:
        """The variance of the noise."""
        return float(self.kernel.split(self.parameters)[-2][0])

    def predict(self, table: Table) -> tuple[Floats, Floats]:
        """Return mean and variance of each row, without noise."""
        means, variances = [], []
        for start in range(0, len(table), CHUNK):
            part = table.rows(slice(start, start + CHUNK))
            mean, half = self.reach(part)
            means.append(mean)
            variances.append(self.kernel.variances(self.parameters, part) - (half**2).sum(axis=0))
        return np.concatenate(means), np.maximum(np.concatenate(variances), 1e-10)

    def mean(self, table: Table) -> Floats:
        """Return the mean of each row."""
        return self.kernel(self.parameters, table, self.table)[0] @ self.weights

    def reach(self, table: Table) -> tuple[Floats, Floats]:
        """Return means, and the half covariances (measured, rows) that lessen the variances."""
        from scipy.linalg import solve_triangular

        cross, _ = self.kernel(self.parameters, self.table, table)
        return self.weights @ cross, solve_triangular(self.factor, cross, lower=True)


def fit(kernel: Kernel, table: Table, target: Floats) -> Process:
    """Return the process with the most probable hyper-parameters for this target."""
    from scipy.linalg import cho_solve
    from scipy.optimize import minimize

    likelihood = _Likelihood(kernel, table, target)
    start, _ = kernel.prior()
    found = minimize(
        likelihood,
        start,
        jac=True,
        method="L-BFGS-B",
        bounds=kernel.bounds(),
        options={"maxiter": STEPS},
    )
    covariance, _ = kernel(found.x, table, table)
    covariance[np.diag_indices_from(covariance)] += kernel.split(found.x)[-2] + JITTER
    factor = np.linalg.cholesky(covariance)
    return Process(
        kernel=kernel,
        parameters=found.x,
        table=table,
        factor=np.asarray(factor, np.float64),
        weights=cho_solve((factor, True), target),
        loss=float(found.fun),
    )


class _Likelihood:
    """Negative log posterior of the hyper-parameters, with its gradient."""

    def __init__(self, kernel: Kernel, table: Table, target: Floats) -> None:
        used = table.ones.any(axis=0)  # of large alphabets few letters are measured
        kernel = replace(kernel, gene=kernel.gene[used], letter=kernel.letter[used])
        table = Table(ones=table.ones[:, used], blocks=table.blocks)
        self._kernel, self._table, self._target = kernel, table, target
        self._prior = kernel.prior()
        self._choices = table.ones @ table.ones.T / kernel.genes
        self._lines = [x @ x.T / x.shape[1] for x in table.blocks]
        self._squares = [_distances(x, x) / x.shape[1] for x in table.blocks]

    def __call__(self, parameters: Floats) -> tuple[float, Floats]:
        covariance, gaussian = self._kernel(parameters, self._table, self._table)
        covariance[np.diag_indices_from(covariance)] += self._kernel.split(parameters)[-2] + JITTER
        inverse, half_log_determinant = _inverse(covariance)
        solved = inverse @ self._target
        slope = 0.5 * (inverse - np.outer(solved, solved))
        mean, deviation = self._prior
        apart = (parameters - mean) / deviation
        loss = 0.5 * self._target @ solved + half_log_determinant + 0.5 * apart @ apart
        gradient = self._gradient(parameters, slope, slope * gaussian)
        return float(loss), gradient + apart / deviation

    def _gradient(self, parameters: Floats, slope: Floats, pulled: Floats) -> Floats:
        kernel = self._kernel
        choice, lines, amplitude, gene, letter, radii, noise, nearness = kernel.split(parameters)
        places = kernel.places(gene, letter, nearness)
        by_gene, by_letter, by_pair = self._placing(places, gene, pulled * amplitude[0])
        parts: list[Any] = [
            choice * _inner(slope, self._choices),
            lines * [_inner(slope, line) for line in self._lines],
            amplitude * pulled.sum(),
            by_gene,
            0.5 * np.sqrt(letter) * by_letter,
            -0.5 * amplitude * radii * [_inner(pulled, square) for square in self._squares],
            noise * np.trace(slope),
            by_pair,
        ]
        return np.concatenate(parts)

    def _placing(
        self, places: Floats, gene: Floats, pulled: Floats
    ) -> tuple[NDArray[Any], Floats, Floats]:
        """Return slopes by the logarithms of genes, by the letters' diagonal, by the pairs."""
        kernel, ones = self._kernel, self._table.ones
        lying = ones @ places
        by_place = -2.0 * ones.T @ (pulled.sum(axis=1)[:, None] * lying - pulled @ lying)
        by_gene = np.bincount(kernel.gene, 0.5 * (by_place * places).sum(axis=1), kernel.genes)
        same = kernel.gene[:, None] == kernel.gene
        by_place = by_place * same * np.sqrt(0.5 * gene[kernel.gene])[:, None]
        letters = np.eye(kernel.letters)[kernel.letter]
        matrix = letters.T @ by_place @ letters
        one, other = kernel.pairs.T
        return by_gene, np.diag(matrix), matrix[one, other] + matrix[other, one]


def _inner(a: Floats, b: Floats) -> float:
    return float(a.ravel() @ b.ravel())


def _inverse(covariance: Floats) -> tuple[Floats, float]:
    """Return the inverse of a covariance and half its log determinant."""
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed = dpotrf(covariance, lower=1)
    if failed:
        diagonal = np.diag(1e-6 * np.diag(covariance))
        factor, failed = dpotrf(covariance + diagonal, lower=1)
    lower, _ = dpotri(factor, lower=1)  # above the diagonal stay the zeros of the factor
    inverse: NDArray[np.float64] = lower + lower.T
    inverse[np.diag_indices_from(inverse)] *= 0.5
    return inverse, float(np.log(np.diag(factor)).sum())
