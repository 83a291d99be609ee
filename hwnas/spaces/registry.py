"""Which spaces there are: ours, those a program registers, and those of installed packages.

A file names a space and its options, and never code: what is imported for a name is what somebody
installed under it (docs/spaces.md).
"""

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from typing import Any, TypeVar

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.spaces.catalog import SPACES
from hwnas.spaces.space import Space

ENTRY_POINTS = "hwnas.spaces"
Declaration = TypeVar("Declaration", bound=Callable[..., Space])

_HINT = "hwnas space list; how to register your own: docs/spaces.md"
_registered: dict[str, Callable[..., Space]] = {}


def space(name: str, **options: Any) -> Space:  # noqa: ANN401 - each space declares its own
    """Return a declared space; options are its declaration's (classes, channels, scaling ...)."""
    if name not in SPACES and name not in _registered and name in _installed():
        _load(_installed()[name])
    declare = SPACES.get(name) or _registered.get(name)
    if declare is None:
        raise unknown_name("space", name, space_names(), hint=_HINT)
    accepted = _defaults(declare)
    for option in options:
        if option not in accepted:
            raise unknown_name(f"option of space {name}", option, accepted)
    for option in ("classes", "channels"):
        value = options.get(option, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UsageError(f"{option} = {value!r}; accepted: a whole number from 1")
    return declare(**options)


def space_names() -> list[str]:
    """Return the names of all spaces, ours first."""
    return list(dict.fromkeys([*SPACES, *_registered, *_installed()]))


def is_known(name: str) -> bool:
    """Return whether there is a space of this name."""
    return name in SPACES or name in _registered or name in _installed()


def register(declare: Declaration) -> Declaration:
    """Make the space that a function declares known in this process; return the function.

    The function takes options by keyword only, with defaults, and its space states their values:
    from them it is declared again when a file of it is read. Raises UsageError if that cannot be.
    """
    for option in signature(declare).parameters.values():
        if option.kind is not option.KEYWORD_ONLY or option.default is option.empty:
            raise UsageError(
                f"a declaration takes '{option}'; accepted: options by keyword only, with defaults",
                "def tiny(*, classes: int = 10, channels: int = 3) -> Space",
            )
    of, accepted = declare(), _defaults(declare)
    if of.name in SPACES:
        raise UsageError(f"there is a space {of.name!r} already", "give yours another name")
    if not of.parts:
        raise UsageError(
            f"space {of.name!r} describes no networks, so no file would be read with it",
            "search it as it is: hwnas.search.loop(space, ...)",
        )
    asked = {**accepted, "classes": 2, "channels": 1}
    if set(of.options) != set(accepted) or dict(declare(**asked).options) != asked:
        raise UsageError(
            f"space {of.name!r} states the options {dict(of.options)}, its function takes "
            f"{accepted}; accepted: the same, with the values that are given",
            'Space(..., options={"classes": classes, "channels": channels})',
        )
    _registered[of.name] = declare
    return declare


def _defaults(declare: Callable[..., Space]) -> dict[str, Any]:
    return {name: option.default for name, option in signature(declare).parameters.items()}


@cache
def _installed() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> None:
    try:
        register(point.load())
    except (ImportError, AttributeError) as error:
        raise HwnasError(
            f"space {point.name!r} of an installed package cannot be imported ({error})",
            f"its entry point is {point.value}; install the package again",
        ) from error
    if point.name not in _registered:
        raise UsageError(f"the entry point {point.name!r} declares a space of another name")
