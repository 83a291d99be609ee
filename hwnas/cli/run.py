"""`hwnas run`: from a recipe to validated models and a report, one verb for all of them."""

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.progress import clock
from hwnas.cli.shared import FORCE, new_run_option, set_option
from hwnas.cli.values import Parsed
from hwnas.errors import EXIT_INTERRUPTED, HwnasError
from hwnas.io.interpreter import module_command, module_environment
from hwnas.io.units import DURATION_MS, parse

if TYPE_CHECKING:
    from hwnas.pipeline.config import Recipe
    from hwnas.pipeline.estimates import Units
    from hwnas.pipeline.stages import Command, Stage, Step

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PATIENCE_S = 30.0
_TIME = replace(DURATION_MS, example="5min")
_NEXT = {  # where later stages go on all the same
    "validate": "examines the models again; all else is done",
    "search": "does what is due; there are models only for the budgets that were met",
}


class StageError(HwnasError):
    """A stage failed; it has said why itself."""

    def __init__(self, stage: str, exit_code: int) -> None:
        hint = f"the same command {_NEXT.get(stage, 'goes on there once that is mended')}"
        super().__init__(f"stage {stage} failed", hint)
        self.exit_code = exit_code


@click.command()
@click.argument("recipe", metavar="RECIPE")
@new_run_option("[default: runs/RECIPE]")
@set_option("deploy.models=30")
@click.option("--from", "start", metavar="STAGE",
              help="Do this stage and all after it again, from what the run already "
                   "holds.")  # fmt: skip
@FORCE
@click.option("--within", type=Parsed(partial(parse, kind=_TIME)), metavar="5min",
              help="Cut training, what is measured for predictors, and the images that subnets "
                   "are judged by, so that all of it takes at most about that long here; a run "
                   "that goes on keeps what was chosen when it began.")  # fmt: skip
@click.option("--dry-run", is_flag=True,
              help="Show what would be done, and what time and disk it takes here.")  # fmt: skip
