"""The stages of a recipe: from its images to validated models and a report.

What a stage reads outside the run folder, the images, is part of what binds it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hwnas.errors import (
    HwnasError,
    InfeasibleError,
    UnreliableError,
    UsageError,
    unknown_name,
)
from hwnas.export.artifact import VERDICT_FILE
from hwnas.export.family import FAMILY_FILE, read_family
from hwnas.export.precisions import FP32, PRECISIONS
from hwnas.io import digest
from hwnas.io.paths import seen_from
from hwnas.pipeline.config import DeploySettings, Recipe
from hwnas.pipeline.deployments import PLAINEST
from hwnas.pipeline.fronts import FOLDER, FRONT_FILE, read_front
from hwnas.pipeline.origins import digest_in
from hwnas.pipeline.stages import Command, Stage
from hwnas.training.datasets import DataSettings
from hwnas.training.folders import TEST_NAMES, TRAIN_NAMES, VAL_NAMES, contents

AUTO = "auto"  # landmarks that cost about as much as the run's subnets
_RECORDS = ("*.jsonl", "profiles/*", "predictors/**/*", "search/*", "subnets/*/card.json",
            "explanations/*")  # fmt: skip


def stages_of(
    recipe: Recipe,
    source: str,
    folder: Path,
    *,
    assignments: Sequence[str] = (),
    force: bool = False,
) -> list[Stage]:
    """Return the stages that turn a recipe into validated models in a run folder.

    `force`: on a busy machine, too.
    """
    _check_deploy(recipe)
    sets = tuple(part for assignment in assignments for part in ("--set", assignment))
    train = Stage(
        name="train",
        commands=(("train", source, "--run", str(folder), *sets),),
        writes=("supernet/LATEST", "events.jsonl"),
        binding=digest([digest_in(folder, recipe), _training_images(recipe.data)]),
    )
    searching = _searching(recipe, folder, force=force)
    comparing = _comparing(recipe, folder, force=force)
    *delivering, report = _delivering(recipe, folder)
    return [train, *searching, *delivering, *comparing, report]


def _check_deploy(recipe: Recipe) -> None:
    """Raise for what would only fail after the training."""
    from hwnas.profiling.backends import backend

    deploy = recipe.deploy
    known = [name for chosen in deploy.backends for name in backend(chosen).precisions]
    for name in deploy.precisions:
        if name not in known:
            raise unknown_name("precision in deploy.precisions", name, dict.fromkeys(known))
    if deploy.min_accuracy and recipe.data.path is not None and not _may_have_test(recipe.data):
        raise UsageError(
            f"deploy.min_accuracy is {deploy.min_accuracy:g}, and there are no images to test on",
            f"put some in {recipe.data.path / 'test'}/<class>/, or --set data.test=0.1 keeps a "
            "tenth of a single folder",
        )


def _may_have_test(data: DataSettings) -> bool:
    """Return whether there are images to test on; a name or a mistake in the path: not known."""
    if data.name is not None or data.path is None or not data.path.is_dir():
        return True
    return _test_images(data, Path()) is not None


def _searching(recipe: Recipe, folder: Path, *, force: bool) -> list[Stage]:
    run, deploy = ("--run", str(folder)), recipe.deploy
    forced = ("--force",) if force else ()
    settings = (
        "--threads", ",".join(map(str, deploy.threads)),
        "--precision", ",".join(deploy.precisions),
        "--backend", ",".join(deploy.backends),
    )  # fmt: skip
    budgets = ("--latency", ",".join(deploy.latency), "--verify", str(deploy.verify))
    return [
        Stage(
            name="profile",
            commands=(("profile", *run, "-n", str(deploy.models), *settings, *forced),),
            writes=("profiles/*.jsonl",),
        ),
        Stage(
            name="fit",
            commands=(("fit", *run, "-n", str(deploy.accuracies)),),
            reads=("supernet/*", "profiles/*.jsonl"),
            writes=("predictors/*",),
        ),
        Stage(
            name="search",
            commands=(("search", *run, *budgets, *_ways(deploy), *forced),),
            # Not all of a predictor: how long it was fitted for differs every time.
            reads=("supernet/*", "predictors/**/card.json"),
            writes=("search/front.json",),
            gates=partial(_is_answered_in_part, folder),
        ),
    ]


def _ways(deploy: DeploySettings) -> tuple[str, ...]:
    """Return the option by which a search chooses among the ways to run that are measured.

    The plainest is taken without.
    """
    measured = {
        "backend": set(deploy.backends),
        "threads": set(map(str, deploy.threads)),
        "precision": set(deploy.precisions),
    }
    every = {key: measured.get(key, {plainest}) for key, plainest in PLAINEST.items()}
    fixed = {key: value for key, (value, *others) in every.items() if not others}
    if fixed == PLAINEST:
        return ()
    return ("--settings", ",".join(f"{key}={value}" for key, value in fixed.items()))


def _threads(deploy: DeploySettings) -> tuple[str, ...]:
    """Return the option by which speed is told of as many threads as were searched for.

    Of several numbers the best differs between models: it is told of one thread.
    """
    (count, *others) = sorted(set(deploy.threads))
    return () if others or count == 1 else ("--threads", str(count))


def _delivering(recipe: Recipe, folder: Path) -> list[Stage]:
    files = [name for name in recipe.deploy.precisions if name in PRECISIONS]
    precisions = ("--precision", ",".join(files)) if set(files) - {FP32} else ()
    return [
        Stage(
            name="export",
            commands=(
                ("export", "--run", str(folder), "--family", *precisions, *_threads(recipe.deploy)),
            ),
            reads=("supernet/*", "search/front.json"),
            writes=("artifacts/family/family.json",),
        ),
        Stage(
            name="validate",
            commands=partial(_validations, folder, recipe),
            reads=("artifacts/family/**/*",),
            writes=(f"artifacts/family/*/{VERDICT_FILE}",),
            binding=_checked(recipe, folder),
            gates=lambda _: True,
        ),
        Stage(
            name="explain",
            commands=partial(_explanations, folder),
            reads=("search/front.json",),
            writes=("explanations/*.json",),
        ),
        Stage(
            name="report",
            commands=(("report", str(folder)),),
            reads=(*_RECORDS, "artifacts/family/**/*.json"),
            writes=("report.html",),
        ),
    ]


def _comparing(recipe: Recipe, folder: Path, *, force: bool) -> list[Stage]:
    """Return the stage that trains other networks, if the recipe names any."""
    named = recipe.deploy.landmarks
    if not named:
        return []
    entries = () if named == (AUTO,) else named
    forced = ("--force",) if force else ()
    return [
        Stage(
            name="landmarks",
            commands=(("landmarks", *entries, "--run", str(folder), *forced),),
            reads=("config.toml", "search/front.json"),
            writes=("search/landmarks.jsonl",),
        )
    ]


def _validations(folder: Path, recipe: Recipe) -> tuple[Command, ...]:
    """Return a command for each exported model, or for any while there are none yet."""
    family = folder / "artifacts" / "family"
    images, least = _test_images(recipe.data, folder), recipe.deploy.min_accuracy
    checks = ("--data", images) if images else ()
    if least:
        checks = (*checks, "--min-accuracy", str(least))
    checks = (*checks, *_threads(recipe.deploy))
    if not (family / FAMILY_FILE).exists():
        return (("validate", f"{family}/DIGEST/model.onnx", *checks),)
    return tuple(
        ("validate", str(family / member.file), *checks,
         "--report", str((family / member.file).with_name(VERDICT_FILE)))
        for member in read_family(family).members
    )  # fmt: skip


def _training_images(data: DataSettings) -> str:
    """Return which images are trained on and held out, by their names; nothing for named data."""
    if data.path is None or not data.path.is_dir():
        return ""
    parts = any((data.path / name).is_dir() for name in TRAIN_NAMES)
    return contents(data.path, without=TEST_NAMES if parts else ())


def _checked(recipe: Recipe, folder: Path) -> str:
    """Return a digest of what the models are validated against."""
    images = _test_images(recipe.data, folder)
    if images is None or recipe.data.path is None or recipe.data.name is not None:
        return digest([images, recipe.deploy.min_accuracy])
    place = recipe.data.path if images == str(folder) else Path(images)
    seen = [seen_from(folder, place), contents(place, sizes=True)]
    return digest([seen, recipe.deploy.min_accuracy])


def _is_answered_in_part(folder: Path, error: HwnasError) -> bool:
    """Return whether a search failed only because it has nothing for some of its budgets."""
    front = folder / FOLDER / FRONT_FILE
    if error.exit_code not in (InfeasibleError.exit_code, UnreliableError.exit_code):
        return False
    found = [answer.recommended for answer in read_front(front).answers] if front.exists() else []
    return None in found and any(index is not None for index in found)


def _explanations(folder: Path) -> tuple[Command, ...]:
    """Return the command that shows where the time of the largest recommended subnet goes."""
    place = folder / FOLDER / FRONT_FILE
    front = read_front(place) if place.exists() else None
    answers = front.answers if front is not None else ()
    picks = [answer.recommended for answer in answers if answer.recommended is not None]
    if front is None or not picks:
        return (("profile", "--run", str(folder), "--explain", "DIGEST"),)
    chosen = front.choices[picks[-1]]
    way = _explained_way(chosen.settings or {})
    return (("profile", "--run", str(folder), "--explain", chosen.digest[:12], *way),)


def _explained_way(settings: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the options that explain a subnet as it is to be run, as far as that can be told.

    Only ONNX Runtime tells the time of each operation; precisions of others may be unknown to it.
    """
    if settings.get("backend") != PLAINEST["backend"]:
        return ()
    how = {key: str(settings.get(key, PLAINEST[key])) for key in ("threads", "precision")}
    unusual = {key: value for key, value in how.items() if value != PLAINEST[key]}
    return tuple(word for key, value in unusual.items() for word in (f"--{key}", value))


def _test_images(data: DataSettings, folder: Path) -> str | None:
    """Return what `hwnas validate --data` calls the images that took no part in the search.

    The part of a single folder that is kept for it is known by the run.
    """
    if data.name is not None:
        return data.name if "/" not in data.name else None
    if data.path is None:
        return None
    parts = [data.path / name for name in (*TEST_NAMES, *VAL_NAMES)]
    found = next((str(part) for part in parts if part.is_dir()), None)
    return str(folder) if found is None and data.test is not None else found
