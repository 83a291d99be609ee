"""Options that several verbs have, each declared once; a verb says only what differs for it."""

from pathlib import Path

import click

from hwnas.cli.values import Decorator, Parsed, options, paths

ONLY_RUN = "[default: this folder, or the only run in runs]"
ONLY_RUN_IF_ALONE = ONLY_RUN.replace("default", "default, if nothing else is named")
_PATH = click.Path(path_type=Path)
_FILE = click.Path(path_type=Path, dir_okay=False)


def run_option(says: str = "The run.", default: str = ONLY_RUN) -> Decorator:
    """Return --run, which a verb gets as `folder`."""
    return click.option("--run", "folder", type=_PATH, metavar="RUN", help=_both(says, default))


def new_run_option(default: str = "") -> Decorator:
    """Return --run of verbs that begin runs, which they get as `folder`; --out is the same."""
    return click.option("--run", "--out", "folder", type=_PATH, metavar="RUN",
                        help=_both("The run folder, new or to go on with.", default))  # fmt: skip


def recipe_option(says: str = "Where the data comes from,") -> Decorator:
    """Return --recipe, for runs that have none of their own."""
    return click.option("--recipe", metavar="RECIPE", help=f"{says} for a run of imported weights.")


def set_option(example: str = "optimiser.lr=0.001") -> Decorator:
    """Return --set, which a verb gets as `assignments`."""
    return click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE",
                        help=f"Override a value of the recipe, for example {example}.")  # fmt: skip


def out_folder_option(default: str, says: str = "Write here.") -> Decorator:
    """Return --out of verbs that write a folder."""
    return click.option("--out", type=_PATH, metavar="FOLDER",
                        help=_both(says, f"[default: {default}]"))  # fmt: skip


def out_file_option(says: str, default: str = "") -> Decorator:
    """Return --out of verbs that write a file; without a default it has to be given."""
    return click.option("-o", "--out", type=_FILE, metavar="FILE", required=not default,
                        help=_both(says, default and f"[default: {default}]"))  # fmt: skip


def seed_option(of: str = "architectures") -> Decorator:
    """Return --seed of what is drawn at random."""
    return click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
                        metavar="N", help=f"Equal seeds give equal {of}.")  # fmt: skip


def note_option(of: str) -> Decorator:
    """Return --note, which is kept in profiles."""
    return click.option("--note", default="", help=f"A remark for the first line of {of}.")


def space_options(says: str, of: str) -> Decorator:
    """Return --space, which a verb gets as `space_name`, with --classes and --channels."""
    return options(
        click.option("--space", "space_name", metavar="NAME", help=says),
        click.option("--classes", type=click.IntRange(min=1), metavar="N",
                     help=f"Classes of {of}."),
        click.option("--channels", type=click.IntRange(min=1), metavar="N",
                     help="Channels of the images."),
    )  # fmt: skip


def _both(says: str, default: str) -> str:
    return f"{says}  {default}" if default else says


FORCE = click.option("--force", is_flag=True, help="Measure on a busy machine; graded accordingly.")
WORKERS = click.option("--workers", type=click.IntRange(min=1), metavar="N",
                       help="Processes that measure accuracies.  [default: by cores or "
                            "GPUs]")  # fmt: skip
# Which architectures; `hwnas.cli.profile` and `hwnas.cli.pack` turn these into a source.
ARCHITECTURES = options(
    space_options("The space to take architectures from.", of="the networks"),
    click.option("-n", "number", type=click.IntRange(min=1), default=150, show_default=True,
                 metavar="N", help="How many architectures; they cover the range of MACs."),
    click.option("--few", type=click.IntRange(min=1), metavar="N",
                 help="As many architectures instead, spread over what the profiles of other "
                 "devices (--from) let expect."),
    click.option("--from", "old", type=Parsed(paths), default="", metavar="FILE,..",
                 help="Profiles of other devices."),
    click.option("--archs", type=click.Path(dir_okay=False), metavar="FILE",
                 help="The architectures of this file (JSON lines) instead."),
    seed_option(),
)  # fmt: skip
