"""`hwnas finetune`: train an extracted subnet further, or from scratch."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, verb_options
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.pipeline.sealing import Subnet


@click.command()
@click.argument("subnet", required=False, type=click.Path(path_type=Path), metavar="[SUBNET]")
@click.option("--run", "folder", type=click.Path(path_type=Path), metavar="RUN",
              help="Extract the subnet from this run first.")  # fmt: skip
@click.option("--arch", metavar="FILE|DIGEST|NAME", help="The architecture, as for extract.")
@click.option("--pick", metavar="PICK", help="Of the search's answer, as for extract.")
@click.option("--latency", metavar="BUDGET", help="The budget, as for extract.")
@click.option("--from-scratch", is_flag=True, help="Train new weights, as long as the supernet.")
@click.option("--epochs", type=click.IntRange(min=1), help="The same as --set schedule.epochs=N.")
@click.option("--teacher", metavar="NAME",
              help="Learn from it: largest (of the supernet), a timm model, name@checkpoint, or "
                   "the folder of a subnet.")  # fmt: skip
@click.option("--recipe", metavar="RECIPE",
              help="Another recipe than the supernet's.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE",
              help="Override a value of the recipe, for example optimiser.lr=0.001.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Write here.  [default: SUBNET-finetuned or SUBNET-scratch]")  # fmt: skip
@verb_options
def finetune(
    output: Output,
    *,
    subnet: Path | None,
    folder: Path | None,
    arch: str | None,
    pick: str | None,
    latency: str | None,
    from_scratch: bool,
    epochs: int | None,
    teacher: str | None,
    recipe: str | None,
    assignments: tuple[str, ...],
    out: Path | None,
) -> None:
    """Train the subnet in the folder SUBNET further, by its supernet's recipe.

    Fine-tuning takes a fifth of the recipe's learning rate and a quarter of its epochs. The same
    command goes on with a training that was interrupted or killed.
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.cli.extract import report
    from hwnas.cli.train import stop_flag, training_watcher
    from hwnas.pipeline import finetuning

    if subnet is None:
        if folder is None and not (arch or pick or latency):
            raise UsageError(
                "no subnet is named",
                "hwnas finetune RUN/subnets/DIGEST, or --run RUN with --arch, --pick or --latency",
            )
        subnet = _extracted(folder, arch=arch, pick=pick, latency=latency, recipe=recipe).folder
    elif arch or pick or latency:
        raise UsageError("a subnet is named, and one of a run, too", "leave out one")
    if teacher == "largest":
        run = finetuning.teacher_in(folder, subnet)
        teacher = str(
            _extracted(run, arch="largest", pick=None, latency=None, recipe=recipe).folder
        )
    settings = finetuning.finetuning_recipe(
        subnet,
        recipe=recipe,
        from_scratch=from_scratch,
        teacher=teacher,
        assignments=[*([f"schedule.epochs={epochs}"] if epochs else []), *assignments],
    )
    with stop_flag() as stop:
        done = finetuning.finetune(
            subnet,
            settings,
            out=out or finetuning.default_folder(subnet, from_scratch=from_scratch),
            from_scratch=from_scratch,
            watching=finetuning.Watching(
                note=output.note, watch=training_watcher(output, {}), stop=stop
            ),
        )
    if done is not None:
        report(output, done)


def _extracted(
    folder: Path | None, *, arch: str | None, pick: str | None, latency: str | None,
    recipe: str | None,
) -> "Subnet":  # fmt: skip
    from hwnas.pipeline.extracting import extract, select
    from hwnas.pipeline.rundir import find_run

    run = find_run(folder)
    return extract(run, select(run, arch=arch, pick=pick, latency=latency), recipe=recipe)
