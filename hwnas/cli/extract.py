"""`hwnas extract`: a subnet on its own, with a card that says what it is."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.choosing import SUBNET_CHOICE, Choice, extracted
from hwnas.cli.output import Output, millions, verb_options
from hwnas.cli.shared import out_folder_option, recipe_option, run_option
from hwnas.cli.show_text import estimates

if TYPE_CHECKING:
    from hwnas.pipeline.sealing import Subnet
    from hwnas.supernet import Card


@click.command()
@run_option()
@SUBNET_CHOICE
@recipe_option()
@out_folder_option("RUN/subnets/DIGEST")
@verb_options
def extract(
    output: Output,
    *,
    folder: Path | None,
    choice: Choice,
    recipe: str | None,
    out: Path | None,
) -> None:
    """Cut a subnet out of a run's supernet, calibrated, measured and proved.

    What is proved is that it gives the supernet's logits. It is an ordinary module:
    hwnas.supernet.load_subnet(FOLDER).
    """
    from hwnas.training.process import tune_process

    tune_process()
    report(output, extracted(folder, choice, recipe=recipe, out=out))


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
