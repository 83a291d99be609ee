"""The declared spaces. Each file holds declarations only, and no code elsewhere is for its sake."""

from collections.abc import Callable
from typing import Any

from hwnas.errors import UsageError, unknown_name
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


def space(name: str, **options: Any) -> Space:  # noqa: ANN401 - each space declares its own
    """Return a declared space; options are its declaration's (classes, channels, scaling ...)."""
    if name not in SPACES:
        raise unknown_name("space", name, SPACES, hint="hwnas space list")
    accepted = SPACES[name].__kwdefaults__ or {}
    for option in options:
        if option not in accepted:
            raise unknown_name(f"option of space {name}", option, accepted)
    for option in ("classes", "channels"):
        value = options.get(option, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{option} = {value!r}; accepted: a whole number from 1")
    return SPACES[name](**options)


__all__ = ["SPACES", "space"]
