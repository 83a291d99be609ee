"""Predictors of a run: what search asks for the latency or the accuracy of rows of value indices.

`RUN/predictors/<name>/` holds one predictor each: `card.json` and `arrays.safetensors`, and for a
predictor that was transferred from other devices also theirs, under `sources/`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import (
    Schema,
    canonical_json,
    read_json,
    read_tensors,
    write_folder_atomic,
    write_json,
    write_tensors,
)
from hwnas.pipeline.rundir import Run, latest_step, space_of
from hwnas.predictors import Prediction, Predictor, Transferred
from hwnas.predictors.card import ARRAYS, CARD, arrays_entry, check_arrays, versions
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.features import Features, features, same_columns
from hwnas.predictors.intervals import Errors
from hwnas.profiling.records import Settings
from hwnas.spaces import Space

Codes = NDArray[np.int64]

FOLDER, SOURCES = "predictors", "sources"
TRANSFERRED_SCHEMA = Schema(name="hwnas.transferred", version=1)
ACCURACY, LATENCY = "accuracy", "latency_ms"
_POSSIBLE = {ACCURACY: (0.0, 1.0)}  # every other target is positive, without a limit


class SpacePredictor(Protocol):
    """What predicts one target of a space's architectures, given as rows of value indices."""

    @property
    def space(self) -> Space:
        """The space of the architectures."""

    @property
    def target(self) -> str:
        """What is predicted, with its unit, such as `latency_ms`."""

    @property
    def rows(self) -> int:
        """How many measurements it was fitted on."""

    @property
    def about(self) -> Mapping[str, str]:
        """Space, device, backend, settings: what it was fitted for."""

    def __call__(self, codes: Codes, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of each row; the interval holds `level` of the truths."""

    def balanced(self, found: Features, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of features; as many truths lie below as above the interval."""

    def prob_at_most(self, codes: Codes, limit: ArrayLike) -> FloatArray:
        """Return for each row the probability that its true value is at most `limit`."""

    def in_range(self, codes: Codes) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what was measured."""

    def save(self, folder: Path) -> None:
        """Write the predictor as the folder `folder`, atomically."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Direct:
    """A predictor fitted on measurements of its own target."""

    space: Space
    predictor: Predictor

    @property
    def target(self) -> str:
        """What is predicted."""
        return self.predictor.card.target

    @property
    def rows(self) -> int:
        """How many measurements it was fitted on."""
        return self.predictor.card.rows

    @property
    def about(self) -> Mapping[str, str]:
        """What it was fitted for."""
        return self.predictor.card.about

    def __call__(self, codes: Codes, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of each row."""
        found = self._features(codes)
        return _possible(self.predictor.predict(found.genes, found.costs, level=level), self.target)

    def balanced(self, found: Features, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of features; as many truths lie below as above the interval."""
        found = self._same(found)
        said = self.predictor.predict(found.genes, found.costs, level=level, tilt=0.5)
        return _possible(said, self.target)

    def prob_at_most(self, codes: Codes, limit: ArrayLike) -> FloatArray:
        """Return for each row the probability that its true value is at most `limit`."""
        found = self._features(codes)
        return self.predictor.prob_at_most(found.genes, found.costs, limit)

    def in_range(self, codes: Codes) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what was measured."""
        found = self._features(codes)
        return self.predictor.in_range(found.genes, found.costs)

    def save(self, folder: Path) -> None:
        """Write the predictor as the folder `folder`."""
        self.predictor.save(folder)

    def _features(self, codes: Codes) -> Features:
        return self._same(features(self.space, codes))

    def _same(self, found: Features) -> Features:
        card = self.predictor.card
        return same_columns(found, card.gene_names, card.cost_names)


@dataclass(frozen=True, kw_only=True, slots=True)
class Indirect:
    """A predictor of a device from what predictors of other devices say."""

    space: Space
    transferred: Transferred
    sources: tuple[Direct, ...]
    target: str
    rows: int
    about: Mapping[str, str]

    def __call__(self, codes: Codes, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of each row."""
        found = self.transferred.predict(said_by(self.sources, codes), level=level)
        return _possible(found, self.target)

    def balanced(self, found: Features, *, level: float = 0.9) -> Prediction:
        """Return (mean, low, high) of features; as many truths lie below as above the interval."""
        said = np.stack([source.balanced(found).mean for source in self.sources], axis=1)
        return _possible(self.transferred.predict(said, level=level, tilt=0.5), self.target)

    def prob_at_most(self, codes: Codes, limit: ArrayLike) -> FloatArray:
        """Return for each row the probability that its true value is at most `limit`."""
        value = self.transferred.predict(said_by(self.sources, codes)).mean
        relative = np.asarray(limit, dtype=np.float64) / value - 1.0
        return self.transferred.errors.share_at_most(relative, np.ones(len(value)))

    def in_range(self, codes: Codes) -> NDArray[np.bool_]:
        """Return for each row whether it lies within what every other device measured."""
        inside = [source.in_range(codes) for source in self.sources]
        return np.asarray(np.logical_and.reduce(inside))

    def save(self, folder: Path) -> None:
        """Write the predictor as the folder `folder`."""
        found = self.transferred
        arrays = {
            "mix": found.mix, "centre": found.centre, "slope": found.slope,
            "level": np.array([found.level]),
            **{f"errors/{name}": array for name, array in found.errors.arrays().items()},
        }  # fmt: skip

        def write(target: Path) -> None:
            write_tensors(target / ARRAYS, arrays, {"schema": TRANSFERRED_SCHEMA.name})
            for number, source in enumerate(self.sources):
                source.save(target / SOURCES / str(number))
            fitted = {"target": self.target, "rows": self.rows, "about": dict(self.about)}
            content = {
                "fitted": fitted,
                "sources": len(self.sources),
                "errors": {"mape": 100.0 * float(found.errors.mape[0])},
                "versions": versions(),
                "arrays": arrays_entry(target),
            }
            write_json(target / CARD, TRANSFERRED_SCHEMA, content)

        write_folder_atomic(folder, write)


def said_by(sources: "tuple[SpacePredictor, ...] | tuple[Direct, ...]", codes: Codes) -> FloatArray:
    """Return the predictions (n, sources) of several predictors."""
    return np.stack([source(codes).mean for source in sources], axis=1)


def load_predictor(folder: Path, space: Space) -> SpacePredictor:
    """Return the predictor stored in `folder`, which must be of `space`; nothing is executed."""
    found = _load(Path(folder), space)
    _check_space(found.about, space, str(folder))
    return found


def predictors_of(run: Run) -> dict[str, SpacePredictor]:
    """Return all predictors of a run by name."""
    space = space_of(run)
    return {folder.name: load_predictor(folder, space) for folder in predictor_folders(run)}


def predictor_folders(run: Run) -> list[Path]:
    """Return the folders of a run's predictors, without what interrupted fits left of theirs."""
    return sorted(card.parent for card in (run.folder / FOLDER).glob(f"[!.]*/{CARD}"))


def accuracy_predictor(run: Run) -> SpacePredictor:
    """Return the predictor of accuracies of the present supernet of a run."""
    folder = run.folder / FOLDER / ACCURACY
    if not (folder / CARD).is_file():
        raise HwnasError(f"{run.folder}: has no accuracy predictor", _fit_it(run))
    found = load_predictor(folder, space_of(run))
    if found.about.get("step") != str(latest_step(run)):
        raise HwnasError(
            f"{folder}: was fitted after {found.about.get('step')} steps of training, "
            f"the supernet has {latest_step(run)}",
            _fit_it(run),
        )
    return found


def latency_predictor(
    run: Run,
    *,
    device: str | None = None,
    backend: str | None = None,
    settings: Settings | None = None,
    target: str = LATENCY,
) -> SpacePredictor:
    """Return the one predictor of a run for this device, backend and settings.

    What is left out need not be said as long as it does not matter.
    """
    wanted = {"device": device, "backend": backend}
    if settings is not None:
        wanted |= described(settings)
    found = {n: p for n, p in predictors_of(run).items() if p.target == target}
    fitting = {
        name: predictor
        for name, predictor in found.items()
        if all(predictor.about.get(key) == value for key, value in wanted.items() if value)
    }
    if len(fitting) == 1:
        return next(iter(fitting.values()))
    asked = ", ".join(f"{key} {value}" for key, value in wanted.items() if value)
    if fitting:
        raise UsageError(
            f"{run.folder}: several {target} predictors fit{' ' + asked if asked else ''}: "
            f"{', '.join(fitting)}",
            "say which device, backend or settings",
        )
    if found:
        raise UsageError(
            f"{run.folder}: no {target} predictor for {asked}; there are: {', '.join(found)}"
        )
    raise HwnasError(
        f"{run.folder}: has no {target} predictor",
        f"put profiles into {run.folder}/profiles, then hwnas fit --run {run.typed}",
    )


def described(settings: Settings) -> dict[str, str]:
    """Return settings as they stand in the card of a predictor."""
    return {
        "threads": str(settings.threads),
        "batch": str(settings.batch),
        "precision": settings.precision,
        "workers": str(settings.workers),
        "pages": settings.pages,
    }


def of_space(space: Space) -> dict[str, str]:
    """Return what identifies a space in the card of a predictor."""
    return {"space": space.name, "options": canonical_json(dict(space.options))}


def _load(folder: Path, space: Space) -> SpacePredictor:
    if not (folder / SOURCES).is_dir():
        return Direct(space=space, predictor=Predictor.load(folder))
    document = read_json(folder / CARD, TRANSFERRED_SCHEMA)
    arrays, _ = read_tensors(folder / ARRAYS)
    errors = {n.removeprefix("errors/"): a for n, a in arrays.items() if n.startswith("errors/")}
    try:
        check_arrays(folder, document)
        fitted = document["fitted"]
        return Indirect(
            space=space,
            transferred=Transferred(
                mix=arrays["mix"],
                centre=arrays["centre"],
                slope=arrays["slope"],
                level=float(arrays["level"][0]),
                errors=Errors.from_arrays(errors),
            ),
            sources=tuple(
                Direct(space=space, predictor=Predictor.load(folder / SOURCES / str(number)))
                for number in range(document["sources"])
            ),
            target=fitted["target"],
            rows=fitted["rows"],
            about=fitted["about"],
        )
    except (KeyError, TypeError) as error:
        raise FormatError(f"{folder}: incomplete predictor ({error!r})") from error


def _check_space(about: Mapping[str, str], space: Space, origin: str) -> None:
    expected = of_space(space)
    for key, what in (("space", "space"), ("options", "space options")):
        if about.get(key) != expected[key]:
            raise FormatError(
                f"{origin}: is of {what} {about.get(key)}, expected {expected[key]}",
                "fit it again: hwnas fit",
            )


def _possible(prediction: Prediction, target: str) -> Prediction:
    least, most = _POSSIBLE.get(target, (0.0, np.inf))
    return Prediction(*(np.clip(part, least, most) for part in prediction))


def _fit_it(run: Run) -> str:
    return f"hwnas fit --run {run.typed}"
