"""How sure a process is of an architecture, given which others were measured.

Under Gaussian noise that depends on where was measured alone, never on what was measured there.
Variances and deviations are relative to those of the noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.predictors.columns import FloatArray
from hwnas.predictors.process import Process

Blocks = Mapping[str, FloatArray]

JITTER = 1e-9
FAR = 2.0


class Known(NamedTuple):
    """Genes and costs of rows that were measured."""

    genes: FloatArray
    costs: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Posterior:
    """A process and the rows that were measured; `inverse` is that of their Cholesky factor."""

    process: Process
    known: "_Described"
    inverse: FloatArray

    @classmethod
    def given(cls, process: Process, known: Blocks) -> Self:
        """Return what is left to know when these rows are known."""
        rows = _described(process, known)
        seen = _covariance(rows, rows)
        factor = np.linalg.cholesky(seen + (1.0 + JITTER) * np.eye(len(seen)))
        return cls(process=process, known=rows, inverse=np.linalg.inv(factor))

    def left(self, blocks: Blocks) -> FloatArray:
        """Return the variance of the value of each row, without noise."""
        rows = _described(self.process, blocks)
        explained = self.inverse @ _covariance(self.known, rows)
        left = rows.variance - np.einsum("ij,ij->j", explained, explained)
        return np.asarray(np.maximum(left, 0.0))

    def left_out(self) -> FloatArray:
        """Return the same of each known row, had it not been measured."""
        return np.asarray(np.maximum(1.0 / (self.inverse**2).sum(axis=0) - 1.0, 0.0))

    def far(self, blocks: Blocks) -> NDArray[np.bool_]:
        """Return for each row whether it is unlike what was measured.

        Its variance is more than that of noise, and than FAR times what nine in ten known rows had
        when they were left out.
        """
        return self.left(blocks) > max(1.0, FAR * float(np.quantile(self.left_out(), 0.9)))

    def covariance(self, blocks: Blocks) -> FloatArray:
        """Return how the values of these rows vary together, without noise."""
        rows = _described(self.process, blocks)
        explained = self.inverse @ _covariance(self.known, rows)
        return np.asarray(_covariance(rows, rows) - explained.T @ explained)


class _Described(NamedTuple):
    """Rows as the kernel sees them: products of `linear`, `bend` times Gaussians of `radial`."""

    linear: FloatArray
    radial: FloatArray
    bend: float
    variance: FloatArray


def _described(process: Process, blocks: Blocks) -> _Described:
    recipe, natural = process.recipe, process.natural / process.natural[-1]
    names = recipe.linear + recipe.extra
    count = len(blocks[names[0]])
    shares = [n / max(blocks[name].shape[1], 1) for n, name in zip(natural, names, strict=False)]
    parts = [math.sqrt(s) * blocks[name] for s, name in zip(shares, names, strict=True)]
    constant = np.full((count, 1), process.natural[-1] ** -0.5)
    linear = np.concatenate([constant, *parts], axis=1)
    bend = float(natural[len(names)]) if recipe.radial else 0.0
    variance = np.einsum("ij,ij->i", linear, linear) + bend
    if "choices" in names:  # a value never seen has a weight of which nothing is known
        variance += shares[names.index("choices")] * blocks["unseen"][:, 0]
    scaled = zip(recipe.radial, process.radial_scale, strict=True)
    radial = np.concatenate([np.zeros((count, 1)), *(blocks[n] * s for n, s in scaled)], axis=1)
    return _Described(linear, radial, bend, variance)


def _covariance(one: _Described, two: _Described) -> FloatArray:
    """Return the prior covariance between rows."""
    apart = one.radial @ two.radial.T
    apart -= 0.5 * np.einsum("ij,ij->i", one.radial, one.radial)[:, None]
    apart -= 0.5 * np.einsum("ij,ij->i", two.radial, two.radial)
    np.exp(np.minimum(apart, 0.0, out=apart), out=apart)
    return np.asarray(one.linear @ two.linear.T + one.bend * apart)