@verb_options
def run(
    output: Output,
    *,
    recipe: str,
    folder: Path | None,
    assignments: tuple[str, ...],
    start: str | None,
    force: bool,
    within: float | None,
    dry_run: bool,
) -> None:
    """Train, profile, fit, search, export, validate and report by RECIPE.

    A stage whose inputs have not changed is skipped; interrupted or killed, the same command
    goes on. Section [deploy] of the recipe says what happens after training.
    """
    from hwnas.pipeline.stages import read_done, run_stages

    asked = _Asked(
        recipe=recipe, folder=folder or Path("runs") / Path(recipe).stem, assignments=assignments,
        start=start, force=force, within_s=None if within is None else within / 1e3,
    ).going_on(note=output.note)  # fmt: skip
    if dry_run:
        _show_plan(output, asked)
        return
    seconds = {name: done.seconds for name, done in read_done(asked.folder).items()}
    due = [step.stage.name for step in asked.steps() if step.due]
    # Where all of it was done before, it will take about as long as the last time.
    if asked.within_s is not None or not seconds.keys() >= set(due):
        asked, seconds = _estimated(output, asked)
    progress = _Overall(output, seconds, due)
    begun = time.monotonic()
    failure = run_stages(
        asked.stages(), asked.folder, launch=_launcher(output, progress), start=start,
        tell=progress,
    )  # fmt: skip
    _conclude(output, asked.folder, time.monotonic() - begun)
    if failure is not None:
        raise failure


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is asked for. `within_s`: the seconds it may take; None once its lengths are settled."""

    recipe: str
    folder: Path
    assignments: tuple[str, ...]
    start: str | None
    force: bool
    within_s: float | None

    def going_on(self, *, note: Callable[[str], None]) -> "_Asked":
        """Return what is asked for, with the lengths that the run was begun with.

        `note` hears of each that is asked for otherwise. Raises for another run: it would only be
        noticed after the calibration.
        """
        from hwnas.pipeline.lengths import assignments_of, lengths_in
        from hwnas.pipeline.origins import origin_in

        lengths = None if self.within_s is None else lengths_in(self.folder)
        begun_with = () if lengths is None else assignments_of(lengths)
        asked = self if lengths is None else self.cut(begun_with)
        kept = {length.partition("=")[0]: length for length in begun_with}
        for assignment in self.assignments:
            length = kept.get(assignment.partition("=")[0].strip(), assignment)
            if length != assignment:
                note(f"{assignment} is not taken: with --within the run keeps {length}")
        origin_in(asked.folder, asked.settings())
        return asked

    def cut(self, assignments: Sequence[str]) -> "_Asked":
        """Return the same with lengths that are settled."""
        return replace(self, assignments=(*self.assignments, *assignments), within_s=None)

    def settings(self) -> "Recipe":
        """Return the recipe with the assignments."""
        from hwnas.pipeline.config import read_recipe

        return read_recipe(self.recipe, self.assignments)

    def stages(self) -> "list[Stage]":
        """Return the stages."""
        from hwnas.pipeline.deploying import stages_of

        return stages_of(
            self.settings(), self.recipe, self.folder,
            assignments=self.assignments, force=self.force,
        )  # fmt: skip

    def steps(self) -> "list[Step]":
        """Return the stages, and which of them are due."""
        from hwnas.pipeline.stages import plan

        return plan(self.stages(), self.folder, start=self.start)


def _show_plan(output: Output, asked: _Asked) -> None:
    from hwnas.pipeline.estimates import calibrate, estimate
    from hwnas.training.process import tune_process

    begun = time.monotonic()
    tune_process()
    units = calibrate(asked.settings(), note=output.note)
    asked, cut = _cut(asked, units, spent=time.monotonic() - begun)
    found = estimate(asked.settings(), units)
    steps = asked.steps()
    due = [step for step in steps if step.due]
    total = sum(found.seconds[step.stage.name] for step in due)
    rows = [
        [step.stage.name, clock(found.seconds[step.stage.name]) if step.due else "-", step.why]
        for step in steps
    ]
    commands = [
        f"  {shlex.join(('hwnas', *command))}" for step in due for command in step.stage.resolved()
    ]
    disk = f"{found.disk_bytes / 1e6:.0f} MB"
    text = [*([cut["why"], ""] if cut else []),
            table(["stage", "time", "why"], rows, right=(1,)), "",
            f"about {clock(total)} in all, and {disk} on disk", "", *commands]  # fmt: skip
    document = {
        "stages": [
            {"name": step.stage.name, "due": step.due, "why": step.why,
             "seconds": round(found.seconds[step.stage.name], 1),
             "commands": [["hwnas", *command] for command in step.stage.resolved()]}
            for step in steps
        ],
        "seconds": round(total, 1),
        "disk_bytes": found.disk_bytes,
        "cut": cut,
    }  # fmt: skip
    output.result(document, "\n".join(text))


def _cut(asked: _Asked, units: "Units", *, spent: float) -> tuple[_Asked, dict[str, Any] | None]:
    """Return what is asked for with lengths that fit the time, and what was cut if anything was."""
    from hwnas.pipeline.lengths import assignments_of, cut_to

    if asked.within_s is None:
        return asked, None
    found = cut_to(asked.settings(), units, asked.within_s - spent)
    if found.share == 1:
        return asked.cut(()), None
    takes = f"takes about {clock(found.seconds + spent)}"
    why = f"cut to {found.share:.0%} of the training and of what is measured, which {takes}"
    if found.seconds > asked.within_s - spent:
        why += f", longer than {clock(asked.within_s)}: with less nothing would be learnt"
    assignments = assignments_of(found.lengths)
    return asked.cut(assignments), {"why": why, "assignments": list(assignments)}


def _estimated(output: Output, asked: _Asked) -> tuple[_Asked, dict[str, float]]:
    """Return what is asked for, cut if need be, and seconds by stage.

    Calibrated in a process of its own, which has what training's has: this one stays small.
    """
    sets = [part for assignment in asked.assignments for part in ("--set", assignment)]
    command = [*module_command("hwnas"), "run", asked.recipe, *sets, "--run", str(asked.folder)]
    command += [] if asked.within_s is None else ["--within", f"{asked.within_s:g}s"]
    command += ["--dry-run", "--json", "--quiet"]
    # Before anything is said: it imports, and some imports lose an interrupt.
    environment = module_environment(_environment(("train",)))
    output.note("finding out how long it will take here")
    done = subprocess.run(  # noqa: S603 - our own verb
        command, stdout=subprocess.PIPE, text=True, check=False,
        env=environment,
    )  # fmt: skip
    if done.returncode:
        raise click.exceptions.Exit(done.returncode)  # it has said why
    found = json.loads(done.stdout)
    seconds = {stage["name"]: stage["seconds"] for stage in found["stages"]}
    if found["cut"] is None:
        return asked, seconds
    output.note(found["cut"]["why"])
    return asked.cut(found["cut"]["assignments"]), seconds


class _Overall:
    """Tells which stage begins and how long all that is left will take.

    `stage`: the name of the one that began last.
    """

    def __init__(self, output: Output, seconds: Mapping[str, float], due: Sequence[str]) -> None:
        self._output, self._seconds, self._left = output, seconds, list(due)
        self.stage = ""

    def __call__(self, step: "Step") -> None:
        self.stage = name = step.stage.name
        head = f"[{step.number}/{step.total}] {name}"
        if not step.due:
            self._output.note(f"{head}: skipped, {step.why}")
            return
        after = [other for other in self._left if other != name]
        left = sum(self._seconds.get(other, 0.0) for other in (name, *after))
        here = clock(self._seconds.get(name, 0.0))
        self._output.note(f"\n{head}: about {here}, {clock(left)} left in all ({step.why})")
        self._left = after


def _launcher(output: Output, progress: _Overall) -> "Callable[[Command], None]":
    flags = ["--quiet"] if output.quiet else []

    def launch(command: "Command") -> None:
        output.note(f"$ {shlex.join(('hwnas', *command))}")
        child = subprocess.Popen(  # noqa: S603 - our own verbs
            [*module_command("hwnas"), *command, *flags],
            env=module_environment(_environment(command)),
            # Results of stages are news here; the result of this verb is the summary at the end.
            stdout=sys.stderr if not output.quiet else subprocess.DEVNULL,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            process_group=0,  # Ctrl-C reaches the stage once, through this process
        )
        code = _waited(child)
        if code:
            raise StageError(progress.stage, code if code > 0 else 128 - code)

    return launch


def _environment(command: "Command") -> dict[str, str]:
    """Return what a stage's process is started with: training is a tenth faster with huge pages."""
    from hwnas.profiling.pages import VARIABLE, huge_pages_problem, page_environment

    if command[0] != "train" or huge_pages_problem() is not None:
        return {}
    return page_environment("huge", others=os.environ.get(VARIABLE))


