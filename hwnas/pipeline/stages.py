"""Verbs in an order, each done only where it is due; which they are: `hwnas.pipeline.deploying`.

A stage is one or more commands that a person could type. It is skipped when neither its commands
nor what it reads have changed since it was last done; `RUN/stages.json` remembers that. Every
stage is a process of its own: what one leaves in memory or sets for its threads does not reach
the next, and each can be killed and goes on by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatch
from pathlib import Path, PurePath
from time import monotonic

from hwnas.errors import HwnasError, InfeasibleError, UsageError, unknown_name
from hwnas.io import Schema, digest, digest_file, read_json, write_json

STAGES_SCHEMA = Schema(name="hwnas/stages", version=1)
STAGES_FILE = "stages.json"
_IMMATERIAL = ("--force",)  # how patient a measurement is, not what is measured

Command = tuple[str, ...]
# Runs a command of hwnas to its end; raises what the command failed with.
Launch = Callable[[Command], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """Commands, and the files of the run that they read and write, as patterns.

    `commands` may be a function, for those that depend on what earlier stages found. `binding`:
    what decides their outcome instead of their words. `gates`: whether later stages go on after
    such a failure; they never do when what only this one writes is what it was before.
    """

    name: str
    commands: tuple[Command, ...] | Callable[[], tuple[Command, ...]]
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    binding: str = ""
    gates: Callable[[HwnasError], bool] = lambda _: False

    def resolved(self) -> tuple[Command, ...]:
        """Return the commands as they are now."""
        return self.commands() if callable(self.commands) else self.commands


@dataclass(frozen=True, kw_only=True, slots=True)
class Done:
    """A stage that was done: for what inputs, how long it took, and digests of what it wrote.

    One that was done and begun again has no fingerprint: it is due, and how long it took is known.
    `lacks`: that it could not give all that was asked for, which it would not if done again.
    """

    fingerprint: str
    seconds: float
    wrote: dict[str, str] = field(default_factory=dict)
    lacks: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A stage in its place in the run. `due`: it has to be done, `why` says why or why not."""

    number: int
    total: int
    stage: Stage
    due: bool
    why: str


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
    goes on. That of a stage which is skipped, as it could give no more than it did, counts, too.
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
            failure = failure or _lacking(stage, folder)
            continue
        begun = monotonic()
        _forget(folder, stage)
        failed = _launched(stage, folder, launch)
        failure = failure or failed
        lacks = failed is not None and failed.exit_code == InfeasibleError.exit_code
        if failed is None or lacks:
            _remember(folder, stage, monotonic() - begun, lacks=lacks)
    return failure


def _lacking(stage: Stage, folder: Path) -> InfeasibleError | None:
    if not read_done(folder)[stage.name].lacks:
        return None
    return InfeasibleError(
        f"stage {stage.name} did not find all that was asked for, and nothing has changed since",
        f"ask for something else, or do it again: --from {stage.name}",
    )


def _launched(stage: Stage, folder: Path, launch: Launch) -> HwnasError | None:
    """Run all commands of a stage; return the first failure that later stages go on after."""
    failure = None
    before = _written(stage, folder)
    for command in stage.resolved():
        try:
            launch(command)
        except HwnasError as error:
            now = _written(stage, folder)
            if not stage.gates(error) or any(now.get(name) == old for name, old in before.items()):
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
    said = [
        [_in_run(word, folder) for word in command if word not in _IMMATERIAL]
        for command in stage.resolved()
    ]
    return digest({"files": files, "binding": stage.binding or said})


def _in_run(word: str, folder: Path) -> str:
    """Return a word of a command as it is from wherever the run is worked on."""
    path = Path(word)
    inside = folder.parts and path.is_relative_to(folder)  # everything is in the folder "."
    return str("RUN" / path.relative_to(folder)) if inside or path == folder else word


def _why(stage: Stage, folder: Path, done: Done | None) -> str:
    if done is None or not done.fingerprint:
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


def _remember(folder: Path, stage: Stage, seconds: float, *, lacks: bool) -> None:
    done = read_done(folder)
    done[stage.name] = Done(
        fingerprint=fingerprint(stage, folder),
        seconds=round(seconds, 1),
        wrote=_written(stage, folder),
        lacks=lacks,
    )
    _write_done(folder, done)


def _forget(folder: Path, stage: Stage) -> None:
    """Record that a stage is no longer done: killed in the middle, it is due again."""
    done = read_done(folder)
    if stage.name in done:
        done[stage.name] = Done(fingerprint="", seconds=done[stage.name].seconds)
        _write_done(folder, done)


def _write_done(folder: Path, done: Mapping[str, Done]) -> None:
    content = {name: asdict(entry) for name, entry in done.items()}
    write_json(folder / STAGES_FILE, STAGES_SCHEMA, {"stages": content})
