"""Every declared space, a table without networks, and one with conditional genes."""

import pytest

import hwnas
from hwnas.spaces import Requires, Space
from hwnas.testing import SPACE_CHECKS


def conditional() -> Space:
    """Per-layer choices that matter only where the layer exists, and a chain of conditions."""
    return Space(
        "conditional",
        genes={
            "depth": (1, 2, 3),
            "op2": ("conv", "skip"),
            "width2": (8, 16, 24),
            "op3": ("conv", "skip"),
            "width3": (8, 16),
        },
        requires={
            "op2": Requires("depth", (2, 3)),
            "width2": Requires("op2", ("conv",)),
            "op3": Requires("depth", (3,)),
            "width3": Requires("op3", ("conv",)),
        },
    )


SPACES = {
    "nasvit": lambda: hwnas.space("nasvit"),
    "nasvit-paper": lambda: hwnas.space("nasvit-paper"),
    "alphanet": lambda: hwnas.space("alphanet"),
    "nano": lambda: hwnas.space("nano"),
    "cell": lambda: Space("cell", genes={f"e{edge}": (0, 1, 2, 3, 4) for edge in range(6)}),
    "conditional": conditional,
}


@pytest.mark.parametrize("check", SPACE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SPACES)
def test_space(name: str, check) -> None:
    check(SPACES[name]())


def test_conditional_space_is_counted_by_hand() -> None:
    # depth 1: 1. depth 2: op2 conv x 3 widths + skip = 4. depth 3: 4 x (2 widths + skip) = 12.
    assert conditional().count() == 1 + 4 + 12
