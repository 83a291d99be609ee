"""Fitting predictors on what was measured: profiles of devices, and accuracies of a run.

One predictor per target, device, backend and settings. What a predictor is worth is found by
nested cross-validation and kept beside it, in `evaluation.json`.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.io import write_json
from hwnas.pipeline.accuracies import FILE as ACCURACIES_FILE
from hwnas.pipeline.accuracies import read_accuracies
from hwnas.pipeline.deployments import device_marks
from hwnas.pipeline.evaluations import EVALUATION_FILE, EVALUATION_SCHEMA, held_out_json
from hwnas.pipeline.fronts import UNRELIABLE
from hwnas.pipeline.predictors import (
    ACCURACY,
    LATENCY,
    Codes,
    Direct,
    Indirect,
    SpacePredictor,
    described,
    of_space,
    said_by,
)
from hwnas.pipeline.profiled import by_device, mixed_forms
from hwnas.pipeline.rundir import Run, latest_step, space_of
from hwnas.predictors import Evaluation, Prediction, Predictor, Scores, evaluate, score, transfer
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.features import features
from hwnas.predictors.predictor import LEAST_ROWS
from hwnas.predictors.transfer import LEAST_ROWS as LEAST_TO_TRANSFER
from hwnas.profiling.machine import slug
from hwnas.profiling.records import Device, Record, Settings
from hwnas.spaces import Arch, Space

TARGETS = (LATENCY, "throughput_per_s", "peak_mb", "energy_mj")
MORE = 20  # samples whose worth is told
LEAST_JUDGED = 12  # rows of which `fold_count` can make folds
_FOLDS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """Measured values of one target under one name. `remarks`: what a person should know."""

    name: str
    target: str
    codes: Codes
    values: FloatArray
    about: Mapping[str, str]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fitted:
    """A fitted predictor and what it is worth; `scores` are None where rows are too few.

    `held_out`: what was predicted of each row by a predictor that had not seen it.
    """

    name: str
    predictor: SpacePredictor
    scores: Scores | None
    curve: Evaluation | None
    fit_cpu_s: float
    remarks: tuple[str, ...] = ()
    folder: Path | None = None
    held_out: Prediction | None = None

    def to_json(self) -> dict[str, Any]:
        """Return what is known of the predictor as a JSON object."""
        curve = self.curve
        return {
            "name": self.name,
            "target": self.predictor.target,
            "rows": self.predictor.rows,
            "about": dict(self.predictor.about),
            "scores": asdict(self.scores) if self.scores else None,
            "curve": [asdict(point) for point in curve.curve] if curve else [],
            "gain_of_20_more": curve.gain(MORE) if curve else None,
            "fit_cpu_s": self.fit_cpu_s,
            "remarks": list(self.remarks),
            "folder": str(self.folder) if self.folder else None,
        }


def accuracy_rows(run: Run) -> Rows:
    """Return the accuracies measured in a run."""
    known = read_accuracies(run)
    if not known:
        raise HwnasError(f"{run.folder}: has no accuracies yet ({ACCURACIES_FILE})", "-n 100")
    space = space_of(run)
    return Rows(
        name=ACCURACY,
        target=ACCURACY,
        codes=space.encode([entry.arch for entry in known]),
        values=np.array([entry.accuracy for entry in known]),
        about={**of_space(space), "step": str(latest_step(run)), "part": "heldout"},
    )


def profile_rows(
    paths: Sequence[Path],
    space: Space,
    *,
    targets: Sequence[str] = (LATENCY,),
    least: int = LEAST_ROWS,
) -> list[Rows]:
    """Return what profiles say, one `Rows` per target, device, backend and settings.

    What is of grade D is left out where at least `least` others are there.
    """
    for target in targets:
        if target not in TARGETS:
            raise unknown_name("target of a profile", target, TARGETS)
    groups: dict[tuple[str, str, Settings], tuple[Device, list[tuple[Arch, Record]]]] = {}
    devices, models = by_device(paths, space)
    for fingerprint, (device, records) in devices.items():
        for arch, record in records:
            key = (fingerprint, record.backend, record.settings)
            groups.setdefault(key, (device, []))[1].append((arch, record))
    marks = device_marks({device.fingerprint: device.name for device, _ in groups.values()})
    found = []
    for (fingerprint, backend, settings), (device, records) in groups.items():
        label = slug(device.name) + marks[fingerprint]
        about = {
            **of_space(space),
            "device": device.name,
            "fingerprint": fingerprint,
            "backend": backend,
            **described(settings),
        }
        mixed = mixed_forms(fingerprint, records, models)
        for target in targets:
            name = _name(target, label, backend, settings)
            rows = _rows(name, target, records, space, about, least=least)
            if rows is not None:
                found.append(replace(rows, remarks=rows.remarks + mixed))
    return found


def fit_rows(
    rows: Rows,
    space: Space,
    *,
    folder: Path | str | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Fitted:
    """Return a predictor fitted on rows, evaluated unless `quick`, and stored in `folder`."""
    found = features(space, rows.codes)
    started = time.process_time()
    predictor = Predictor.fit(
        found.genes,
        found.costs,
        rows.values,
        seed=seed,
        gene_names=found.gene_names,
        cost_names=found.cost_names,
        target=rows.target,
        about=rows.about,
    )
    seconds = time.process_time() - started
    folds = 0 if quick else fold_count(len(rows.values))
    curve = None
    if folds:
        curve = evaluate(found.genes, found.costs, rows.values, folds=folds, seed=seed)
    remarks = rows.remarks
    if not folds and not quick:
        remarks += (f"{len(rows.values)} rows are too few for a cross-validation",)
    fitted = Fitted(
        name=rows.name,
        predictor=Direct(space=space, predictor=predictor),
        scores=curve.scores if curve else None,
        curve=curve,
        fit_cpu_s=seconds,
        remarks=remarks,
        folder=None if folder is None else Path(folder),
        held_out=curve.held_out if curve else None,
    )
    return _stored(fitted, rows)


def fit_transfer(
    new: Rows,
    space: Space,
    sources: Sequence[SpacePredictor],
    *,
    folder: Path | str | None = None,
    quick: bool = False,
) -> Fitted:
    """Return a predictor for few rows of a new device from predictors of other devices.

    Its scores, unless `quick`, are those of predictions for rows left out one at a time.
    """
    direct = tuple(
        source
        for source in sources
        if isinstance(source, Direct) and dict(source.about) != dict(new.about)
    )
    if not direct:
        raise UsageError(
            "nothing to transfer from: the old profiles hold this device and setting only",
            "--from the profiles of other devices",
        )
    table = said_by(direct, new.codes)
    enough = not quick and len(new.values) > LEAST_TO_TRANSFER
    left_out = _left_out(table, new.values) if enough else None
    started = time.process_time()
    transferred = transfer(table, new.values)
    seconds = time.process_time() - started
    fitted = Fitted(
        name=new.name,
        predictor=Indirect(
            space=space,
            transferred=transferred,
            sources=direct,
            target=new.target,
            rows=len(new.values),
            about={**new.about, "from": ", ".join(_origin(source) for source in direct)},
        ),
        scores=score(new.values, *left_out) if left_out else None,
        curve=None,
        fit_cpu_s=seconds,
        remarks=new.remarks,
        folder=None if folder is None else Path(folder),
        held_out=left_out,
    )
    return _stored(fitted, new)


def sources_from(
    paths: Sequence[Path], space: Space, *, target: str = LATENCY
) -> list[SpacePredictor]:
    """Return predictors fitted on profiles of old devices, where they have rows enough."""
    found: list[SpacePredictor] = []
    short: list[Rows] = []
    for rows in profile_rows(paths, space, targets=(target,)):
        if len(rows.values) < LEAST_ROWS:
            short.append(rows)
            continue
        found.append(fit_rows(rows, space, quick=True).predictor)
    if not found:
        why = (
            f"{short[0].name} has {len(short[0].values)} rows"
            if short
            else f"they have no {target}"
        )
        raise UsageError(
            f"{', '.join(map(str, paths))}: too little to transfer from ({why}), "
            f"at least {LEAST_ROWS} rows are needed"
        )
    return found


def fold_count(rows: int) -> int:
    """Return how many folds leave enough rows to fit on; 0 where no number does."""
    for folds in (_FOLDS, rows):
        if folds > 1 and rows > math.ceil(LEAST_ROWS * folds / (folds - 1)):
            return folds
    return 0


def _rows(
    name: str,
    target: str,
    records: Sequence[tuple[Arch, Record]],
    space: Space,
    about: Mapping[str, str],
    *,
    least: int,
) -> Rows | None:
    measured = [
        (arch, value, record.grade)
        for arch, record in records
        if (value := _value(record, target)) is not None
    ]
    if not measured:
        return None
    remarks: tuple[str, ...] = ()
    reliable = [entry for entry in measured if entry[2] != UNRELIABLE]
    unreliable = len(measured) - len(reliable)
    if unreliable and len(reliable) >= least:
        remarks = (f"{unreliable} measurements of grade {UNRELIABLE} are left out",)
        measured = reliable
    elif unreliable:
        remarks = (f"{unreliable} of {len(measured)} measurements have grade {UNRELIABLE}",)
    return Rows(
        name=name,
        target=target,
        codes=space.encode([arch for arch, _, _ in measured]),
        values=np.array([value for _, value, _ in measured]),
        about=about,
        remarks=remarks,
    )


def _value(record: Record, target: str) -> float | None:
    assert record.latency is not None
    if target == "throughput_per_s":
        return record.throughput_per_s
    if target == "peak_mb":
        return record.memory.peak_mb if record.memory else None
    if target == "energy_mj":
        return record.energy_mj
    return record.latency.median_ms


def _name(target: str, device: str, backend: str, settings: Settings) -> str:
    parts = [
        target.partition("_")[0],
        device,
        slug(backend),
        f"t{settings.threads}",
        f"b{settings.batch}",
        slug(settings.precision),
    ]
    if settings.workers > 1:
        parts.append(f"w{settings.workers}")
    if settings.pages != "default":
        parts.append(settings.pages)
    return "-".join(parts)


def _left_out(table: FloatArray, values: FloatArray) -> Prediction:
    """Return the prediction for each row by a transfer that has not seen it."""
    predicted = np.empty((3, len(values)))
    for row in range(len(values)):
        rest = np.arange(len(values)) != row
        found = transfer(table[rest], values[rest]).predict(table[[row]])
        predicted[:, row] = [part[0] for part in found]
    return Prediction(*predicted)


def _stored(fitted: Fitted, rows: Rows) -> Fitted:
    if fitted.folder is not None:
        held_out = fitted.held_out
        rows_held_out = held_out_json(rows.values, held_out) if held_out else None
        fitted.predictor.save(fitted.folder)
        path = fitted.folder / EVALUATION_FILE
        content = {**fitted.to_json(), "folder": None, "held_out": rows_held_out}
        write_json(path, EVALUATION_SCHEMA, content)
    return fitted


def _origin(source: Direct) -> str:
    about = source.about
    return " ".join(about[key] for key in ("device", "backend", "precision") if key in about)
