"""What predictors see of an architecture: its genes and its closed-form costs.

Genes that make no difference hold their first value, so equal networks have equal features. Which
columns there are depends on the space alone, never on the rows at hand: columns that are the same
for every architecture of a probe are left out, once for all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError
from hwnas.predictors.columns import FloatArray
from hwnas.spaces import Arch, Space
from hwnas.spaces.costs import METRICS
from hwnas.spaces.sampling import single_changes

Codes = NDArray[np.int64]

PROBES = 512
PIECE = 8192  # rows described at once: larger pieces fall out of the cache


@dataclass(frozen=True, kw_only=True, slots=True)
class Features:
    """Genes (n, g) and costs (n, c) of n architectures, with the names of their columns."""

    genes: FloatArray
    costs: FloatArray
    gene_names: tuple[str, ...]
    cost_names: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, genes first."""
        return (*self.gene_names, *self.cost_names)

    def __len__(self) -> int:
        return len(self.genes)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Plan:
    """The columns of a space. `values[g]`: the number that stands for each value of gene g."""

    genes: tuple[int, ...]
    values: tuple[FloatArray, ...]
    gene_names: tuple[str, ...]
    costs: tuple[int, ...]
    cost_names: tuple[str, ...]


def features(space: Space, architectures: Codes | Sequence[Arch]) -> Features:
    """Return the features of architectures: rows of value indices, or a list of them.

    A gene is a number where all its values are numbers, else the index of its value. Costs are
    those of `Space.cost`, in total, by kind of operation and by stage, and the number of blocks;
    a space without networks has none.
    """
    if isinstance(architectures, np.ndarray):
        codes = np.asarray(architectures, np.int64)
    else:
        codes = space.encode(architectures)
    codes = space.canonical(codes)
    plan = _plan(space)
    genes = np.empty((len(codes), len(plan.genes)))
    costs = np.empty((len(codes), len(plan.costs)))
    for start in range(0, len(codes), PIECE):
        at = slice(start, start + PIECE)
        for column, (gene, values) in enumerate(zip(plan.genes, plan.values, strict=True)):
            genes[at, column] = values[codes[at, gene]]
        if plan.costs:
            table, _ = _costs(space, codes[at])
            costs[at] = table[:, plan.costs]
    return Features(
        genes=genes, costs=costs, gene_names=plan.gene_names, cost_names=plan.cost_names
    )


def same_columns(found: Features, gene_names: Sequence[str], cost_names: Sequence[str]) -> Features:
    """Return the features with these columns in this order, as another version named them."""
    return Features(
        genes=_chosen(found.genes, found.gene_names, gene_names, kind="gene"),
        costs=_chosen(found.costs, found.cost_names, cost_names, kind="cost"),
        gene_names=tuple(gene_names),
        cost_names=tuple(cost_names),
    )


def _chosen(
    table: FloatArray, names: Sequence[str], wanted: Sequence[str], *, kind: str
) -> FloatArray:
    if tuple(names) == tuple(wanted):
        return table
    place = {name: column for column, name in enumerate(names)}
    unknown = [name for name in wanted if name not in place]
    if unknown:
        raise FormatError(
            f"a predictor needs the {kind} {unknown[0]!r}, which this space does not have",
            "fit it again: hwnas fit",
        )
    return table[:, [place[name] for name in wanted]]


@lru_cache(maxsize=16)
def _plan(space: Space) -> _Plan:
    values = [_numbers(choices) for choices in space.genes.values()]
    genes = tuple(g for g, numbers in enumerate(values) if len(numbers) > 1)
    costs: tuple[int, ...] = ()
    cost_names: list[str] = []
    if space.parts:
        table, cost_names = _costs(space, _probes(space))
        costs = tuple(np.flatnonzero(np.ptp(table, axis=0) > 0.0).tolist())
        costs = _distinct(table, costs)
    return _Plan(
        genes=genes,
        values=tuple(values[g] for g in genes),
        gene_names=tuple(space.gene_names[g] for g in genes),
        costs=costs,
        cost_names=tuple(cost_names[column] for column in costs),
    )


def _numbers(choices: Sequence[object]) -> FloatArray:
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in choices):
        return np.array(choices, dtype=np.float64)
    return np.arange(len(choices), dtype=np.float64)


def _probes(space: Space) -> Codes:
    """Return architectures in which everything differs that can differ."""
    ends = np.stack([np.zeros_like(space.cardinalities), space.cardinalities - 1])
    rng = np.random.default_rng(0)
    return space.canonical(
        np.concatenate(
            [
                ends,
                single_changes(space, ends[0]),
                single_changes(space, ends[1]),
                space.sample_codes(PROBES, rng),
            ]
        )
    )


def _distinct(table: FloatArray, columns: tuple[int, ...]) -> tuple[int, ...]:
    """Return the columns without those that repeat an earlier one."""
    seen: dict[bytes, int] = {}
    for column in columns:
        seen.setdefault(table[:, column].tobytes(), column)
    return tuple(seen.values())


def _costs(space: Space, codes: Codes) -> tuple[FloatArray, list[str]]:
    """Return the costs of canonical rows of value indices, every column, and their names."""
    costs = space.cost(codes)
    columns: list[NDArray[np.int64]] = []
    names: list[str] = []
    for metric in METRICS:
        kinds, stages = costs.by_kind(metric), costs.by_stage(metric)
        columns += [getattr(costs, metric), *kinds.values(), *stages.values()]
        names += [metric]
        names += [f"{metric}.kind.{kind}" for kind in kinds]
        names += [f"{metric}.stage.{stage}" for stage in stages]
    columns.append(costs.layers)
    names.append("layers")
    return np.stack(columns, axis=1).astype(np.float64), names
