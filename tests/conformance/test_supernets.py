"""The supernet of every space, under every pick."""

from dataclasses import replace

import pytest

import hwnas
from hwnas.testing import SUPERNET_CHECKS, randomised_supernet

pytestmark = pytest.mark.slow

NARROW = ("dim", "hidden", "value", "heads", "mid", "cin", "cout", "features", "squeezed")


def _with_picks(pick: str):
    space = hwnas.space("nano", channels=1)
    return replace(space, picks={**space.picks, **dict.fromkeys(NARROW, pick)})


SPACES = {
    "nano": lambda: hwnas.space("nano"),
    "nano-grey-3-classes": lambda: hwnas.space("nano", channels=1, classes=3),
    "nano-no-scaling": lambda: hwnas.space("nano", scaling="none"),
    "nano-one-scaling": lambda: hwnas.space("nano", scaling="single"),
    "nano-bilateral": lambda: _with_picks("bilateral"),
    "nano-cyclic": lambda: _with_picks("cyclic"),
    "nano-centre": lambda: _with_picks("centre"),
    "nasvit": lambda: hwnas.space("nasvit"),
    "nasvit-paper": lambda: hwnas.space("nasvit-paper"),
    "alphanet": lambda: hwnas.space("alphanet"),
}
_built = {}


@pytest.mark.parametrize("check", SUPERNET_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SPACES)
def test_supernet(name: str, check) -> None:
    if name not in _built:
        _built[name] = randomised_supernet(SPACES[name]())
    check(_built[name])
