"""`hwnas extract`: a subnet on its own, with a card that says what it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, millions, verb_options
from hwnas.cli.show_text import estimates

if TYPE_CHECKING:
    from hwnas.pipeline.sealing import Subnet
    from hwnas.supernet import Card


@click.command()
@click.option("--run", "folder", type=click.Path(path_type=Path), metavar="RUN",
              help="The run folder.  [default: this folder, or the only run in runs]")  # fmt: skip
@click.option("--arch", metavar="FILE|DIGEST|NAME",
              help="The architecture: a file, a digest, smallest, largest.")  # fmt: skip
@click.option("--pick", metavar="PICK",
              help="Of the search's answer: recommended (default), knee, or a number in its "
                   "list.")  # fmt: skip
@click.option("--latency", metavar="BUDGET",
              help="The budget whose answer is meant, such as 25ms.")  # fmt: skip
@click.option("--recipe", metavar="RECIPE",
              help="Where the data comes from, for a run of imported weights.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER",
              help="Write here.  [default: RUN/subnets/DIGEST]")  # fmt: skip
@verb_options
def extract(
    output: Output,
    *,
    folder: Path | None,
    arch: str | None,
    pick: str | None,
    latency: str | None,
    recipe: str | None,
    out: Path | None,
) -> None:
    """Cut a subnet out of a run's supernet, calibrated, measured and proved.

    What is proved is that it gives the supernet's logits. It is an ordinary module:
    hwnas.supernet.load_subnet(FOLDER).
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.pipeline import extracting
    from hwnas.pipeline.rundir import find_run

    run = find_run(folder)
    selection = extracting.select(run, arch=arch, pick=pick, latency=latency)
    report(output, extracting.extract(run, selection, recipe=recipe, out=out))


def report(output: Output, subnet: "Subnet") -> None:
    """Print what a subnet's card says."""
    card = subnet.card
    document = {"subnet": str(subnet.folder), "is_new": subnet.is_new, **card.to_json()}
    costs = f"{millions(card.costs['macs'])} MACs, {card.costs['params']:,} parameters"
    was_there = "" if subnet.is_new else " (was there already)"
    lines = [
        f"{subnet.folder}: subnet {card.digest[:12]} of {card.space}, {costs}{was_there}",
        *(f"  {line}" for line in _statements(card)),
        f'  load it: hwnas.supernet.load_subnet("{subnet.folder}")',
    ]
    output.result(document, "\n".join(lines))


def _statements(card: "Card") -> list[str]:
    proof = card.proof
    equal = (
        "equal bit for bit" if proof.equal_bits else f"equal within {proof.difference:.1g} of the"
        " largest"
    )  # fmt: skip
    images = (
        f"{proof.images} images of noise (no data at hand)"
        if proof.part == "noise"
        else f"{proof.images} images of the held-out part"
    )
    lines = [
        _accuracy(card),
        _calibration(card),
        f"proof: logits are {equal} to the supernet's on {images}",
    ]
    if card.training is not None:
        before = card.training.get("accuracy_before")
        was = "" if before is None else f", before: {before:.2%}"
        lines.append(f"{card.training['how']}, {card.training['epochs']} epochs{was}")
    if card.promised is not None:
        lines.append(f"promised: {_promised(card.promised)}")
    return lines


def _accuracy(card: "Card") -> str:
    if card.accuracy is None:
        return "accuracy: not measured, for want of data (--recipe names some)"
    return (
        f"accuracy on the held-out part: {card.accuracy.value:.2%} ({card.accuracy.images} images)"
    )


def _calibration(card: "Card") -> str:
    how = card.calibration.how
    if how == "training images":
        return f"batch norms: calibrated on {card.calibration.images} training images"
    if how == "not needed":
        return "batch norms: none"
    return "batch norms: statistics stored in the supernet, not calibrated for this subnet"


def _promised(promised: Any) -> str:  # noqa: ANN401 - a JSON object
    budget = f", for {promised['budget']}" if promised["budget"] else ""
    return estimates(promised["predicted"]) + budget
