"""The cut: which part of each shared tensor a plain block takes, and the way back.

Training, extraction and import all go through these functions.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor

from hwnas.errors import unknown_name
from hwnas.nets.mbconv import Axes
from hwnas.sharing.picks import PICKS, PRIVATE
from hwnas.spaces.blocks import Block

Where = tuple[slice | Tensor | None, ...]
FIXED_AXIS = "-"
# Axes that only ever make sense cropped around their middle.
DEFAULT_PICKS = {"kernel": "centre", "offset": "centre"}


def axes_of_tensor(axes: Axes, name: str, owner: str) -> tuple[str, ...]:
    """Return the axis names of the tensor `name`; every tensor must be named in the table."""
    for pattern, names in axes.items():
        if fnmatchcase(name, pattern):
            return names
    raise LookupError(f"{owner}: tensor {name!r} is not named in AXES")


def pick_of(axis: str, picks: Mapping[str, str]) -> str:
    """Return the name of the pick of an axis."""
    name = picks.get(axis, DEFAULT_PICKS.get(axis, "ordinal"))
    if name != PRIVATE and name not in PICKS:
        raise unknown_name("pick", name, [*PICKS, PRIVATE])
    return name


def full_size(axis: str, size: int, block: Block, picks: Mapping[str, str]) -> int:
    """Return the size this block needs of the shared axis."""
    return int(getattr(block, f"{axis}s")) if pick_of(axis, picks) == PRIVATE else size


def where_of(
    axes: Sequence[str],
    want: Sequence[int],
    full: Sequence[int],
    block: Block,
    picks: Mapping[str, str],
) -> Where:
    """Return the entries of each axis (None: all of them).

    Raises LookupError where a fixed axis is not what it was, or an axis has fewer than wanted.
    A private axis has one row per value; the block names its row in the field of that name and
    the number of rows in the plural field.
    """
    entries: list[slice | Tensor | None] = []
    for axis, size, of in zip(axes, want, full, strict=True):
        pick = pick_of(axis, picks)
        if pick == PRIVATE:
            row = int(getattr(block, axis))
            entries.append(slice(row, row + 1))
        elif size == of:
            entries.append(None)
        elif axis == FIXED_AXIS or size > of:
            raise LookupError(
                f"{type(block).__name__}: axis {axis!r} has {of} entries and {size} are wanted"
            )
        else:
            chosen = PICKS[pick](size, of)
            entries.append(chosen if isinstance(chosen, slice) else torch.tensor(chosen))
    return tuple(entries)


def is_view(where: Where) -> bool:
    """Return whether the cut shares memory with the full tensor."""
    return not any(isinstance(entries, Tensor) for entries in where)


def cut(full: Tensor, where: Where) -> Tensor:
    """Return the chosen entries: a view if all are slices, else a copy."""
    for axis, entries in enumerate(where):
        if isinstance(entries, slice):
            full = full.narrow(axis, entries.start, entries.stop - entries.start)
        elif entries is not None:
            full = full.index_select(axis, entries.to(full.device))
    return full


def add_back(full: Tensor, where: Where, part: Tensor) -> None:
    """Add `part` to the chosen entries of `full`: the transpose of `cut`."""
    full = cut(full, tuple(entries if isinstance(entries, slice) else None for entries in where))
    lists = [(axis, entries) for axis, entries in enumerate(where) if isinstance(entries, Tensor)]
    if not lists:
        full.add_(part)
    elif len(lists) == 1:
        axis, entries = lists[0]
        full.index_add_(axis, entries.to(full.device), part)
    else:
        index = [torch.arange(size, device=full.device) for size in part.shape]
        for axis, entries in lists:
            index[axis] = entries.to(full.device)
        full.index_put_(tuple(torch.meshgrid(*index, indexing="ij")), part, accumulate=True)
