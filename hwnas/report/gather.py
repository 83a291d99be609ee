"""What a run holds that a report can tell, read by the library's own readers."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.errors import FormatError
from hwnas.io import read_journal
from hwnas.pipeline.accuracies import FILE as ACCURACIES_FILE
from hwnas.pipeline.evaluations import StoredEvaluation, read_evaluations
from hwnas.pipeline.explanations import Explained, read_explanations
from hwnas.pipeline.fronts import FOLDER as SEARCH_FOLDER
from hwnas.pipeline.fronts import FRONT_FILE, Front, Verified, alike, read_front, read_verified
from hwnas.pipeline.landmarks import Landmark, landmarks_path, read_landmarks
from hwnas.pipeline.rundir import LATEST_FILE, SUPERNET_FOLDER, Run, latest_step, open_run, space_of
from hwnas.profiling.profiles import Profile, read_profile
from hwnas.spaces import Space

if TYPE_CHECKING:
    from hwnas.export.artifact import Manifest

_EVENTS_FILE, _CONFIG_FILE = "events.jsonl", "config.toml"


@dataclass(frozen=True, kw_only=True, slots=True)
class Material:
    """Everything a report is made of; empty where the run has nothing yet.

    `verified`: what was measured as the front's choices are meant to be run, not other ways.
    """

    run: Run
    space: Space
    step: int | None
    recipe: Mapping[str, Any]
    front: Front | None
    verified: tuple[Verified, ...]
    landmarks: tuple[Landmark, ...]
    evaluations: tuple[StoredEvaluation, ...]
    events: tuple[Mapping[str, Any], ...]
    explanations: tuple[Explained, ...]
    manifests: tuple[tuple[str, "Manifest"], ...]
    profiles: tuple[tuple[str, Profile], ...]
    heldout_images: int

    @property
    def data(self) -> str:
        """What it was trained on: the name of the data, else that of the folder of images."""
        said = self.recipe.get("data", {})
        return str(said.get("name") or Path(said.get("path") or "").name)


def gather(folder: Path) -> Material:
    """Return what the run in `folder` holds. Raises FormatError for damaged files."""
    run = open_run(folder)
    has_supernet = (run.folder / SUPERNET_FOLDER / LATEST_FILE).is_file()
    place = run.folder / SEARCH_FOLDER / FRONT_FILE
    front = read_front(place) if place.is_file() else None
    verified = read_verified(run)
    return Material(
        run=run,
        space=space_of(run),
        step=latest_step(run) if has_supernet else None,
        recipe=_recipe(run.folder / _CONFIG_FILE),
        front=front,
        verified=tuple(verified if front is None else alike(front, verified)),
        landmarks=read_landmarks(landmarks_path(run)),
        evaluations=tuple(read_evaluations(run)),
        events=_events(run.folder / _EVENTS_FILE),
        explanations=tuple(read_explanations(run.folder)),
        manifests=_manifests(run.folder / "artifacts"),
        heldout_images=_heldout_images(run.folder / ACCURACIES_FILE),
        profiles=tuple((path.name, read_profile(path)) for path in run.profiles),
    )


def _events(path: Path) -> tuple[Mapping[str, Any], ...]:
    return tuple(read_journal(path)) if path.is_file() else ()


def _heldout_images(path: Path) -> int:
    """Return on how many images accuracies were measured; 0 where none was."""
    counts = [line["images"] for line in _events(path) if isinstance(line.get("images"), int)]
    return counts[-1] if counts else 0


def _recipe(path: Path) -> Mapping[str, Any]:
    """Return the resolved recipe as it stands; checking it would need torch."""
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not TOML ({error})") from error


def _manifests(folder: Path) -> tuple[tuple[str, "Manifest"], ...]:
    paths = sorted(folder.rglob("manifest.json"))  # families have folders of their own
    if not paths:
        return ()
    from hwnas.export.artifact import read_manifest

    return tuple(
        (path.parent.relative_to(folder).as_posix(), read_manifest(path)) for path in paths
    )
