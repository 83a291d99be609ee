"""Arrays that a predictor can be fitted on, or one line that says why not."""

import numpy as np
from numpy.typing import ArrayLike

from hwnas.errors import UsageError
from hwnas.predictors.columns import FloatArray, varying


def features(
    genes: ArrayLike,
    costs: ArrayLike,
    *,
    gene_names: tuple[str, ...] = (),
    cost_names: tuple[str, ...] = (),
) -> tuple[FloatArray, FloatArray]:
    """Return (genes, costs) as arrays of numbers with as many rows each; names label errors."""
    table = _matrix(genes, "gene", gene_names)
    price = _matrix(costs, "cost", cost_names)
    if len(table) != len(price):
        raise UsageError(
            f"{len(table)} rows of genes but {len(price)} rows of costs",
            "give one row of each per architecture",
        )
    if not table.shape[1] and not price.shape[1]:
        raise UsageError("no columns: neither genes nor costs", "give at least one column")
    return table, price


def different(genes: FloatArray, costs: FloatArray) -> None:
    """Raise UsageError if nothing tells the rows apart."""
    if alike(genes, costs):
        raise UsageError(
            "genes and costs are the same in every row: nothing tells architectures apart",
            "give a column that differs between architectures",
        )


def target(y: ArrayLike, *, rows: int, name: str = "", least: int) -> FloatArray:
    """Return the target as an array of finite numbers that vary, one per row."""
    label = f"target {name!r}" if name else "the target"
    truth = _numbers(y, label)
    if truth.ndim != 1 or len(truth) != rows:
        raise UsageError(f"{label} has shape {truth.shape}, expected ({rows},)")
    bad = np.flatnonzero(~np.isfinite(truth))
    if len(bad):
        raise UsageError(f"{label}, row {bad[0] + 1}: {truth[bad[0]]} is not a measured value")
    if rows < least:
        raise UsageError(f"{rows} rows, at least {least} are needed", "measure more architectures")
    if constant(truth):
        raise UsageError(
            f"{label} is {truth[0]:g} in every row: there is nothing to learn",
            "choose a target that differs between architectures",
        )
    return truth


def constant(y: FloatArray) -> bool:
    """Return whether a target is the same in every row."""
    return bool(np.ptp(y) <= 1e-12 * np.abs(y).max())


def alike(genes: FloatArray, costs: FloatArray) -> bool:
    """Return whether all rows are the same architecture as far as genes and costs say."""
    return not (varying(genes).any() or varying(costs).any())


def _matrix(values: ArrayLike, kind: str, names: tuple[str, ...]) -> FloatArray:
    table = _numbers(values, f"{kind}s")
    if table.ndim != 2:
        raise UsageError(f"{kind}s have shape {table.shape}, expected (rows, columns)")
    if names and table.shape[1] != len(names):
        raise UsageError(f"{table.shape[1]} {kind} columns, expected {len(names)}")
    if not np.isfinite(table).all():
        row, column = np.argwhere(~np.isfinite(table))[0]
        label = names[column] if names else str(column)
        raise UsageError(f"{kind} {label!r}, row {row + 1}: {table[row, column]} is not a number")
    return table


def _numbers(values: ArrayLike, label: str) -> FloatArray:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{label}: not numbers ({error})") from error
