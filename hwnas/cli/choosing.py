"""The options that say which subnet of a run is meant, and the folder of that subnet."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.values import options, together

if TYPE_CHECKING:
    from hwnas.cli.output import Output
    from hwnas.pipeline.sealing import Subnet


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """What was said of a subnet; nothing at all means what the search recommends."""

    arch: str | None = None
    pick: str | None = None
    latency: str | None = None

    def __bool__(self) -> bool:
        return bool(self.arch or self.pick or self.latency)


# Passed as `choice`.
SUBNET_CHOICE = options(
    click.option("--arch", metavar="FILE|DIGEST|NAME",
                 help="The architecture: a file, a digest, smallest, largest."),
    click.option("--pick", metavar="PICK",
                 help="Of the search's answer: recommended (default), knee, or a number in its "
                 "list."),
    click.option("--latency", metavar="BUDGET",
                 help="The budget whose answer is meant, such as 25ms."),
    together("choice", Choice, "arch", "pick", "latency"),
)  # fmt: skip


def extracted(
    folder: Path | None, choice: Choice, *, recipe: str | None, out: Path | None = None
) -> "Subnet":
    """Return the chosen subnet of a run, cut out now unless it is there already."""
    from hwnas.pipeline.extracting import extract, select
    from hwnas.pipeline.rundir import find_run

    run = find_run(folder)
    selection = select(run, arch=choice.arch, pick=choice.pick, latency=choice.latency)
    return extract(run, selection, recipe=recipe, out=out)


def extracted_folder(
    output: "Output", folder: Path | None, choice: Choice, *, recipe: str | None
) -> Path:
    """Return the folder of the chosen subnet, and tell which it is."""
    found = extracted(folder, choice, recipe=recipe)
    output.note(f"{found.folder}: {'extracted' if found.is_new else 'was there already'}")
    return found.folder
