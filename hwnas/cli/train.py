"""`hwnas train` and `hwnas init`: supernet training from a recipe."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, verb_options
from hwnas.cli.shared import new_run_option, set_option
from hwnas.errors import UsageError
from hwnas.io.paths import typed

if TYPE_CHECKING:
    from hwnas.training.loop import Progress

_REPORT_SECONDS = 10.0


@click.command(short_help="Train a supernet by RECIPE.")
@click.argument("recipe", required=False, metavar="[RECIPE]")
@new_run_option()
@set_option()
@click.option("--init", "start", metavar="RUN|FILE",
              help="Start from the weights of a run or of a released checkpoint.")  # fmt: skip
@click.option("--resume/--no-resume", default=True, show_default=True,
              help="Go on where an earlier session of the run stopped.")  # fmt: skip
@verb_options
def train(
    output: Output,
    *,
    recipe: str | None,
    folder: Path | None,
    assignments: tuple[str, ...],
    start: str | None,
    resume: bool,
) -> None:
    """Train a supernet by RECIPE: a TOML file or a shipped name (see `hwnas init --list`).

    The same command goes on with a run that was interrupted or killed. On several GPUs or
    processes: torchrun --nproc-per-node N -m hwnas train RECIPE --out RUN
    (torchrun takes --run for an option of its own).
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.pipeline.config import read_recipe
    from hwnas.pipeline.origins import CONFIG_FILE
    from hwnas.pipeline.training_run import EVENTS_FILE, train_run

    source, folder = _source_and_folder(recipe, folder, CONFIG_FILE)
    if recipe is None and start is None:
        start = _start_of(folder)
    if not resume and folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} is not empty", "leave out --no-resume, or choose another --run")
    settings = read_recipe(source, assignments)
    last: dict[str, float] = {}
    with stop_flag() as stop:
        run = train_run(
            folder,
            settings,
            start=start,
            note=output.note,
            watch=training_watcher(output, last),
            stop=stop,
        )
    if run is None:
        return
    accuracy = last or _last_accuracy(folder / EVENTS_FILE)
    text = ", ".join(f"{name} {value:.2%}" for name, value in accuracy.items())
    output.result(
        {"run": str(run.folder), "status": run.status, "accuracy": accuracy},
        f"{run.folder}: trained; accuracy on the held-out part: {text}",
    )


def _source_and_folder(recipe: str | None, folder: Path | None, config: str) -> tuple[str, Path]:
    if recipe is None:
        if folder is None or not (folder / config).is_file():
            raise UsageError(
                "no recipe is given",
                "hwnas train own-images --set data.path=FOLDER; hwnas init --list: others",
            )
        return str(folder / config), folder
    return recipe, folder or Path("runs") / Path(recipe).stem


def _start_of(folder: Path) -> str | None:
    """Return where the weights of the run in a folder came from, if it was so begun."""
    from hwnas.pipeline.rundir import RUN_FILE, open_run

    if not (folder / RUN_FILE).is_file():
        return None
    return open_run(folder).origin.get("start") or None


def _last_accuracy(events: Path) -> dict[str, float]:
    from hwnas.io import read_journal

    found = [event["accuracy"] for event in read_journal(events) if event["kind"] == "evaluation"]
    return dict(found[-1]) if found else {}


@contextmanager
def stop_flag() -> Iterator[Callable[[], bool]]:
    """Let the first interrupt end training after the present step; a second one ends it now."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def training_watcher(output: Output, last: dict[str, float]) -> "Callable[[Progress], None]":
    """Return what shows the progress of a training and keeps the last accuracies in `last`."""
    on_terminal = sys.stderr.isatty()
    shown = [0.0]

    def watch(progress: "Progress") -> None:
        if progress.accuracy:
            last.clear()
            last.update(progress.accuracy)
        due = time.monotonic() - shown[0] > (0.5 if on_terminal else _REPORT_SECONDS)
        if output.quiet or not (due or progress.accuracy or progress.step == progress.steps):
            return
        shown[0] = time.monotonic()
        line = _line(progress)
        if on_terminal:
            click.echo(f"\r\x1b[2K{line}", err=True, nl=bool(progress.accuracy))
        else:
            click.echo(line, err=True)

    return watch


def _line(progress: "Progress") -> str:
    minutes, seconds = divmod(round(progress.seconds_left), 60)
    parts = [
        f"epoch {progress.epoch + 1}/{progress.epochs:g}",
        f"step {progress.step}/{progress.steps}",
        " ".join(f"{role} {loss:.3f}" for role, loss in progress.losses.items()),
        f"{progress.images_per_second:.0f} images/s",
        f"{minutes}:{seconds:02d} left",
    ]
    parts += [f"{name} {value:.2%}" for name, value in progress.accuracy.items()]
    return "  ".join(parts)


@click.command()
@click.argument("name", default="nano-fashion", metavar="[NAME]")
@click.option("--list", "lists", is_flag=True, help="List the shipped recipes.")
@click.option("--out", type=click.Path(path_type=Path), help="The file to write.")
@verb_options
def init(output: Output, name: str, lists: bool, out: Path | None) -> None:
    """Write the shipped recipe NAME, commented, to start one's own from."""
    from hwnas.io import write_atomic
    from hwnas.pipeline.config import recipe_names, recipe_text

    if lists:
        said = {known: _first_sentence(recipe_text(known)) for known in recipe_names()}
        width = max(map(len, said))
        lines = [f"{known.ljust(width)}  {what}" for known, what in said.items()]
        output.result(recipe_names(), "\n".join(lines))
        return
    if name.endswith(".toml") and out is None:
        raise UsageError(
            f"{name}: a file is named with --out, a recipe by its name",
            f"hwnas init own-images --out {typed(Path(name))}; hwnas init --list shows the recipes",
        )
    text = recipe_text(name)
    if out is None:
        output.result({"recipe": name, "text": text}, text.rstrip("\n"))
        return
    if out.is_dir():
        raise UsageError(f"{out} is a folder", f"--out {typed(out / f'{name}.toml')}")
    if out.exists():
        raise UsageError(
            f"{out} exists", f"go on with it: hwnas run {typed(out)}; or another --out"
        )
    write_atomic(out, text)
    output.result(
        {"recipe": name, "file": str(out)},
        f"{out}: written; hwnas run {typed(out)} does all of it, hwnas train {typed(out)} only "
        "trains",
    )


def _first_sentence(recipe: str) -> str:
    """Return the first line of the comment that a recipe begins with."""
    return recipe.partition("\n")[0].removeprefix("#").strip().rstrip(".:")
