"""A choice of a front in words: its values, its genes by stage, the command that exports it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hwnas.pipeline.fronts import Choice, Front, Verified, key_of
from hwnas.pipeline.rundir import Run
from hwnas.report.blocks import Fact
from hwnas.report.words import interval, quantity, settings_text, short
from hwnas.spaces import Space

_NAMES = {"macs": "MACs", "params": "parameters", "size": "weights"}
_NONE: Mapping[str, float] = {}
_NOTHING = "·"  # for a gene that a stage does not have, or that makes no difference


def facts_of(choice: Choice, measured: Mapping[str, float] = _NONE) -> tuple[Fact, ...]:
    """Return the predicted values with their intervals, then what is known exactly."""
    predicted = [
        Fact(
            name=name.replace(":", " on "),
            value=quantity(name, estimate.mean),
            beside=interval(name, estimate.low, estimate.high),
            measured=quantity(name, measured[name]) if name in measured else "",
        )
        for name, estimate in choice.predicted.items()
    ]
    exact = [
        Fact(name=_NAMES.get(name, name), value=quantity(name, value))
        for name, value in choice.costs.items()
    ]
    return (*predicted, *exact)


def export_command(run: Run, choice: Choice) -> str:
    """Return the command that cuts a choice out of the supernet and writes it as ONNX."""
    return f"hwnas export --run {run.typed} --arch {short(choice.digest)}"


def measured_of(verified: Sequence[Verified]) -> dict[tuple[str, str], dict[str, float]]:
    """Return what was measured last of each quantity of a choice, by the key of the choice."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for entry in verified:
        found.setdefault(key_of(entry), {}).update(entry.measured)
    return found


def notes_of(choice: Choice) -> list[str]:
    """Return what else has to be known of a choice, as sentences."""
    how = settings_text(choice.settings)
    notes = [f"Run as {how}."] if how else []
    if not choice.in_range:
        notes.append("Its like was never measured: the predictions are extrapolated.")
    return notes


def picks(
    run: Run, space: Space, front: Front, shown: Sequence[int], verified: Sequence[Verified]
) -> dict[str, Any]:
    """Return what the page knows of the choices that can be picked, as JSON.

    Genes are a table of stages and properties; `rows` and `columns` name them once for all.
    """
    rows, columns = _layout(space)
    measured = measured_of(verified)
    return {
        "rows": rows,
        "columns": columns,
        "choices": {
            str(index): {
                **_pick(run, front.choices[index], measured),
                "genes": _cells(space, front.choices[index], rows, columns),
            }
            for index in shown
        },
    }


def _pick(
    run: Run, choice: Choice, measured: Mapping[tuple[str, str], Mapping[str, float]]
) -> dict[str, Any]:
    facts = facts_of(choice, measured.get(key_of(choice), _NONE))
    return {
        "name": short(choice.digest),
        "facts": [[fact.name, fact.value, fact.beside, fact.measured] for fact in facts],
        "notes": notes_of(choice),
        "command": export_command(run, choice),
    }


def _cells(
    space: Space, choice: Choice, rows: Sequence[str], columns: Sequence[str]
) -> list[list[str]]:
    values = _values(space, choice.genes)
    return [[values.get(_gene(row, column), _NOTHING) for column in columns] for row in rows]


def _layout(space: Space) -> tuple[list[str], list[str]]:
    rows: dict[str, None] = {}
    columns: dict[str, None] = {}
    for gene in space.gene_names:
        stage, _, name = gene.rpartition(".")
        rows[stage or gene] = None
        columns[name if stage else "value"] = None
    return list(rows), list(columns)


def _gene(row: str, column: str) -> str:
    return row if column == "value" else f"{row}.{column}"


def _values(space: Space, genes: Mapping[str, Any]) -> dict[str, str]:
    """Return the genes that make a difference as text."""
    code = space.encode([space.arch(genes)])
    active = np.asarray(space.active(code))[0]
    return {
        gene: str(genes[gene])
        for gene, matters in zip(space.gene_names, active.tolist(), strict=True)
        if matters
    }
