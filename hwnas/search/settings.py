"""Deployment settings as genes, so that the answer of a search may be "this subnet, 1 thread".

Threads, batch, precision and backend do not change the network, only what it costs to run: they
are added to a space as genes that no part of the network reads.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hwnas.errors import UsageError
from hwnas.spaces import Arch, Space
from hwnas.spaces.arch import Value

PREFIX = "run."


def with_settings(space: Space, settings: Mapping[str, Sequence[Value]]) -> Space:
    """Return the space with one more gene per setting, named `run.<setting>`."""
    for name, values in settings.items():
        if not values:
            raise UsageError(f"setting {name!r} has no values to choose from")
    genes = {PREFIX + name: tuple(values) for name, values in settings.items()}
    return replace(space, genes={**space.genes, **genes})


def split_settings(space: Space, arch: Arch) -> tuple[Arch, dict[str, Value]]:
    """Return (architecture of the space without settings, settings) of `arch`."""
    settings = {
        gene.removeprefix(PREFIX): value for gene, value in arch.items() if gene.startswith(PREFIX)
    }
    return space.arch({gene: arch[gene] for gene in space.genes}), settings
