"""A space of one architecture: what trains supernets then trains this architecture alone."""

from hwnas.errors import UsageError
from hwnas.spaces.arch import Arch
from hwnas.spaces.space import Space


def restricted(space: Space, arch: Arch) -> Space:
    """Return the space that has `arch` and nothing else, under the same name.

    Its architecture is equal to `arch`, and so are the network and its digest.
    """
    if arch.space != space.name:
        raise UsageError(f"architecture is of space {arch.space!r}, expected {space.name!r}")
    return Space(
        space.name,
        genes={gene: (value,) for gene, value in arch.items()},
        parts=space.parts,
        side=space.side,
        picks=space.picks,
        options=space.options,
        title=space.title,
    )
