"""Columns that the members of a predictor see, derived from plain gene and cost arrays.

Blocks: `genes` (standardised), `choices` (one column per value of a gene with few values),
`counts` (how many genes of the same alphabet hold a value: an operation costs about the same
wherever it stands), `trends` (the same counts weighted by slow waves along the depth), `costs`
(standardised), `logs` (their logarithms), and `unseen` (how many choices have a value that no
measured row has; members do not see it). Columns that are constant in the measured rows are
left out. What is learned from the measured rows is kept in `Columns`, so that any other
architecture is described in the same way.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

MANY_VALUES = 12  # genes with more values than this are numbers, not choices
FEW_GENES = 3  # fewer genes than this over one alphabet are not worth counting
WAVES = 3
LOG_FLOOR = 0.02  # of a cost's mean: keeps absent operations at a finite logarithm
SLACK = 0.1  # of the measured range of a cost: how far outside still counts as measured


@dataclass(frozen=True, kw_only=True, slots=True)
class Columns:
    """How genes and costs become blocks of columns; all fields are arrays and can be stored."""

    gene_low: FloatArray
    gene_high: FloatArray
    cost_low: FloatArray
    cost_high: FloatArray
    gene_used: NDArray[np.int64]
    gene_mean: FloatArray
    gene_scale: FloatArray
    numeric: NDArray[np.int64]
    choice_gene: NDArray[np.int64]
    choice_value: FloatArray
    count_matrix: FloatArray
    count_mean: FloatArray
    trend_matrix: FloatArray
    trend_mean: FloatArray
    cost_used: NDArray[np.int64]
    cost_mean: FloatArray
    cost_scale: FloatArray
    log_floor: FloatArray
    log_mean: FloatArray
    log_scale: FloatArray

    @classmethod
    def learn(cls, genes: FloatArray, costs: FloatArray) -> Self:
        """Return the columns of these measured rows."""
        gene_used, gene_mean, gene_scale = _spread(genes)
        cost_used, cost_mean, cost_scale = _spread(costs)
        used = np.maximum(costs[:, cost_used], 0.0)
        log_floor = np.maximum(LOG_FLOOR * used.mean(axis=0), 1e-12)
        logs = np.log(used + log_floor)
        alphabets = {int(j): np.unique(genes[:, j]) for j in gene_used}
        numeric = [j for j, values in alphabets.items() if len(values) > MANY_VALUES]
        chosen = {j: values for j, values in alphabets.items() if len(values) <= MANY_VALUES}
        choice_gene = np.array([j for j, v in chosen.items() for _ in v], dtype=np.int64)
        choice_value = np.array([x for v in chosen.values() for x in v], dtype=np.float64)
        counts, trends = _counting(chosen, choice_gene, choice_value)
        ones = _choices(genes, choice_gene, choice_value)
        return cls(
            gene_low=genes.min(axis=0),
            gene_high=genes.max(axis=0),
            cost_low=costs.min(axis=0),
            cost_high=costs.max(axis=0),
            gene_used=gene_used,
            gene_mean=gene_mean,
            gene_scale=gene_scale,
            numeric=np.searchsorted(gene_used, np.array(numeric, dtype=np.int64)),
            choice_gene=choice_gene,
            choice_value=choice_value,
            count_matrix=counts,
            count_mean=(ones @ counts).mean(axis=0),
            trend_matrix=trends,
            trend_mean=(ones @ trends).mean(axis=0),
            cost_used=cost_used,
            cost_mean=cost_mean,
            cost_scale=cost_scale,
            log_floor=log_floor,
            log_mean=logs.mean(axis=0),
            log_scale=np.maximum(logs.std(axis=0), 1e-12),
        )

    def blocks(self, genes: FloatArray, costs: FloatArray) -> dict[str, FloatArray]:
        """Return the blocks of these rows by name."""
        numbers = (genes[:, self.gene_used] - self.gene_mean) / self.gene_scale
        ones = _choices(genes, self.choice_gene, self.choice_value)
        used = costs[:, self.cost_used]
        logs = np.log(np.maximum(used, 0.0) + self.log_floor)
        return {
            "genes": numbers,
            "choices": np.concatenate([ones, numbers[:, self.numeric]], axis=1),
            "counts": ones @ self.count_matrix - self.count_mean,
            "trends": ones @ self.trend_matrix - self.trend_mean,
            "costs": (used - self.cost_mean) / self.cost_scale,
            "logs": (logs - self.log_mean) / self.log_scale,
            "unseen": len(np.unique(self.choice_gene)) - ones.sum(axis=1, keepdims=True),
        }

    def in_range(self, genes: FloatArray, costs: FloatArray) -> NDArray[np.bool_]:
        """Return for each row whether each gene and cost lies between measured ones."""
        slack = SLACK * (self.cost_high - self.cost_low)
        inside = (genes >= self.gene_low).all(axis=1) & (genes <= self.gene_high).all(axis=1)
        inside &= (costs >= self.cost_low - slack).all(axis=1)
        inside &= (costs <= self.cost_high + slack).all(axis=1)
        return np.asarray(inside)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return everything that has to be stored."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Return the columns stored by `arrays`."""
        return cls(**{field.name: arrays[field.name] for field in fields(cls)})