def _waited(child: "subprocess.Popen[bytes]") -> int:
    """Return the exit code of a child; an interrupt is for the child to end by, and to explain."""
    try:
        return child.wait()
    except KeyboardInterrupt:
        child.send_signal(signal.SIGINT)
        try:
            code = child.wait(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            child.kill()
            raise
        # Python ends by the signal itself where it came in the middle of some imports.
        if code in (EXIT_INTERRUPTED, -signal.SIGINT):
            raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
        raise


def _die_with_parent() -> None:
    """Let the kernel interrupt a stage when this process is killed, however that happens."""
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGTERM)


def _conclude(output: Output, folder: Path, seconds: float) -> None:
    from hwnas.export.family import read_family
    from hwnas.pipeline.fronts import FOLDER, FRONT_FILE, read_front

    place = folder / "artifacts" / "family"
    family = read_family(place)
    models = [
        {"budgets": list(member.budgets), "accuracy": member.accuracy,
         "latency_ms": member.latency_ms, "size_bytes": member.size_bytes,
         **_verdict(place / member.file), "file": str(place / member.file)}
        for member in family.members
    ]  # fmt: skip
    rows = [
        [", ".join(model["budgets"]), f"{model['accuracy']:.2%}",
         "-" if model["latency_ms"] is None else f"{model['latency_ms']:.3f} ms",
         f"{model['size_bytes'] / 1e6:.2f} MB", model["verdict"], model["file"]]
        for model in models
    ]  # fmt: skip
    unmet = [
        {"budget": answer.budget, "reason": answer.reason}
        for answer in read_front(folder / FOLDER / FRONT_FILE).answers
        if answer.recommended is None
    ]
    document: dict[str, Any] = {
        "run": str(folder),
        "seconds": round(seconds, 1),
        "report": str(folder / "report.html"),
        "models": models,
        "unmet": unmet,
    }
    found = table(
        ["budget", "held-out", "measured", "size", "verdict", "model"], rows, right=(1, 2, 3)
    )
    lines = [f"\n{folder}: done in {clock(seconds)}", "", found, ""]
    lines += [f"nothing for {one['budget']}: {one['reason']}" for one in unmet]
    output.result(document, "\n".join([*lines, f"report: {folder / 'report.html'}"]))


def _verdict(model: Path) -> dict[str, Any]:
    """Return what `hwnas validate` found of a model when it was last examined.

    With the latency, if it measured one: that is what the verdict is about, not the one at export.
    """
    from hwnas.export.artifact import VERDICT_FILE
    from hwnas.export.validate_types import VERDICT_SCHEMA
    from hwnas.io import read_json

    path = model.with_name(VERDICT_FILE)
    if not path.is_file():
        return {"verdict": "-"}
    found = read_json(path, VERDICT_SCHEMA)
    said: dict[str, Any] = {"verdict": str(found["state"])}
    latency = found["figures"].get("speed", {}).get("latency")
    return said | ({"latency_ms": latency["median_ms"]} if latency else {})
