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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.progress import clock
from hwnas.cli.shared import FORCE, new_run_option, set_option
from hwnas.errors import EXIT_INTERRUPTED, HwnasError

if TYPE_CHECKING:
    from hwnas.pipeline.stages import Command, Step

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_PATIENCE_S = 30.0
_NEXT = {"validate": "examines the models again; all else is done"}  # of stages that only look


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
    dry_run: bool,
) -> None:
    """Train, profile, fit, search, export, validate and report by RECIPE.

    A stage whose inputs have not changed is skipped; interrupted or killed, the same command
    goes on. Section [deploy] of the recipe says what happens after training.
    """
    from hwnas.pipeline.config import read_recipe
    from hwnas.pipeline.deploying import stages_of
    from hwnas.pipeline.origins import origin_in
    from hwnas.pipeline.stages import plan, read_done, run_stages

    folder = folder or Path("runs") / Path(recipe).stem
    settings = read_recipe(recipe, assignments)
    origin_in(folder, settings)  # another run would only be noticed after the calibration
    stages = stages_of(settings, recipe, folder, assignments=assignments, force=force)
    steps = plan(stages, folder, start=start)
    if dry_run:
        _show_plan(output, recipe, assignments, steps)
        return
    due = [step.stage.name for step in steps if step.due]
    seconds = {name: done.seconds for name, done in read_done(folder).items()}
    if not seconds.keys() >= set(due):  # else it will take about as long as the last time
        seconds = _estimates(output, recipe, folder, assignments)
    progress = _Overall(output, seconds, due)
    begun = time.monotonic()
    failure = run_stages(stages, folder, launch=_launcher(output), start=start, tell=progress)
    _conclude(output, folder, time.monotonic() - begun)
    if failure is not None:
        raise failure


def _show_plan(
    output: Output, recipe: str, assignments: Sequence[str], steps: "Sequence[Step]"
) -> None:
    from hwnas.pipeline.config import read_recipe
    from hwnas.pipeline.estimates import estimate
    from hwnas.training.process import tune_process

    tune_process()
    found = estimate(read_recipe(recipe, assignments), note=output.note)
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
    text = [table(["stage", "time", "why"], rows, right=(1,)), "",
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
    }  # fmt: skip
    output.result(document, "\n".join(text))


def _estimates(
    output: Output, recipe: str, folder: Path, assignments: Sequence[str]
) -> dict[str, float]:
    """Return seconds by stage, calibrated in a process of its own: this one stays small."""
    sets = [part for assignment in assignments for part in ("--set", assignment)]
    command = [*_HWNAS, "run", recipe, *sets, "--run", str(folder)]
    command += ["--dry-run", "--json", "--quiet"]
    output.note("finding out how long it will take here")
    done = subprocess.run(  # noqa: S603 - our own verb
        command, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        raise click.exceptions.Exit(done.returncode)  # it has said why
    return {stage["name"]: stage["seconds"] for stage in json.loads(done.stdout)["stages"]}


class _Overall:
    """Tells which stage begins and how long all that is left will take."""

    def __init__(self, output: Output, seconds: Mapping[str, float], due: Sequence[str]) -> None:
        self._output, self._seconds, self._left = output, seconds, list(due)

    def __call__(self, step: "Step") -> None:
        name = step.stage.name
        head = f"[{step.number}/{step.total}] {name}"
        if not step.due:
            self._output.note(f"{head}: skipped, {step.why}")
            return
        after = [other for other in self._left if other != name]
        left = sum(self._seconds.get(other, 0.0) for other in (name, *after))
        here = clock(self._seconds.get(name, 0.0))
        self._output.note(f"\n{head}: about {here}, {clock(left)} left in all ({step.why})")
        self._left = after


_HWNAS = (sys.executable, "-m", "hwnas")


def _launcher(output: Output) -> "Callable[[Command], None]":
    flags = ["--quiet"] if output.quiet else []

    def launch(command: "Command") -> None:
        output.note(f"$ {shlex.join(('hwnas', *command))}")
        child = subprocess.Popen(  # noqa: S603 - our own verbs
            [*_HWNAS, *command, *flags],
            env={**os.environ, **_environment(command)},
            # Results of stages are news here; the result of this verb is the summary at the end.
            stdout=sys.stderr if not output.quiet else subprocess.DEVNULL,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # noqa: PLW1509
            process_group=0,  # Ctrl-C reaches the stage once, through this process
        )
        code = _waited(child)
        if code:
            raise StageError(command[0], code if code > 0 else 128 - code)

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
    document: dict[str, Any] = {
        "run": str(folder),
        "seconds": round(seconds, 1),
        "report": str(folder / "report.html"),
        "models": models,
    }
    found = table(
        ["budget", "held-out", "measured", "size", "verdict", "model"], rows, right=(1, 2, 3)
    )
    output.result(
        document,
        f"\n{folder}: done in {clock(seconds)}\n\n{found}\n\nreport: {folder / 'report.html'}",
    )


def _verdict(model: Path) -> dict[str, Any]:
    """Return what `hwnas validate` found of a model when it was last examined.

    With the latency, if it measured one: that is what the verdict is about, not the one at export.
    """
    from hwnas.export.validate_types import VERDICT_SCHEMA
    from hwnas.io import read_json
    from hwnas.pipeline.deploying import VERDICT_FILE

    path = model.with_name(VERDICT_FILE)
    if not path.is_file():
        return {"verdict": "-"}
    found = read_json(path, VERDICT_SCHEMA)
    said: dict[str, Any] = {"verdict": str(found["state"])}
    latency = found["figures"].get("speed", {}).get("latency")
    return said | ({"latency_ms": latency["median_ms"]} if latency else {})
