"""The option of verbs whose work other machines can do."""

import click

from hwnas.cli.verbs import require

RAY = click.option(
    "--ray", "ray", metavar="ADDRESS",
    help="Let the machines of this Ray cluster do it; auto: the one that runs here, local: one "
         "begun for this.",
)  # fmt: skip


def require_ray(verb: str, address: str | None) -> None:
    """Raise MissingPackageError if a cluster is named and Ray is not installed."""
    if address is not None:
        require(f"{verb} --ray", ("ray",))
