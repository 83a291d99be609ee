"""`hwnas finetune`: train an extracted subnet further, or from scratch."""

from pathlib import Path

import click

from hwnas.cli.choosing import SUBNET_CHOICE, Choice, extracted_folder
from hwnas.cli.output import Output, verb_options
from hwnas.cli.shared import out_folder_option, run_option, set_option
from hwnas.errors import UsageError


@click.command()
@click.argument("subnet", required=False, type=click.Path(path_type=Path), metavar="[SUBNET]")
@run_option(
    "Extract the subnet from this run first.",
    "[default, with --arch, --pick or --latency: this folder, or the only run in runs]",
)
@SUBNET_CHOICE
@click.option("--from-scratch", is_flag=True, help="Train new weights, as long as the supernet.")
@click.option(
    "--epochs", type=click.IntRange(min=1), metavar="N", help="The same as --set schedule.epochs=N."
)
@click.option("--teacher", metavar="NAME",
              help="Learn from it: largest (of the supernet), a timm model, name@checkpoint, or "
                   "the folder of a subnet.")  # fmt: skip
@click.option("--recipe", metavar="RECIPE",
              help="Another recipe than the supernet's.")  # fmt: skip
@set_option()
@out_folder_option("SUBNET-finetuned or SUBNET-scratch")
@verb_options
def finetune(
    output: Output,
    *,
    subnet: Path | None,
    folder: Path | None,
    choice: Choice,
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

    place = _place(output, subnet, folder, choice, recipe=recipe)
    if teacher == "largest":
        run = finetuning.teacher_in(folder, place)
        teacher = str(extracted_folder(output, run, Choice(arch="largest"), recipe=recipe))
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


def _place(
    output: Output, subnet: Path | None, folder: Path | None, choice: Choice, *, recipe: str | None
) -> Path:
    """Return the folder of the subnet that is meant, extracted if need be."""
    if subnet is not None:
        if choice:
            raise UsageError("a subnet is named, and one of a run, too", "leave out one")
        return subnet
    if folder is None and not choice:
        raise UsageError(
            "no subnet is named",
            "hwnas finetune RUN/subnets/DIGEST, or --run RUN with --arch, --pick or --latency",
        )
    return extracted_folder(output, folder, choice, recipe=recipe)
