"""Picks: pure functions from (wanted size, shared size) to entries of the shared axis.

A slice can be borrowed (the smaller tensor shares the memory of the full one); a list of entries
has to be copied.
"""

from collections.abc import Callable, Mapping

Entries = slice | tuple[int, ...]
Pick = Callable[[int, int], Entries]

CYCLIC_GROUPS = 10


def ordinal(want: int, size: int) -> Entries:
    """Return the first entries."""
    return slice(0, want)


def centre(want: int, size: int) -> Entries:
    """Return the middle entries: for kernels and tables of offsets."""
    start = (size - want) // 2
    return slice(start, start + want)


def bilateral(want: int, size: int) -> Entries:
    """Return the first half from the front and the rest from the back."""
    front = want // 2
    return (*range(front), *range(size - (want - front), size))


def cyclic(want: int, size: int) -> Entries:
    """Return a run that starts where the run of the next smaller width ends, wrapping around.

    Widths are multiples of a tenth of the axis (ViTAS, section 3.2), so that over all widths
    every channel is used about equally often.
    """
    rank = round(want * CYCLIC_GROUPS / size)
    start = round(size * (rank * (rank - 1) // 2 % CYCLIC_GROUPS) / CYCLIC_GROUPS)
    return tuple((start + entry) % size for entry in range(want))


# "private" is not here because it depends on the block, not on sizes: see `Shared`.
PICKS: Mapping[str, Pick] = {
    "ordinal": ordinal,
    "centre": centre,
    "bilateral": bilateral,
    "cyclic": cyclic,
}
PRIVATE = "private"
