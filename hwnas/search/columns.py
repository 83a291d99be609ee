"""Columns that predictors and the surrogate see, derived from rows of value indices of a space.

`gene_columns` and `cost_columns` are what `hwnas.predictors.Predictor` is fitted on; `Encoder`
makes the blocks of the surrogate: one-hot choices, how often each value of an alphabet occurs
(an operation costs about the same wherever it stands), costs, and columns of the caller's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.spaces import Arch, Space

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Features = Callable[[list[Arch]], Any]
METRICS = ("macs", "params", "activations")
SCALED_ON = 2048  # random architectures that say what is a usual value of a column
FLOOR = 0.02  # of a column's mean: keeps absent operations at a finite logarithm


def gene_columns(space: Space, codes: Codes) -> Floats:
    """Return the values of the genes (n, genes); genes that are not numbers as value indices."""
    columns = []
    for column, values in enumerate(space.genes.values()):
        numbers = all(isinstance(value, int | float) for value in values)
        table = np.array(values if numbers else range(len(values)), np.float64)
        columns.append(table[codes[:, column]])
    return np.stack(columns, axis=1)


def cost_names(space: Space) -> tuple[str, ...]:
    """Return the names of the columns of `cost_columns`; none where there are no networks."""
    return tuple(_costs(space, np.zeros((1, len(space.genes)), np.int64)))


def cost_columns(space: Space, codes: Codes) -> Floats:
    """Return costs in millions: totals, by kind of operation and by stage; number of blocks."""
    columns = _costs(space, codes)
    return np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(codes), 0))


def _costs(space: Space, codes: Codes) -> dict[str, Floats]:
    if not space.parts:
        return {}
    costs = space.cost(codes)
    columns = {metric: getattr(costs, metric) / 1e6 for metric in METRICS}
    columns["layers"] = costs.layers.astype(np.float64)
    for metric in METRICS:
        for split, values in (("kind", costs.by_kind(metric)), ("stage", costs.by_stage(metric))):
            columns |= {f"{metric}.{split}.{name}": v / 1e6 for name, v in values.items()}
    return columns


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Architectures as the surrogate sees them: one-hot choices and scaled blocks of columns."""

    ones: Floats
    blocks: tuple[Floats, ...]

    def __len__(self) -> int:
        return len(self.ones)

    def rows(self, chosen: NDArray[Any] | slice) -> "Table":
        """Return the table of some of the architectures."""
        return Table(ones=self.ones[chosen], blocks=tuple(b[chosen] for b in self.blocks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """Centre and spread of the columns of a block that are not constant in the space."""

    used: NDArray[np.int64]
    floor: Floats | None
    mean: Floats
    spread: Floats

    @classmethod
    def of(cls, columns: Floats, *, logarithmic: bool) -> Self:
        """Return the scaling of these usual values; logarithmic ones must not be negative."""
        spread = columns.std(axis=0)
        used = np.flatnonzero(spread > 1e-9 * np.abs(columns).max(axis=0, initial=0.0))
        columns = columns[:, used]
        floor = np.maximum(FLOOR * columns.mean(axis=0), 1e-12) if logarithmic else None
        if floor is not None:
            columns = np.log(columns + floor)
        return cls(
            used=used, floor=floor, mean=columns.mean(axis=0), spread=columns.std(axis=0) + 1e-12
        )

    def __call__(self, columns: Floats) -> Floats:
        """Return the scaled columns."""
        columns = columns[:, self.used]
        if self.floor is not None:
            columns = np.log(columns + self.floor)
        return np.asarray((columns - self.mean) / self.spread)


class Encoder:
    """Turns rows of value indices of one space into tables for the surrogate."""

    def __init__(self, space: Space, *, features: Features | None = None) -> None:
        self._space = space
        self._features = features
        self.gene, self.letter = _letters(space)
        self._starts = np.concatenate([[0], np.cumsum(space.cardinalities)[:-1]])
        counting = np.eye(int(self.letter.max()) + 1)[self.letter]
        self._counting = counting[:, counting.sum(axis=0) > 1]
        usual = space.sample_codes(SCALED_ON, np.random.default_rng(0))
        self._scalings = [
            Scaling.of(block, logarithmic=costly) for block, costly in self._raw(usual)
        ]

    def __call__(self, codes: Codes) -> Table:
        """Return the table of canonical rows of value indices."""
        scaled = [
            scaling(block)
            for scaling, (block, _) in zip(self._scalings, self._raw(codes), strict=True)
        ]
        return Table(ones=self._ones(codes), blocks=tuple(b for b in scaled if b.shape[1]))

    def _ones(self, codes: Codes) -> Floats:
        """Return the one-hot choices; those that make no difference are all zero."""
        ones = np.zeros((len(codes), len(self.gene)))
        active = self._space.active(codes).astype(np.float64)
        np.put_along_axis(ones, codes + self._starts, active, axis=1)
        return ones

    def _raw(self, codes: Codes) -> list[tuple[Floats, bool]]:
        """Return (columns, whether they are costs) of each block."""
        blocks: list[tuple[Floats, bool]] = [(self._ones(codes) @ self._counting, False)]
        if self._space.parts:
            costs = cost_columns(self._space, codes)
            totals = len(METRICS) + 1
            blocks += [(costs[:, :totals], True), (costs[:, totals:], True)]
        if self._features is not None:
            blocks.append((self._own(codes, self._features), False))
        return blocks

    def _own(self, codes: Codes, features: Features) -> Floats:
        columns = np.asarray(features(self._space.decode(codes)), np.float64)
        if columns.ndim != 2 or len(columns) != len(codes) or not np.isfinite(columns).all():
            raise UsageError(
                f"features returned an array of shape {columns.shape} for {len(codes)} "
                "architectures; accepted: finite numbers, one row per architecture"
            )
        return columns


def _letters(space: Space) -> tuple[Codes, Codes]:
    """Return gene and letter of each one-hot column; genes with the same values share letters."""
    alphabets: dict[Sequence[object], int] = {}
    gene: list[int] = []
    letter: list[int] = []
    total = 0
    for column, values in enumerate(space.genes.values()):
        if values not in alphabets:
            alphabets[values] = total
            total += len(values)
        gene += [column] * len(values)
        letter += range(alphabets[values], alphabets[values] + len(values))
    return np.array(gene, np.int64), np.array(letter, np.int64)
