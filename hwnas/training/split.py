"""Taking a part of labelled images aside: stratified, and the same for the same seed."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.training.draws import generator

Indices = NDArray[np.int64]


def split(
    labels: NDArray[np.int64],
    classes: Sequence[str],
    *,
    part: str,
    wanted: float,
    seed: int,
) -> tuple[Indices, Indices]:
    """Return the sorted indices of (rest, part); `wanted` below 1 is a share, else a count.

    Every class gives at least one image to the part and keeps at least one. `part` is "heldout"
    or "test": the name of the setting, and of the random stream.
    """
    counts = np.bincount(labels, minlength=len(classes))
    taken = _allocate(counts, classes, part=part, wanted=wanted)
    chosen = []
    for index, number in enumerate(taken):
        members = np.flatnonzero(labels == index)
        order = generator(seed, part, index).permutation(len(members))
        chosen.append(members[order[:number]])
    aside = np.sort(np.concatenate(chosen)).astype(np.int64)
    rest = np.setdiff1d(np.arange(len(labels), dtype=np.int64), aside, assume_unique=True)
    return rest, aside


def _fitting(wanted: float) -> float:
    """Return a share that is smaller than what was wanted, and usual."""
    return 0.2 if wanted >= 1 else min(0.2, round(wanted / 2, 3))


def _allocate(
    counts: NDArray[np.int64], classes: Sequence[str], *, part: str, wanted: float
) -> NDArray[np.int64]:
    """Return how many images each class gives: proportional, largest remainders first."""
    total = int(counts.sum())
    count = round(wanted * total) if wanted < 1 else int(wanted)
    for index, members in enumerate(counts):
        if members < 2:
            raise UsageError(
                f"class {classes[index]!r} has {members} image; {part} takes at least one of "
                "each class and leaves at least one",
                "add images to this class or remove it",
            )
    if count > total - len(classes):
        raise UsageError(
            f"data.{part} = {wanted:g} takes {count} of {total} images; "
            f"each of {len(classes)} classes must keep at least one for training",
            f"choose a smaller {part}: --set data.{part}={_fitting(wanted)}",
        )
    exact = counts * (count / total)
    taken = np.clip(np.floor(exact).astype(np.int64), 1, counts - 1)
    while taken.sum() > max(count, len(classes)):
        spare = np.where(taken > 1, taken - exact, -np.inf)
        taken[int(np.argmax(spare))] -= 1
    while taken.sum() < count:
        room = np.where(taken < counts - 1, exact - taken, -np.inf)
        taken[int(np.argmax(room))] += 1
    return np.asarray(taken, np.int64)
