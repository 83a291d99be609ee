"""`Predictor`: from genes and costs to a value, an interval, and whether it was measured nearby."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas.predictors import checks
from hwnas.predictors.card import Card, read_predictor, write_predictor
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.scores import shift_of
from hwnas.predictors.stack import Runner, Stack, fit_stack

LEAST_ROWS = 10


class Prediction(NamedTuple):
    """Value of each row, and the interval that holds `level` of the true values."""

    mean: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Predictor:
    """A fitted stack, ready to predict; made by `fit` or `load`, never by hand."""

    stack: Stack
    card: Card
    _runner: Runner = field(repr=False, compare=False)

    @classmethod
    def fit(
        cls,
        genes: ArrayLike,
        costs: ArrayLike,
        y: ArrayLike,
        *,
        seed: int = 0,
        gene_names: tuple[str, ...] = (),
        cost_names: tuple[str, ...] = (),
        target: str = "",
        about: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a predictor of `y` (n,) from `genes` (n, g) and `costs` (n, c; c may be 0).

        The same data and seed give the same predictor, bit for bit. `target` and `about` (device,
        precision, ...) are stored with it.
        """
        table, price = checks.features(genes, costs, gene_names=gene_names, cost_names=cost_names)
        truth = checks.target(y, rows=len(table), name=target, least=LEAST_ROWS)
        checks.different(table, price)
        shift = shift_of(truth)
        stack = fit_stack(table, price, truth + shift, seed=seed)
        card = Card(
            target=target,
            rows=len(truth),
            seed=seed,
            shift=shift,
            gene_names=gene_names or tuple(f"gene{j}" for j in range(table.shape[1])),
            cost_names=cost_names or tuple(f"cost{j}" for j in range(price.shape[1])),
            lowest=float(truth.min()),
            highest=float(truth.max()),
            about=dict(about or {}),
        )
        return cls(stack=stack, card=card, _runner=Runner(stack))

    def predict(
        self,
        genes: ArrayLike,
        costs: ArrayLike,
        *,
        level: float = 0.9,
        tilt: float | None = None,
    ) -> Prediction:
        """Return the value of each row with the interval that holds `level` of the truths.

        `tilt`: the share of the other truths that lie below it, 0.5 for as many as above; by
        default what makes the interval short.
        """
        value, spread = self._runner(*self._checked(genes, costs))
        low, high = self.stack.errors.bounds(spread, level=level, tilt=tilt)
        shift = self.card.shift
        return Prediction(value - shift, value * (1.0 + low) - shift, value * (1.0 + high) - shift)

    def prob_at_most(self, genes: ArrayLike, costs: ArrayLike, limit: ArrayLike) -> FloatArray:
        """Return for each row the probability that its true value is at most `limit`."""
        value, spread = self._runner(*self._checked(genes, costs))
        relative = (np.asarray(limit, dtype=np.float64) + self.card.shift) / value - 1.0
        return self.stack.errors.share_at_most(relative, spread)

    def in_range(self, genes: ArrayLike, costs: ArrayLike) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what was measured, and is like it."""
        return self._runner.in_range(*self._checked(genes, costs))

    def save(self, folder: Path) -> None:
        """Write the folder `folder`: a JSON card and a file of arrays, nothing executable."""
        write_predictor(folder, self.stack, self.card)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Return the predictor stored in `folder`; needs neither scikit-learn nor scipy."""
        stack, card = read_predictor(folder)
        return cls(stack=stack, card=card, _runner=Runner(stack))

    def _checked(self, genes: ArrayLike, costs: ArrayLike) -> tuple[FloatArray, FloatArray]:
        return checks.features(
            genes, costs, gene_names=self.card.gene_names, cost_names=self.card.cost_names
        )
