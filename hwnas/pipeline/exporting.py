"""Exporting a subnet: `RUN/artifacts/<name of the subnet's folder>/`, complete or not there.

Every model is written, checked against the standard, compared with the torch module on real
held-out images, and measured on this device before the folder appears. The module is the one read
back from the subnet's files.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from hwnas.errors import UnreliableError, UsageError
from hwnas.export.artifact import (
    REFERENCE_FILE,
    Manifest,
    ModelEntry,
    files_of,
    read_manifest,
    write_manifest,
)
from hwnas.export.checks import check_difference, check_model, parity_limit
from hwnas.export.graph import OPSET, check_opset
from hwnas.export.metadata import PIXELS, PLANES, ModelMetadata
from hwnas.export.precisions import (
    Form,
    build,
    check_precisions,
    compared,
    file_name,
    recommend,
)
from hwnas.export.reference import Answer, Reference, differences, write_reference
from hwnas.export.speed import Race, race
from hwnas.export.targets import TARGETS, Deployed, check_name, check_targets
from hwnas.export.validate_run import Feeding, batched, open_runner
from hwnas.io import write_atomic, write_folder_atomic
from hwnas.pipeline.exportable import (
    Judged,
    Subject,
    calibration_squares,
    judge,
    open_subject,
    reference_of,
)
from hwnas.pipeline.replacing import check_replaceable
from hwnas.pipeline.rundir import profiles_in, recorded_versions
from hwnas.profiling.paces import Pace, paces_here

ARTIFACTS_FOLDER, SUBNETS_FOLDER = "artifacts", "subnets"

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Wish:
    """What to export. `batch`: a fixed size, None for any; `images`: held-out ones to judge by.

    `measured`: whether speed is measured. `name`: of the model in a server.
    """

    precisions: tuple[str, ...] = ("fp32",)
    opset: int = OPSET
    batch: int | None = None
    embed_preprocessing: bool = False
    targets: tuple[str, ...] = ()
    images: int = 500
    measured: bool = True
    threads: int = 1
    rounds: int = 3
    seconds: float = 1.0
    name: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """An artifact: its folder, its manifest, and what is to be said of it."""

    folder: Path
    manifest: Manifest
    remarks: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Filled:
    """What is to be said of an artifact, and the module's accuracy on the images of its models."""

    remarks: tuple[str, ...]
    module_accuracy: float


def export(
    subnet: Path | str,
    *,
    wish: Wish | None = None,
    out: Path | str | None = None,
    recipe: str | None = None,
    note: Note = lambda _: None,
) -> Exported:
    """Return the artifact of the subnet in a folder, written now.

    `recipe` says where the data are, for subnets that were cut out without. Raises GateError, and
    leaves nothing, if a model is not what the module is.
    """
    wish, subnet = checked(wish or Wish()), Path(subnet)
    if not subnet.is_dir():
        raise UsageError(f"{subnet}: no such folder", "hwnas extract writes the folder of a subnet")
    folder = artifact_folder(subnet, None if out is None else Path(out))
    subject = open_subject(subnet, recipe=recipe)
    found: list[Filled] = []
    write_folder_atomic(
        folder,
        lambda place: found.append(
            fill(place, subject, wish=wish, paces=_paces_beside(subnet), note=note)
        ),
    )
    return Exported(folder=folder, manifest=read_manifest(folder), remarks=found[0].remarks)


def checked(wish: Wish) -> Wish:
    """Return the wish with its precisions in order; raises if it cannot be met here."""
    check_opset(wish.opset)
    check_targets(wish.targets)
    if wish.name is not None:
        check_name(wish.name)
    if wish.batch is not None and wish.batch < 1:
        raise UsageError(f"batch size {wish.batch}; accepted: a whole number from 1")
    if wish.images < 1:
        raise UsageError(f"{wish.images} images; accepted: a whole number from 1")
    return replace(
        wish,
        precisions=check_precisions(wish.precisions),
        targets=tuple(dict.fromkeys(wish.targets)),
    )


def artifact_folder(subnet: Path, out: Path | None) -> Path:
    """Return where the artifact of a subnet goes; raises UsageError if anything else is there."""
    if out is None:
        # As it was typed, unless it was typed within its run.
        typed = Path(subnet)
        place = typed if typed.parent.name == SUBNETS_FOLDER else typed.resolve()
        if place.parent.name != SUBNETS_FOLDER:
            raise UsageError(f"{subnet}: is in no run, so it is not clear where to write",
                             "say where: --out FOLDER")  # fmt: skip
        out = place.parent.parent / ARTIFACTS_FOLDER / place.name
    check_replaceable(out, "artifact", files_of)
    return out


def _paces_beside(subnet: Path) -> tuple[Pace, ...]:
    """Return the paces of this device that the run of a subnet knows; none outside of a run."""
    place = subnet.resolve()
    if place.parent.name != SUBNETS_FOLDER:
        return ()
    return paces_here(profiles_in(place.parent.parent))


