"""The declared spaces. Each file holds declarations only, and no code elsewhere is for its sake."""

from collections.abc import Callable

from hwnas.spaces.catalog.alphanet import alphanet
from hwnas.spaces.catalog.nano import nano
from hwnas.spaces.catalog.nasvit import nasvit, nasvit_paper
from hwnas.spaces.space import Space

SPACES: dict[str, Callable[..., Space]] = {
    "alphanet": alphanet,
    "nano": nano,
    "nasvit": nasvit,
    "nasvit-paper": nasvit_paper,
}

__all__ = ["SPACES"]
