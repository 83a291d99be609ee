"""`hwnas finetune`: train an extracted subnet further, or from scratch."""

from dataclasses import dataclass
from pathlib import Path

import click

from hwnas.cli.output import Output, verb_options
from hwnas.errors import UsageError


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
    """Train an extracted subnet further, or from scratch.

    SUBNET is its folder; or name it as for extract. Fine-tuning takes a fifth of the recipe's
    learning rate and a quarter of its epochs. The same command goes on with a training that was
    interrupted or killed.
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.cli.extract import report
    from hwnas.cli.train import stop_flag, training_watcher
    from hwnas.pipeline import finetuning

    chosen = _Choice(arch=arch, pick=pick, latency=latency)
    place = _place(subnet, folder, chosen, recipe)
    if teacher == "largest":
        run = finetuning.teacher_in(folder, place)
        teacher = str(_extracted(run, _Choice(arch="largest"), recipe))
    settings = finetuning.finetuning_recipe(
        place,
        recipe=recipe,
        from_scratch=from_scratch,
        teacher=teacher,
        assignments=[*([f"schedule.epochs={epochs}"] if epochs else []), *assignments],
    )
    out = out or finetuning.default_folder(place, from_scratch=from_scratch)
    watch = training_watcher(output, {})
    with stop_flag() as stop:
        watching = finetuning.Watching(note=output.note, watch=watch, stop=stop)
        done = finetuning.finetune(
            place, settings, out=out, from_scratch=from_scratch, watching=watching
        )
    if done is not None:
        report(output, done)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """A subnet of a run, as `hwnas extract` takes it."""

    arch: str | None = None
    pick: str | None = None
    latency: str | None = None

    def __bool__(self) -> bool:
        return bool(self.arch or self.pick or self.latency)


def _place(subnet: Path | None, folder: Path | None, chosen: _Choice, recipe: str | None) -> Path:
    """Return the folder of the subnet that is meant, extracted if need be."""
    if subnet is not None:
        if chosen:
            raise UsageError("a subnet is named, and one of a run, too", "leave out one")
        return subnet
    if folder is None and not chosen:
        raise UsageError(
            "no subnet is named",
            "hwnas finetune RUN/subnets/DIGEST, or --run RUN with --arch, --pick or --latency",
        )
    return _extracted(folder, chosen, recipe)


def _extracted(folder: Path | None, chosen: _Choice, recipe: str | None) -> Path:
    from hwnas.pipeline.extracting import extract, select
    from hwnas.pipeline.rundir import find_run

    run = find_run(folder)
    selection = select(run, arch=chosen.arch, pick=chosen.pick, latency=chosen.latency)
    return extract(run, selection, recipe=recipe).folder
