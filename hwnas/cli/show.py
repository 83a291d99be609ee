"""`hwnas show`: what a file or folder of ours is, in a few lines. Needs the light install only."""

import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from hwnas.cli import show_kinds as kinds
from hwnas.cli.output import Output, verb_options
from hwnas.errors import FormatError, UsageError

Show = Callable[[Path], kinds.Shown]

# Each by the schema that its JSON file, or the first line of its journal, names.
BY_SCHEMA: Mapping[str, Show] = {
    "hwnas/artifact": kinds.artifact,
    "hwnas/family": kinds.family,
    "hwnas/subnet-card": kinds.subnet,
    "hwnas/subnet": kinds.architecture,
    "hwnas/arch": kinds.architecture,
    "hwnas/front": kinds.front,
    "hwnas/run": kinds.run,
    "hwnas/profile": kinds.profile,
    "hwnas/accuracies": kinds.accuracies,
    "hwnas/landmarks": kinds.landmarks,
    "hwnas/landmark": kinds.landmark,
    "hwnas/verified": kinds.verified,
    "hwnas/verdict": kinds.verdict,
    "hwnas/ort-settings": kinds.plain,
    "hwnas.predictor": kinds.predictor,
    "hwnas.transferred": kinds.predictor,
}
# What tells a folder: the first of these files that is in it.
OF_FOLDERS = ("run.json", "manifest.json", "family.json", "card.json", "arch.json",
              "landmark.json", "front.json")  # fmt: skip
_ACCEPTED = (
    "accepted: a model (.onnx), a pack, a profile, a front, landmarks, a manifest, or the folder "
    "of a run, subnet, predictor, artifact or family"
)


@click.command()
@click.argument("path", type=click.Path(path_type=Path), required=False, metavar="[FILE|FOLDER]")
@verb_options
def show(output: Output, path: Path | None) -> None:
    """Show what a file or folder is: model, manifest, subnet, front, run, profile.

    Without one: what this folder is, or the only run in runs. Files that were changed since their
    manifest was written end it with exit code 4.
    """
    path = path or _here()
    found = showing(path)
    output.result({"kind": found.kind, "path": str(path), **found.document}, found.text)
    if found.problem is not None:
        raise found.problem


def _here() -> Path:
    from hwnas.pipeline.rundir import RUN_FILE, RUNS_FOLDER

    here = Path()
    found = sorted(path.parent for path in here.glob(f"{RUNS_FOLDER}/*/{RUN_FILE}"))
    is_something = any((here / name).is_file() for name in OF_FOLDERS)
    return found[0] if len(found) == 1 and not is_something else here


def showing(path: Path) -> kinds.Shown:
    """Return what a file or folder is; raises UsageError if it is nothing of ours."""
    if path.is_dir():
        for name in OF_FOLDERS:
            if (path / name).is_file():
                return showing(path / name)
        raise UsageError(f"{path}: nothing of hwnas is in this folder", _below(path))
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder", _ACCEPTED)
    if path.suffix == ".onnx":
        return kinds.model(path)
    if zipfile.is_zipfile(path):
        return kinds.pack(path)
    # Lines that somebody wrote by hand need no schema above them.
    schema = "hwnas/landmarks" if path.name == "landmarks.jsonl" else _schema_of(path)
    if schema not in BY_SCHEMA:
        raise UsageError(f"{path}: is a {schema!r}, which there is nothing to show of", _ACCEPTED)
    try:
        return BY_SCHEMA[schema](path)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: incomplete {schema} ({error!r})") from error


def _below(folder: Path) -> str:
    """Return what can be shown below a folder, or else what can be shown at all."""
    places = [place for depth in ("*", "*/*") for name in OF_FOLDERS
              for place in sorted(folder.glob(f"{depth}/{name}"))]  # fmt: skip
    found = list(dict.fromkeys(str(place.parent) for place in places))
    return f"hwnas show {' or '.join(found[:3])}" if found else _ACCEPTED


def _schema_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            text = file.readline() if path.suffix == ".jsonl" else file.read()
        document: Any = json.loads(text)
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, RecursionError) as error:  # also text that is no text
        raise FormatError(f"{path}: no file of hwnas, or a damaged one ({error})", _ACCEPTED) from (
            error
        )
    if not isinstance(document, dict) or not isinstance(document.get("schema"), str):
        raise FormatError(f"{path}: not a file of hwnas (no schema in it)", _ACCEPTED)
    return str(document["schema"])
