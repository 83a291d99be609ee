"""`hwnas landmarks`: well-known networks, trained and measured as a run's subnets were."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, millions, table, verb_options
from hwnas.cli.progress import ProgressLine
from hwnas.cli.shared import FORCE, recipe_option, run_option, set_option
from hwnas.io.paths import typed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hwnas.pipeline.known_networks import Known
    from hwnas.pipeline.landmarks import Landmark
    from hwnas.profiling.jobs import Progress


@click.command()
@click.argument("networks", nargs=-1, metavar="[NETWORK]...")
@run_option()
@recipe_option("How to train and on what data,")
@set_option()
@FORCE
@click.option("--dry-run", is_flag=True, help="Show the networks and their costs; train nothing.")
@verb_options
def landmarks(
    output: Output,
    *,
    networks: tuple[str, ...],
    folder: Path | None,
    recipe: str | None,
    assignments: tuple[str, ...],
    force: bool,
    dry_run: bool,
) -> None:
    """Train and measure well-known networks as a run's subnets were, to compare with.

    NETWORK is a name of timm, with arguments where it needs some: resnet10t,
    vit_tiny_patch16_224:patch_size=4:depth=4. Without any: some that cost about as much as the
    run's subnets. Each is trained by the run's recipe on as many images, evaluated on the same
    held-out part, written as ONNX and measured on this device. `hwnas report` shows them. The
    same command goes on where it was interrupted and does only what is missing.
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.cli.train import stop_flag, training_watcher
    from hwnas.pipeline.finetuning import Watching
    from hwnas.pipeline.landmark_measuring import make_landmarks
    from hwnas.pipeline.landmark_training import plan_landmarks
    from hwnas.pipeline.rundir import find_run
    from hwnas.profiling.jobs import Options

    run = find_run(folder)
    with stop_flag() as stop:
        watching = Watching(note=output.note, watch=training_watcher(output, {}), stop=stop)
        planned = plan_landmarks(
            run, networks, recipe=recipe, assignments=assignments, watching=watching
        )
        if dry_run:
            _show_plan(output, run.folder, planned.networks)
            return
        found = make_landmarks(
            planned,
            options=Options(force=force),
            watching=watching,
            progress=_watcher(output),
        )
    _show(output, run.folder, found)


def _watcher(output: Output) -> "Callable[[Progress], None]":
    line = ProgressLine(output)

    def watch(progress: "Progress") -> None:
        record, name = progress.record, progress.record.arch["genes"]["network"]
        if record.failure is not None:
            line.note(f"failed ({record.failure.kind}): {name}: {record.failure.reason}")
        if record.latency is not None:
            line.show(
                f"{progress.done}/{progress.total}  {name}  {record.latency.median_ms:.3f} ms  "
                f"grade {record.grade}",
                last=progress.done == progress.total,
            )

    return watch


def _show_plan(output: Output, folder: Path, networks: "Sequence[Known]") -> None:
    rows = [[one.entry, millions(one.macs), millions(one.params)] for one in networks]
    document = {
        "run": str(folder),
        "networks": [
            {"network": one.entry, "macs": one.macs, "params": one.params} for one in networks
        ],
    }
    output.result(document, table(["network", "MACs", "parameters"], rows, right=(1, 2)))


def _show(output: Output, folder: Path, found: "Sequence[Landmark]") -> None:
    rows = [
        [one.name, f"{one.accuracy:.2%}", f"{one.latency:.3f} ms", one.grade or "-",
         millions(one.macs or 0.0), millions(one.params or 0.0)]
        for one in found
    ]  # fmt: skip
    header = ["network", "held-out", "latency", "grade", "MACs", "parameters"]
    document = {
        "run": str(folder),
        "landmarks": [
            {"network": one.name, "accuracy": one.accuracy, "latency_ms": one.latency,
             "grade": one.grade, "macs": one.macs, "params": one.params, "size_bytes": one.size,
             "device": one.device, "settings": dict(one.settings or {}),
             "precision": one.precision}
            for one in found
        ],
    }  # fmt: skip
    text = table(header, rows, right=(1, 2, 4, 5))
    output.result(document, f"{text}\n\nhwnas report {typed(folder)} shows them beside the front")