def varying(table: FloatArray) -> NDArray[np.bool_]:
    """Return for each column whether it differs between rows."""
    return np.asarray(table.std(axis=0) > 1e-9 * np.abs(table).max(axis=0, initial=0.0))


def trees_see(blocks: Mapping[str, FloatArray]) -> NDArray[np.float32]:
    """Return the columns that trees split on, in the precision of scikit-learn's trees."""
    return np.concatenate(
        [blocks["genes"], blocks["costs"], blocks["counts"]], axis=1, dtype=np.float32
    )


def _spread(table: FloatArray) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Return (indices, means, scales) of the columns that are not constant."""
    used = np.flatnonzero(varying(table))
    return used, table[:, used].mean(axis=0), table.std(axis=0)[used]


def _choices(genes: FloatArray, gene: NDArray[np.int64], value: FloatArray) -> FloatArray:
    return np.equal(genes.take(gene, axis=1), value).astype(np.float64)


def _counting(
    chosen: dict[int, FloatArray], gene: NDArray[np.int64], value: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the matrices that turn one-hot choices into counts and into trends."""
    counts: list[FloatArray] = []
    trends: list[FloatArray] = []
    for alphabet, members in _alphabets(chosen):
        position = (np.arange(len(members)) + 0.5) / len(members)
        for wave in range(WAVES + 1):
            along = np.zeros(max(members) + 1)
            along[members] = np.cos(np.pi * wave * position)
            along /= np.sqrt((along**2).sum())
            inside = np.isin(gene, members)
            for letter in alphabet:
                weight = np.where(
                    inside & (value == letter), along[np.minimum(gene, len(along) - 1)], 0.0
                )
                (trends if wave else counts).append(weight)
    return _matrix(counts, len(gene)), _matrix(trends, len(gene))


def _alphabets(chosen: dict[int, FloatArray]) -> list[tuple[FloatArray, list[int]]]:
    """Return the groups of genes that share an alphabet (or a part of it), in order of depth."""
    groups: list[tuple[FloatArray, list[int]]] = []
    for j, values in sorted(chosen.items(), key=lambda item: (-len(item[1]), item[0])):
        for alphabet, members in groups:
            if np.isin(values, alphabet).all():
                members.append(j)
                break
        else:
            groups.append((values, [j]))
    return [(values, sorted(members)) for values, members in groups if len(members) >= FEW_GENES]


def _matrix(columns: list[FloatArray], rows: int) -> FloatArray:
    return np.stack(columns, axis=1) if columns else np.zeros((rows, 0))
