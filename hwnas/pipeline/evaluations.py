"""What predictors are worth, kept beside them by `hwnas fit`: `RUN/predictors/*/evaluation.json`.

`held_out` holds what was measured and what predictors said that had not seen it, row by row.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError
from hwnas.io import Schema, read_json
from hwnas.pipeline.predictors import predictor_folders
from hwnas.pipeline.rundir import Run
from hwnas.predictors import CurvePoint, Prediction, Scores
from hwnas.predictors.columns import FloatArray

EVALUATION_SCHEMA = Schema(name="hwnas/evaluation", version=1)
EVALUATION_FILE = "evaluation.json"
_ROWS = ("measured", "mean", "low", "high")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """A measured row and the 90 % interval of a predictor that had not seen it."""

    measured: float
    mean: float
    low: float
    high: float

    @property
    def inside(self) -> bool:
        """Whether the interval holds what was measured."""
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvaluation:
    """A predictor's scores and learning curve; empty where it was not evaluated.

    `gain`: by how many percentage points 20 more rows would lower its error.
    """

    name: str
    target: str
    rows: int
    about: Mapping[str, str]
    scores: Scores | None
    curve: tuple[CurvePoint, ...]
    gain: float | None
    remarks: tuple[str, ...]
    held_out: tuple[HeldOut, ...]


def held_out_json(measured: FloatArray, predicted: Prediction) -> dict[str, list[float]]:
    """Return measured values and predictions as they stand in an evaluation, one list each."""
    columns = (measured, *predicted)
    return {name: column.tolist() for name, column in zip(_ROWS, columns, strict=True)}


def read_evaluations(run: Run) -> list[StoredEvaluation]:
    """Return the evaluations of all predictors of a run, by name."""
    files = [folder / EVALUATION_FILE for folder in predictor_folders(run)]
    return [read_evaluation(file) for file in files if file.exists()]


def read_evaluation(path: Path) -> StoredEvaluation:
    """Return the evaluation in a file."""
    document = read_json(path, EVALUATION_SCHEMA)
    try:
        scores = document["scores"]
        gain = document["gain_of_20_more"]
        return StoredEvaluation(
            name=str(document["name"]),
            target=str(document["target"]),
            rows=int(document["rows"]),
            about={str(key): str(value) for key, value in document["about"].items()},
            scores=None if scores is None else Scores(**scores),
            curve=tuple(CurvePoint(**point) for point in document["curve"]),
            gain=None if gain is None else float(gain),
            remarks=tuple(map(str, document["remarks"])),
            held_out=_held_out(document.get("held_out")),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: incomplete evaluation ({error!r})", "hwnas fit") from error


def _held_out(columns: Mapping[str, Any] | None) -> tuple[HeldOut, ...]:
    if columns is None:  # evaluations did not hold their rows at first
        return ()
    rows = zip(*(columns[name] for name in _ROWS), strict=True)
    return tuple(
        HeldOut(**{name: float(value) for name, value in zip(_ROWS, row, strict=True)})
        for row in rows
    )
