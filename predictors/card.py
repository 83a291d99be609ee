"""A stored predictor: `card.json` says what it is, `arrays.safetensors` holds its numbers.

Loading reads numbers only; nothing is executed, and neither scikit-learn nor scipy is needed.
"""

from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError
from hwnas.io import (
    Schema,
    digest_file,
    read_json,
    read_tensors,
    write_folder_atomic,
    write_json,
    write_tensors,
)
from hwnas.predictors.columns import Columns
from hwnas.predictors.forest import Forest
from hwnas.predictors.intervals import Errors
from hwnas.predictors.posterior import Known
from hwnas.predictors.process import Process, Recipe
from hwnas.predictors.stack import Stack

SCHEMA = Schema(name="hwnas.predictor", version=1)
CARD, ARRAYS = "card.json", "arrays.safetensors"
FITTED_WITH = ("hwnas", "numpy", "scipy", "scikit-learn")


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a predictor was fitted on. `shift` is added to targets that are not all positive."""

    target: str
    rows: int
    seed: int
    shift: float
    gene_names: tuple[str, ...]
    cost_names: tuple[str, ...]
    lowest: float
    highest: float
    about: dict[str, str] = field(default_factory=dict)


def write_predictor(folder: Path, stack: Stack, card: Card) -> None:
    """Write the stack and its card as the folder `folder`, atomically."""
    arrays = _arrays(stack)

    def write(target: Path) -> None:
        write_tensors(target / ARRAYS, arrays, {"schema": SCHEMA.name})
        document = {
            "fitted": asdict(card),
            "stack": _description(stack),
            "errors": _out_of_fold(stack),
            "ranges": _ranges(stack, card),
            "versions": versions(),
            "arrays": arrays_entry(target),
        }
        write_json(target / CARD, SCHEMA, document)

    write_folder_atomic(Path(folder), write)


def read_predictor(folder: Path) -> tuple[Stack, Card]:
    """Return (stack, card) stored in `folder`."""
    folder = Path(folder)
    document = read_json(folder / CARD, SCHEMA)
    arrays, _ = read_tensors(folder / ARRAYS)
    try:
        check_arrays(folder, document)
        fitted = {entry.name: document["fitted"][entry.name] for entry in fields(Card)}
        for names in ("gene_names", "cost_names"):
            fitted[names] = tuple(fitted[names])
        return _stack(document["stack"], arrays), Card(**fitted)
    except (KeyError, TypeError) as error:
        raise FormatError(f"{folder}: incomplete predictor ({error!r})") from error


def arrays_entry(folder: Path) -> dict[str, str]:
    """Return what a card says of the arrays beside it."""
    return {"file": ARRAYS, "sha256": digest_file(folder / ARRAYS)}


def check_arrays(folder: Path, document: dict[str, Any]) -> None:
    """Raise FormatError if the arrays are not those of the card."""
    if arrays_entry(folder)["sha256"] != document["arrays"]["sha256"]:
        raise FormatError(
            f"{folder / ARRAYS}: does not belong to its card (digests differ)",
            "copy the whole folder again, or fit the predictor again",
        )


def versions() -> dict[str, str]:
    """Return the versions of the packages that shape a fit."""
    return {name: _version(name) for name in FITTED_WITH}


def _arrays(stack: Stack) -> dict[str, NDArray[Any]]:
    parts: dict[str, dict[str, NDArray[Any]]] = {
        "columns": stack.columns.arrays(),
        "extra": stack.extra.arrays(),
        "repair": stack.repair.arrays(),
        "errors": stack.errors.arrays(),
    }
    parts |= {f"process.{name}": process.arrays() for name, process in stack.processes.items()}
    if stack.known is not None:
        parts["known"] = stack.known._asdict()
    named = {
        f"{part}/{name}": array for part, group in parts.items() for name, array in group.items()
    }
    return {"weights": stack.weights, "limits": stack.limits, **named}


def _description(stack: Stack) -> dict[str, Any]:
    return {
        "base": stack.base,
        "members": dict(zip(stack.names, stack.weights.tolist(), strict=True)),
        "processes": [
            {"name": name, **asdict(process.recipe)} for name, process in stack.processes.items()
        ],
    }


def _stack(description: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> Stack:
    def part(prefix: str) -> dict[str, NDArray[Any]]:
        start = prefix + "/"
        return {name[len(start) :]: a for name, a in arrays.items() if name.startswith(start)}

    processes = {}
    for entry in description["processes"]:
        blocks = {kind: tuple(entry[kind]) for kind in ("linear", "extra", "radial", "tails")}
        recipe = Recipe(**blocks, logarithmic=bool(entry["logarithmic"]))
        name = entry["name"]
        processes[name] = Process.from_arrays(recipe, part(f"process.{name}"))
    known = part("known")
    return Stack(
        columns=Columns.from_arrays(part("columns")),
        processes=processes,
        base=description["base"],
        extra=Forest.from_arrays(part("extra")),
        repair=Forest.from_arrays(part("repair")),
        weights=arrays["weights"],
        limits=arrays["limits"],
        known=Known(**known) if known else None,
        errors=Errors.from_arrays(part("errors")),
    )


def _out_of_fold(stack: Stack) -> dict[str, float]:
    """Return what the rows said that each prediction had not seen, in percent."""
    errors = stack.errors
    width = errors.typical_width(level=0.9)
    return {"mape": 100.0 * float(errors.mape[0]), "width_90": 100.0 * width}


def _ranges(stack: Stack, card: Card) -> dict[str, list[float]]:
    columns = stack.columns
    names = (*card.gene_names, *card.cost_names)
    low = np.concatenate([columns.gene_low, columns.cost_low])
    high = np.concatenate([columns.gene_high, columns.cost_high])
    return {name: [float(a), float(b)] for name, a, b in zip(names, low, high, strict=True)}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
