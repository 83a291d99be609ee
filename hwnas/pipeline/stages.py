"""From a recipe to a validated model: the verbs in their order, each done only where it is due.

A stage is one or more commands that a person could type. It is skipped when neither its commands
nor what it reads have changed since it was last done; `RUN/stages.json` remembers that. Every
stage is a process of its own: what one leaves in memory or sets for its threads does not reach
the next, and each can be killed and goes on by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path, PurePath
from time import monotonic

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.export.family import FAMILY_FILE, read_family
from hwnas.io import Schema, digest, digest_file, read_json, write_json
from hwnas.pipeline.config import Recipe
from hwnas.pipeline.fronts import FOLDER, FRONT_FILE, read_front
from hwnas.training.datasets import DataSettings
from hwnas.training.folders import TEST_NAMES, VAL_NAMES

STAGES_SCHEMA = Schema(name="hwnas/stages", version=1)
STAGES_FILE = "stages.json"
VERDICT_FILE = "verdict.json"  # beside the model that it is about
_RECORDS = ("*.jsonl", "profiles/*", "predictors/*", "search/*", "subnets/*/card.json",
            "explanations/*")  # fmt: skip

AUTO = "auto"  # landmarks that cost about as much as the run's subnets
_IMMATERIAL = ("--force",)  # how patient a measurement is, not what is measured

Command = tuple[str, ...]
# Runs a command of hwnas to its end; raises what the command failed with.
Launch = Callable[[Command], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Commands, and the files of the run that they read and write, as patterns.

    `commands` may be a function, for those that depend on what earlier stages found. `binding`:
    what decides their outcome instead of their words. `gates`: later stages go on when it fails.
    """

    name: str
    commands: tuple[Command, ...] | Callable[[], tuple[Command, ...]]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    binding: str = ""
    gates: bool = False

    def resolved(self) -> tuple[Command, ...]:
        """Return the commands as they are now."""
        return self.commands() if callable(self.commands) else self.commands


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A stage that was done: for what inputs, how long it took, and digests of what it wrote."""

    fingerprint: str
    seconds: float
    wrote: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stage in its place in the run. `due`: it has to be done, `why` says why or why not."""

    number: int
    total: int
    stage: Stage
    due: bool
    why: str


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
        binding=digest(recipe.model_dump(mode="json", exclude={"deploy"})),
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
            commands=(("search", *run, *budgets, *forced),),
            reads=("supernet/*", "predictors/*"),
            writes=("search/front.json",),
        ),
    ]


