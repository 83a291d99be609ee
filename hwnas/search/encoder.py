"""Architectures as the surrogate of the measured loop sees them.

Blocks of columns: one-hot choices, how often each value of an alphabet occurs (an operation costs
about the same wherever it stands), closed-form costs, and columns of the caller's own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.predictors.features import features as known_of
from hwnas.search.arrays import Codes, Floats
from hwnas.spaces import Arch, Space

Features = Callable[[list[Arch]], Any]
SCALED_ON = 2048  # random architectures that say what is a usual value of a column
FLOOR = 0.02  # of a column's mean: keeps absent operations at a finite logarithm


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
            found = known_of(self._space, codes)
            parts = np.array(["." in name for name in found.cost_names])
            blocks += [(found.costs[:, ~parts], True), (found.costs[:, parts], True)]
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
