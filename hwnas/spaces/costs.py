"""Costs of many architectures at once, from tables of the costs of parts.

A part's blocks depend on few genes, so its cost is computed once for every combination that is
met and kept. The costs of n architectures are then one gather per part.
"""

from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.spaces.blocks import KINDS

if TYPE_CHECKING:
    from hwnas.spaces.space import Part, Space

Counts = NDArray[np.int64]
METRICS = ("macs", "params", "activations")
CONVENTION = (
    "MACs: multiply-accumulates of convolutions, linears and attention products, nothing else"
)
_DENSE_LIMIT = 1 << 20
_MOST_NUMBERED = 1 << 62


class Costs:
    """Costs of n architectures: totals, and by kind of operation and by stage on demand."""

    def __init__(self, tables: list["_PartTable"], rows: Counts) -> None:
        self._tables, self._rows = tables, rows

    def __len__(self) -> int:
        return len(self._rows)

    @cached_property
    def macs(self) -> Counts:
        """Multiply-accumulates for one image."""
        return self._total(0)

    @cached_property
    def params(self) -> Counts:
        """Parameters of the plain network."""
        return self._total(1)

    @cached_property
    def activations(self) -> Counts:
        """Elements written by the counted operations for one image."""
        return self._total(2)

    def by_kind(self, metric: str) -> dict[str, Counts]:
        """Return the metric for each kind of operation."""
        total = np.zeros((len(self), len(KINDS)), np.int64)
        for table, rows in zip(self._tables, self._rows.T, strict=True):
            total += table.values[rows, METRICS.index(metric)]
        return {kind: total[:, index] for index, kind in enumerate(KINDS)}

    def by_stage(self, metric: str) -> dict[str, Counts]:
        """Return the metric for each stage."""
        stages: dict[str, Counts] = {}
        for table, rows in zip(self._tables, self._rows.T, strict=True):
            values = table.totals[rows, METRICS.index(metric)]
            stage = table.part.stage
            stages[stage] = stages[stage] + values if stage in stages else values
        return stages

    @cached_property
    def layers(self) -> Counts:
        """The number of blocks."""
        total = np.zeros(len(self), np.int64)
        for table, rows in zip(self._tables, self._rows.T, strict=True):
            total += table.layers[rows]
        return total

    def _total(self, metric: int) -> Counts:
        total = np.zeros(len(self._rows), np.int64)
        for table, rows in zip(self._tables, self._rows.T, strict=True):
            total += table.totals[rows, metric]
        return total


class CostTables:
    """The tables of one space; they grow as new combinations are met."""

    def __init__(self, space: "Space") -> None:
        self._tables = [_PartTable(space, part) for part in space.parts]

    def costs(self, codes: Counts) -> Costs:
        """Return the costs of canonical rows of value indices."""
        rows = np.stack([table.rows(codes) for table in self._tables], axis=1)
        return Costs(self._tables, rows)


class _PartTable:
    def __init__(self, space: "Space", part: "Part") -> None:
        self.part = part
        self._space = space
        self._columns = [space.columns[gene] for gene in part.genes]
        sizes = [int(space.cardinalities[column]) for column in self._columns]
        strides = [prod(sizes[:place]) for place in range(len(sizes))]
        combinations = prod(sizes)
        # The number of a combination has to fit an integer; a part that has more of them is known
        # by the choices themselves.
        self._strides = np.array(strides, np.int64) if combinations <= _MOST_NUMBERED else None
        dense = combinations <= _DENSE_LIMIT
        self._row_of = np.full(combinations, -1, np.int64) if dense else None
        self._known: dict[int | bytes, int] = {}
        self.values = np.zeros((0, len(METRICS), len(KINDS)), np.int64)
        self.totals = np.zeros((0, len(METRICS)), np.int64)
        self.layers = np.zeros(0, np.int64)

    def rows(self, codes: Counts) -> Counts:
        """Return the table row of each architecture, adding rows that are missing."""
        chosen = codes[:, self._columns]
        combination = self._combination(chosen)
        if self._row_of is not None:
            rows: Counts = self._row_of[combination]
            if (rows < 0).any():
                self._add(chosen[rows < 0], combination[rows < 0])
                rows = self._row_of[combination]
            return rows
        distinct, first, inverse = np.unique(combination, return_index=True, return_inverse=True)
        new = [index for index, key in enumerate(distinct.tolist()) if key not in self._known]
        self._add(chosen[first[new]], distinct[new])
        return np.array([self._known[key] for key in distinct.tolist()], np.int64)[inverse]

    def _combination(self, chosen: Counts) -> NDArray[Any]:
        """Return what tells each row of choices from others: a number, or else its bytes."""
        if self._strides is not None:
            return chosen @ self._strides
        rows = np.ascontiguousarray(chosen, np.int64)
        return rows.view(f"V{rows.shape[1] * rows.itemsize}").reshape(-1)

    def _add(self, chosen: Counts, combination: NDArray[Any]) -> None:
        distinct, first = np.unique(combination, return_index=True)
        if not len(distinct):
            return
        choices = [self._space.genes[gene] for gene in self.part.genes]
        values = np.zeros((len(distinct), len(METRICS), len(KINDS)), np.int64)
        layers = np.zeros(len(distinct), np.int64)
        for row, codes in enumerate(chosen[first].tolist()):
            genes = {
                gene: of[code]
                for gene, of, code in zip(self.part.genes, choices, codes, strict=True)
            }
            blocks = self.part.blocks(genes)
            layers[row] = len(blocks)
            for placed in blocks:
                for kind, *counts in placed.block.operations(placed.side):
                    values[row, :, KINDS.index(kind)] += counts
        start = len(self.values)
        self.values = np.concatenate([self.values, values])
        self.totals = np.concatenate([self.totals, values.sum(2)])
        self.layers = np.concatenate([self.layers, layers])
        new_rows = np.arange(start, start + len(distinct))
        if self._row_of is not None:
            self._row_of[distinct] = new_rows
        else:
            self._known.update(zip(distinct.tolist(), new_rows.tolist(), strict=True))
