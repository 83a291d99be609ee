"""Types of options that several verbs share: comma lists, which click has not."""

from collections.abc import Callable
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


def _paths(text: str) -> tuple[Path, ...]:
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


# Which architectures; `hwnas.cli.profile` and `hwnas.cli.pack` turn these into a source.
ARCHITECTURES = options(
    click.option("--space", "space_name", metavar="NAME",
                 help="The space to take architectures from."),
    click.option("-n", "number", type=click.IntRange(min=1), default=150, show_default=True,
                 help="How many architectures; they cover the range of MACs."),
    click.option("--few", type=click.IntRange(min=1), metavar="N",
                 help="As many architectures instead, spread over what the profiles of other "
                 "devices (--from) let expect."),
    click.option("--from", "old", type=Parsed(_paths), default="", metavar="FILE,..",
                 help="Profiles of other devices."),
    click.option("--archs", type=click.Path(dir_okay=False), metavar="FILE",
                 help="The architectures of this file (JSON lines) instead."),
    click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True,
                 help="Equal seeds give equal architectures."),
    click.option("--classes", type=click.IntRange(min=1), help="Classes of the networks."),
    click.option("--channels", type=click.IntRange(min=1), help="Channels of the images."),
)  # fmt: skip