def fill(
    place: Path, subject: Subject, *, wish: Wish, paces: Sequence[Pace] = (), note: Note
) -> Filled:
    """Write a whole artifact to the folder `place`.

    `paces`: those that latencies are told at, where they are of the same kind.
    """
    place.mkdir(parents=True, exist_ok=True)
    reference = reference_of(subject, batch=wish.batch)
    write_reference(place / REFERENCE_FILE, reference)
    metadata = {precision: _metadata(subject, wish, precision) for precision in wish.precisions}
    for precision, about in metadata.items():
        note(f"writing {file_name(precision)}")
        _write_model(place / file_name(precision), subject, about)
    note(f"judging on {min(wish.images, len(subject.data.heldout))} held-out images")
    entries, judged = _examined(place, subject, metadata, reference, images=wish.images)
    remarks: list[str] = []
    if wish.measured:
        note("measuring speed")
        entries, remarks = _timed(place, entries, wish, paces)
    best, reason = recommend(entries, {name: found.most_lost for name, found in judged.items()})
    for target in wish.targets:
        note(f"writing {target}")
        deployed = Deployed(
            model=place / best.file,
            metadata=metadata[best.precision],
            reference=reference,
            name=wish.name or _default_name(subject),
            measured=wish.measured,
        )
        TARGETS[target](place / target, deployed)
    write_manifest(place, _manifest(subject, metadata[best.precision], entries, best))
    told = [f"{entry.precision} is {compared(entry)}" for entry in entries[1:] if entry.latency]
    remarks += [*told, f"deploy {best.file} ({reason})"]
    return Filled(remarks=tuple(remarks), module_accuracy=judged["module"].accuracy)


def _default_name(subject: Subject) -> str:
    return f"{subject.card.space}_{subject.card.digest[:12]}".replace("-", "_")


def _metadata(subject: Subject, wish: Wish, precision: str) -> ModelMetadata:
    return ModelMetadata(
        preprocessing=subject.preprocessing,
        input=PIXELS if wish.embed_preprocessing else PLANES,
        classes=subject.classes,
        arch=subject.arch,
        options=dict(subject.card.options),
        digest=subject.card.digest,
        weights=subject.card.weights,
        precision=precision,
        opset=wish.opset,
        batch=wish.batch,
        hwnas=version("hwnas"),
    )


def _write_model(path: Path, subject: Subject, about: ModelMetadata) -> None:
    pixels = subject.preprocessing if about.input == PIXELS else None
    data = build(
        subject.module,
        about.precision,
        form=Form(opset=about.opset, batch=about.batch, pixels=pixels),
        metadata=about.as_props(),
        calibration=lambda: map(about.feed, calibration_squares(subject, batch=about.batch)),
    )
    check_model(data, opset=about.opset, batch=about.batch, origin=path.name)
    write_atomic(path, data)


def _examined(
    place: Path,
    subject: Subject,
    metadata: Mapping[str, ModelMetadata],
    reference: Reference,
    *,
    images: int,
) -> tuple[list[ModelEntry], dict[str, Judged]]:
    """Return what was found of each model, and how they and the module do on the same images.

    Raises GateError if the logits of a model are not the module's.
    """
    answers = {
        precision: _answer(place / file_name(precision), about)
        for precision, about in metadata.items()
    }
    apart = {
        precision: max(differences(reference, answer).values())
        for precision, answer in answers.items()
    }
    for precision, worst in apart.items():
        check_difference(worst, parity_limit(precision), origin=file_name(precision))
    judged = judge(subject, answers, images=images)
    entries = [
        ModelEntry(
            file=file_name(precision),
            precision=precision,
            opset=about.opset,
            batch=about.batch,
            difference=apart[precision],
            agreement=judged[precision].agreement,
            accuracy=judged[precision].accuracy,
            images=judged[precision].images,
        )
        for precision, about in metadata.items()
    ]
    return entries, judged


def _answer(model: Path, about: ModelMetadata) -> Answer:
    runner = open_runner(model)
    feeding = Feeding(preprocessing=about.preprocessing, format=about.input)
    return lambda squares: batched(squares, runner, feeding)


def _timed(
    place: Path, entries: Sequence[ModelEntry], wish: Wish, paces: Sequence[Pace]
) -> tuple[list[ModelEntry], list[str]]:
    how = Race(
        threads=wish.threads, batch=wish.batch or 1, rounds=wish.rounds, seconds=wish.seconds
    )
    try:
        files = {entry.file: place / entry.file for entry in entries}
        found = race(files, how=how, paces=paces)
    except UnreliableError as error:
        return list(entries), [f"speed was not measured: {error.message}"]
    return [replace(entry, latency=found[entry.file]) for entry in entries], []


def _manifest(
    subject: Subject, about: ModelMetadata, entries: Sequence[ModelEntry], best: ModelEntry
) -> Manifest:
    card = subject.card
    promised = dict(card.promised or {})
    measured = {"accuracy": best.accuracy}
    if best.latency is not None:
        measured["latency"] = best.latency["median_ms"]
    return Manifest(
        arch=subject.arch,
        options=dict(card.options),
        digest=card.digest,
        weights=card.weights,
        supernet=dict(card.supernet),
        data=dict(subject.described),
        preprocessing=subject.preprocessing,
        input=about.input,
        classes=subject.classes,
        models=tuple(entries),
        recommended=best.file,
        promised={**promised.pop("predicted", {}), **promised},
        measured=measured,
        versions=recorded_versions() | {name: version(name) for name in ("onnx", "onnxruntime")},
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
