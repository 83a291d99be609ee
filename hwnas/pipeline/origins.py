"""What a run was begun with, and whether what is asked for now is the same. Needs no torch."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hwnas.errors import UsageError
from hwnas.io import digest
from hwnas.io.paths import seen_from, typed
from hwnas.pipeline.config import DeploySettings, read_recipe
from hwnas.pipeline.rundir import RUN_FILE, has_weights, open_run
from hwnas.training.recipe import Recipe

CONFIG_FILE = "config.toml"
# Parts of the recipe that may change between the sessions of one run.
_FREE = {
    "process": {"checkpoint_seconds", "streams", "tensorboard", "threads"},
    "data": {"workers"},
    "deploy": set(DeploySettings.model_fields),
}


def binding(recipe: Recipe) -> dict[str, Any]:
    """Return what two sessions of one run must agree on."""
    document = recipe.model_dump(mode="json")
    return {
        section: {k: v for k, v in values.items() if k not in _FREE.get(section, ())}
        for section, values in document.items()
    }


def digest_in(folder: Path, recipe: Recipe) -> str:
    """Return the digest of what must be agreed on, the same from wherever `folder` is worked on."""
    document = binding(recipe)
    if recipe.data.path is not None:
        document["data"]["path"] = seen_from(folder, recipe.data.path)
    return digest(document)


def _comparable(recipe: Recipe) -> dict[str, Any]:
    """Return what must be agreed on, with the same name for the same place."""
    document = binding(recipe)
    if recipe.data.path is not None:
        document["data"]["path"] = str(Path(os.path.abspath(recipe.data.path)))
    return document


def origin_in(folder: Path, recipe: Recipe, *, start: str | None = None) -> Mapping[str, Any]:
    """Return the origin of a run of this recipe in a folder, new or begun earlier.

    `start`: where its weights come from. Raises UsageError if another run is there, unless that
    has no weights yet: what was begun with a mistake is begun anew without it.
    """
    origin: Mapping[str, Any] = {"recipe": digest(binding(recipe)), "start": start or ""}
    if not ((folder / RUN_FILE).exists() and has_weights(folder)):
        return origin
    there = open_run(folder).origin
    if there == origin:
        return origin
    differing = []
    config = folder / CONFIG_FILE
    if config.exists():
        before = _comparable(read_recipe(str(config)))
        differing = [
            f"{section}.{key}"
            for section, values in _comparable(recipe).items()
            for key, value in values.items()
            if before.get(section, {}).get(key) != value
        ]
        # The digest of a recipe changes when recipes get new keys; its values do not.
        if not differing and _same_start(there.get("start") or "", start or ""):
            return there
    if not differing:
        began = there.get("start") or ""
        raise UsageError(
            f"{folder} holds a run that differs in where its weights come from: "
            f"{began or 'nowhere'}, not {start or 'nowhere'}",
            f"to go on with it: hwnas train --run {typed(folder)}; or choose another folder with "
            "--run",
        )
    what = ", ".join(differing[:4])
    raise UsageError(
        f"{folder} holds a run that differs in {what}",
        "choose another folder with --run; its weights are a start there: hwnas train --init "
        f"{typed(folder)}",
    )


def _same_start(one: str, other: str) -> bool:
    """Return whether two texts name the same run or file."""
    return one == other or bool(one and other and os.path.realpath(one) == os.path.realpath(other))
