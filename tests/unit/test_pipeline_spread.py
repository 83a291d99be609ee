"""Architectures whose accuracy is measured: both ends, spread over the costs, by the seed."""

import numpy as np
import pytest

import hwnas
from hwnas.errors import UsageError
from hwnas.pipeline.accuracies import spread
from hwnas.spaces import Space


@pytest.mark.parametrize("name", ["nano", "nasvit"])
def test_both_ends_and_all_between(name: str) -> None:
    space = hwnas.space(name)
    archs = spread(space, 60, seed=0)
    assert archs[:2] == [space.smallest(), space.largest()]
    assert len(set(archs)) == 60
    macs = space.cost(archs).macs
    fifths, _ = np.histogram(macs, bins=5, range=(macs.min(), macs.max()))
    assert fifths.min() >= 4


def test_longer_lists_begin_with_shorter_ones() -> None:
    space = hwnas.space("nano")
    long = spread(space, 150, seed=4)
    assert long[:30] == spread(space, 30, seed=4)
    assert long[2:30] != spread(space, 30, seed=5)[2:]
    assert spread(space, 1, seed=4) == [space.smallest()]


def test_small_spaces_are_used_up_exactly() -> None:
    space = Space("table", genes={"a": (0, 1, 2), "b": (0, 1)})
    assert len(set(spread(space, 6, seed=0))) == 6
    with pytest.raises(UsageError, match="7 architectures asked for, table has only 6"):
        spread(space, 7, seed=0)