def _delivering(recipe: Recipe, folder: Path) -> list[Stage]:
    return [
        Stage(
            name="export",
            commands=(("export", "--run", str(folder), "--family"),),
            reads=("supernet/*", "search/front.json"),
            writes=("artifacts/family/family.json",),
        ),
        Stage(
            name="validate",
            commands=partial(_validations, folder, recipe),
            reads=("artifacts/family/**/*",),
            gates=True,
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
    if not (family / FAMILY_FILE).exists():
        return (("validate", f"{family}/DIGEST/model.onnx", *checks),)
    return tuple(
        ("validate", str(family / member.file), *checks,
         "--report", str((family / member.file).with_name(VERDICT_FILE)))
        for member in read_family(family).members
    )  # fmt: skip


def _explanations(folder: Path) -> tuple[Command, ...]:
    """Return the command that shows where the time of the largest recommended subnet goes."""
    front = folder / FOLDER / FRONT_FILE
    picks: list[int] = []
    if front.exists():
        answers = read_front(front).answers
        picks = [answer.recommended for answer in answers if answer.recommended is not None]
    chosen = read_front(front).choices[picks[-1]].digest[:12] if picks else "DIGEST"
    return (("profile", "--run", str(folder), "--explain", chosen),)


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


def plan(stages: Sequence[Stage], folder: Path, *, start: str | None = None) -> list[Step]:
    """Return what is due; everything from the stage `start` on is, whatever has changed."""
    names = [stage.name for stage in stages]
    if start is not None and start not in names:
        raise unknown_name("stage", start, names)
    done = read_done(folder)
    steps: list[Step] = []
    for number, stage in enumerate(stages, 1):
        why = _why(stage, folder, done.get(stage.name))
        if start is not None and number - 1 >= names.index(start):
            why = f"asked for with --from {start}"
        before = next((step.stage.name for step in steps if step.due
                       and _feeds(step.stage, stage)), None)  # fmt: skip
        if not why and before is not None:
            why = f"follows {before}"
        steps.append(
            Step(number=number, total=len(stages), stage=stage, due=bool(why),
                 why=why or "nothing has changed")
        )  # fmt: skip
    if start is not None:
        _check_earlier(steps[: names.index(start)], start)
    return steps


def run_stages(
    stages: Sequence[Stage],
    folder: Path,
    *,
    launch: Launch,
    start: str | None = None,
    tell: Callable[[Step], None],
) -> HwnasError | None:
    """Do every stage that is due, in order; `tell` hears of each before it begins or is skipped.

    Raises what a stage failed with; returns the first failure of a gate, after which the run
    goes on.
    """
    first = [stage.name for stage in stages].index(start) if start else len(stages)
    plan(stages, folder, start=start)
    failure: HwnasError | None = None
    for number, stage in enumerate(stages, 1):
        why = _why(stage, folder, read_done(folder).get(stage.name))
        if number - 1 >= first:
            why = why or f"asked for with --from {start}"
        tell(Step(number=number, total=len(stages), stage=stage, due=bool(why),
                  why=why or "nothing has changed"))  # fmt: skip
        if not why:
            continue
        begun = monotonic()
        _forget(folder, stage)
        failed = _launched(stage, launch)
        failure = failure or failed
        if failed is None:
            _remember(folder, stage, monotonic() - begun)
    return failure


def _launched(stage: Stage, launch: Launch) -> HwnasError | None:
    """Run all commands of a stage; return the first failure of a gate."""
    failure = None
    for command in stage.resolved():
        try:
            launch(command)
        except HwnasError as error:
            if not stage.gates:
                raise
            failure = failure or error
    return failure


def read_done(folder: Path) -> dict[str, Done]:
    """Return what was done in a run folder, by stage."""
    path = folder / STAGES_FILE
    if not path.exists():
        return {}
    document = read_json(path, STAGES_SCHEMA)
    return {name: Done(**entry) for name, entry in document["stages"].items()}


def fingerprint(stage: Stage, folder: Path) -> str:
    """Return a digest of all that decides the outcome of a stage."""
    files = {
        str(path.relative_to(folder)): digest_file(path)
        for pattern in stage.reads
        for path in sorted(folder.glob(pattern))
        if path.is_file() and path.name != STAGES_FILE
    }
    said = [[word for word in command if word not in _IMMATERIAL] for command in stage.resolved()]
    return digest({"files": files, "binding": stage.binding or said})


def _why(stage: Stage, folder: Path, done: Done | None) -> str:
    if done is None:
        return "not done yet"
    missing = [pattern for pattern in stage.writes if not any(folder.glob(pattern))]
    if missing:
        return f"{missing[0]} is missing"
    if fingerprint(stage, folder) != done.fingerprint:
        return "what it depends on changed"
    now = _written(stage, folder)
    other = [name for name, found in done.wrote.items() if now.get(name) != found]
    return f"{other[0]} was changed since" if other else ""


def _written(stage: Stage, folder: Path) -> dict[str, str]:
    """Return digests of the files that only this stage writes: those named without a pattern.

    A verb typed by hand may have written another answer there.
    """
    names = [name for name in stage.writes if "*" not in name and (folder / name).is_file()]
    return {name: digest_file(folder / name) for name in names}


def _feeds(stage: Stage, later: Stage) -> bool:
    """Return whether the later stage may read what the stage writes: something in its folder."""
    return any(
        fnmatch(written, pattern) or PurePath(written).parts[0] == PurePath(pattern).parts[0]
        for written in stage.writes
        for pattern in later.reads
    )


def _check_earlier(steps: Sequence[Step], start: str) -> None:
    due = [step.stage.name for step in steps if step.due]
    if due:
        raise UsageError(
            f"--from {start}: {', '.join(due)} before it {'is' if len(due) == 1 else 'are'} due",
            f"--from {due[0]}, or leave --from out",
        )


def _remember(folder: Path, stage: Stage, seconds: float) -> None:
    done = read_done(folder)
    done[stage.name] = Done(
        fingerprint=fingerprint(stage, folder),
        seconds=round(seconds, 1),
        wrote=_written(stage, folder),
    )
    _write_done(folder, done)


def _forget(folder: Path, stage: Stage) -> None:
    """Record that a stage is no longer done: killed in the middle, it is due again."""
    done = read_done(folder)
    if done.pop(stage.name, None) is not None:
        _write_done(folder, done)


def _write_done(folder: Path, done: Mapping[str, Done]) -> None:
    content = {name: asdict(entry) for name, entry in done.items()}
    write_json(folder / STAGES_FILE, STAGES_SCHEMA, {"stages": content})
