"""Types of options that several verbs share: comma lists, which click has not."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.errors import UsageError

if TYPE_CHECKING:  # before 8.4 click's types are not generic when they run
    AnyType = click.ParamType[Any]
    TextType = click.ParamType[str]
else:
    AnyType = TextType = click.ParamType

_MOST_SECONDS = 1e6  # systems cannot wait for much longer


class Parsed(AnyType):
    """The type of an option whose text a function of ours reads; mistakes name the option."""

    name = "text"

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def convert(
        self,
        value: str,
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Any:  # noqa: ANN401 - whatever the function makes of it
        """Return what the text says."""
        try:
            return self._parse(value)
        except UsageError as error:
            option = max(param.opts, key=len) if param else self.name
            raise UsageError(f"{option}: {error.message}", error.hint) from error


def _whole_numbers(text: str) -> tuple[int, ...]:
    """Return the numbers of an option such as `1,2,4`."""
    found = []
    for part in text.split(","):
        if not part.strip().isdecimal() or int(part) < 1:
            raise UsageError(f"{part.strip()!r}; accepted: whole numbers from 1, such as 1,2,4")
        found.append(int(part))
    return tuple(dict.fromkeys(found))


def _seconds(text: str) -> float:
    """Return the value of an option such as `--timeout 60`."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= _MOST_SECONDS:  # nor what is not a number
        raise UsageError(f"{text!r}; accepted: seconds, above 0 and up to {_MOST_SECONDS:g}")
    return value


def _names(text: str) -> tuple[str, ...]:
    """Return the names of an option such as `fp32,int8_dynamic`."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not all(found):
        raise UsageError(f"{text!r} has an empty name; accepted: such as a,b")
    return found


def paths(text: str) -> tuple[Path, ...]:
    """Return the files of an option such as `a.jsonl,b.jsonl`."""
    return tuple(map(Path, _names(text))) if text else ()


WHOLE_NUMBERS, SECONDS, NAMES = Parsed(_whole_numbers), Parsed(_seconds), Parsed(_names)

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def options(*decorators: Decorator) -> Decorator:
    """Return one decorator that gives a command several options, in this order."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return give


def together(into: str, make: Callable[..., object], *parts: str) -> Decorator:
    """Return a decorator that gives a command one value in place of these options."""

    def give(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def with_one(*arguments: object, **values: Any) -> None:  # noqa: ANN401
            made = make(**{part: values.pop(part) for part in parts})
            command(*arguments, **{into: made}, **values)

        return with_one

    return give
