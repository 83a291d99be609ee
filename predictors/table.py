"""Any table of measurements: a CSV with `gene:*` and `cost:*` columns, the rest are targets."""

import csv
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.predictor import Predictor
from hwnas.predictors.scores import score

GENE, COST = "gene:", "cost:"


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table read into arrays; names are without their prefixes."""

    path: Path
    gene_names: tuple[str, ...]
    cost_names: tuple[str, ...]
    target_names: tuple[str, ...]
    genes: FloatArray
    costs: FloatArray
    targets: FloatArray

    def target(self, name: str) -> FloatArray:
        """Return one target column."""
        if name not in self.target_names:
            raise unknown_name("target", name, self.target_names, hint=f"columns of {self.path}")
        return self.targets[:, self.target_names.index(name)]


def read_table(path: Path) -> Table:
    """Return the table in `path`; every cell must be a finite number."""
    path = Path(path)
    header, lines = _lines(path)
    values = np.empty((len(lines), len(header)))
    for row, cells in enumerate(lines, start=1):
        if len(cells) != len(header):
            raise UsageError(f"{path}, row {row}: {len(cells)} cells, the header has {len(header)}")
        for column, cell in enumerate(cells):
            values[row - 1, column] = _number(cell, path=path, row=row, column=header[column])
    genes = [j for j, name in enumerate(header) if name.startswith(GENE)]
    costs = [j for j, name in enumerate(header) if name.startswith(COST)]
    rest = [j for j in range(len(header)) if j not in {*genes, *costs}]
    if not genes and not costs:
        raise UsageError(
            f"{path}: no column begins with {GENE!r} or {COST!r}",
            "name the choices gene:..., the closed-form costs cost:..., leave targets bare",
        )
    return Table(
        path=path,
        gene_names=tuple(header[j].removeprefix(GENE) for j in genes),
        cost_names=tuple(header[j].removeprefix(COST) for j in costs),
        target_names=tuple(header[j] for j in rest),
        genes=values[:, genes],
        costs=values[:, costs],
        targets=values[:, rest],
    )


def fit_table(train: Path, test: Path, target: str, *, seed: int = 0) -> dict[str, float]:
    """Return the scores on the table `test` of a predictor fitted on the table `train`.

    Keys: mape, within_5, within_10, coverage_90, width_90 in percent, spearman, kendall,
    fit_cpu_s, rows (fitted on).
    """
    measured, other = read_table(train), read_table(test)
    y, truth = measured.target(target), other.target(target)
    other = aligned(other, measured)
    started = time.process_time()
    predictor = Predictor.fit(
        measured.genes,
        measured.costs,
        y,
        seed=seed,
        gene_names=measured.gene_names,
        cost_names=measured.cost_names,
        target=target,
    )
    seconds = time.process_time() - started
    if not len(truth):
        raise UsageError(f"{test}: no rows to test on")
    prediction = predictor.predict(other.genes, other.costs)
    scores = asdict(score(truth, *prediction))
    return scores | {"fit_cpu_s": seconds, "rows": measured.genes.shape[0]}


def aligned(table: Table, like: Table) -> Table:
    """Return `table` with the gene and cost columns of `like`, in that order."""
    for prefix, names, known in (
        (GENE, table.gene_names, like.gene_names),
        (COST, table.cost_names, like.cost_names),
    ):
        for name in names:
            if name not in known:
                raise UsageError(
                    f"{table.path}: unknown column {prefix + name!r}, not in {like.path}",
                    "both tables need the same gene and cost columns",
                )
        for name in known:
            if name not in names:
                raise UsageError(
                    f"{table.path}: column {prefix + name!r} of {like.path} is missing"
                )
    return Table(
        path=table.path,
        gene_names=like.gene_names,
        cost_names=like.cost_names,
        target_names=table.target_names,
        genes=table.genes[:, [table.gene_names.index(name) for name in like.gene_names]],
        costs=table.costs[:, [table.cost_names.index(name) for name in like.cost_names]],
        targets=table.targets,
    )


def _lines(path: Path) -> tuple[list[str], list[list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [line for line in csv.reader(file) if line]
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except OSError as error:
        raise HwnasError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: not a CSV file ({error})") from error
    if not lines:
        raise UsageError(f"{path}: empty, expected a header and rows")
    header = [name.strip() for name in lines[0]]
    twice = [name for name in header if header.count(name) > 1]
    if twice:
        raise UsageError(f"{path}: column {twice[0]!r} appears twice")
    return header, lines[1:]


def _number(cell: str, *, path: Path, row: int, column: str) -> float:
    try:
        value = float(cell)
    except ValueError:
        seen = repr(cell) if cell.strip() else "an empty cell"
        raise UsageError(f"{path}, row {row}, column {column!r}: {seen} is not a number") from None
    if not math.isfinite(value):
        raise UsageError(
            f"{path}, row {row}, column {column!r}: {cell.strip()} is not a finite number"
        )
    return value
