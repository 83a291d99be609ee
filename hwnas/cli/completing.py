"""What shells ask for when Tab is pressed: verbs, options, spaces, recipes, run folders.

Values are told by what a parameter is called in the help: RUN is a run folder everywhere. Nothing
heavy is imported; whatever goes wrong, the answer is that there is nothing to complete.
"""

import os
from collections.abc import Callable, Iterable
from copy import copy
from pathlib import Path
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

from hwnas.cli.main import COMPLETE_VARIABLE, LazyGroup
from hwnas.cli.values import TextType
from hwnas.cli.verbs import VERBS
from hwnas.errors import EXIT_OK, HwnasError

PROGRAM = "hwnas"
SHELLS = ("bash", "zsh", "fish")
_SUFFIX = ".toml"
# What click's scripts lack: fish cut descriptions at their first comma, and zsh has no compdef
# where nothing has loaded its completions yet.
_MENDED = {
    "fish": (('string split ","', 'string split --max 1 ","'),),
    "zsh": (("#compdef hwnas\n",
             "#compdef hwnas\n"
             "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"),),
}  # fmt: skip

Items: TypeAlias = "list[CompletionItem[str]]"


def script(shell: str) -> str:
    """Return what a shell has to read so that it asks hwnas for completions."""
    kind = get_completion_class(shell)
    assert kind is not None
    source = kind(click.Group(PROGRAM), {}, PROGRAM, COMPLETE_VARIABLE).source()
    for before, after in _MENDED.get(shell, ()):
        source = source.replace(before, after, 1)
    return source


def complete(group: click.Group, instruction: str) -> int:
    """Answer a shell; `instruction` is the value of the variable that its script sets."""
    asked = Completing(name=PROGRAM, params=group.params, context_settings=group.context_settings)
    try:
        return shell_complete(asked, {}, PROGRAM, COMPLETE_VARIABLE, instruction)
    except (HwnasError, OSError):  # an unknown verb, or one whose packages are missing
        return EXIT_OK


class Completing(LazyGroup):
    """The verbs, with parameters that know their values. Imports the verb that is typed only."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of a verb."""
        command = super().get_command(ctx, cmd_name)
        return None if command is None else _taught(command, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> Items:
        """Return the verbs and options that begin so."""
        verbs = [
            CompletionItem(name, help=verb.help)
            for name, verb in VERBS.items()
            if name.startswith(incomplete)
        ]
        return verbs + click.Command.shell_complete(self, ctx, incomplete)


class Known(TextType):
    """A parameter whose values can be listed."""

    name = "text"

    def __init__(self, values: Callable[[str], Items]) -> None:
        self._values = values

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> Items:  # fmt: skip
        """Return the values that begin so."""
        return self._values(incomplete)


def spaces(incomplete: str) -> Items:
    """Return the declared spaces."""
    from hwnas.spaces import space_names

    return _beginning(space_names(), incomplete)


def recipes(incomplete: str) -> Items:
    """Return the shipped recipes, and recipe files here."""
    from hwnas.pipeline.shipped import recipe_names

    files = [path for path in _paths(incomplete) if path.endswith(_SUFFIX)]
    found = _beginning([*recipe_names(), *files], incomplete)
    return found or [CompletionItem(incomplete, type="file")]


def runs(incomplete: str) -> Items:
    """Return the run folders here, in runs/, and in the folder that is being typed."""
    from hwnas.pipeline.rundir import RUN_FILE

    candidates = [*_paths(incomplete), *(_paths("runs/") if not incomplete else [])]
    # Unlike Path.is_file before Python 3.14, this is False for what may not be read.
    there = [path for path in candidates if os.path.isfile(Path(path) / RUN_FILE)]
    return _beginning(there, incomplete) or [CompletionItem(incomplete, type="dir")]


def _taught(command: click.Command, verb: str) -> click.Command:
    """Return a copy that knows values: commands live on, and parse what is typed later."""
    taught = copy(command)
    taught.params = [copy(parameter) for parameter in command.params]
    for parameter in taught.params:
        values = _values_of(parameter, verb)
        if values is not None:
            parameter.type = Known(values)
    if isinstance(taught, click.Group):
        taught.commands = {name: _taught(below, verb) for name, below in taught.commands.items()}
    return taught


def _values_of(parameter: click.Parameter, verb: str) -> Callable[[str], Items] | None:
    metavar = (parameter.metavar or parameter.name or "").upper().strip("[]")
    if "--space" in parameter.opts or (verb, metavar) == ("space", "NAME"):
        return spaces
    if metavar == "RECIPE" or (verb, metavar) == ("init", "NAME"):
        return recipes
    if metavar.split("|")[0] in ("RUN", "RUN_A", "RUN_B"):
        return runs
    return None


def _paths(incomplete: str) -> list[str]:
    """Return the paths that begin so, spelled as they are typed."""
    folder, slash, _ = incomplete.rpartition("/")
    try:
        names = sorted(entry.name for entry in Path(folder + slash or ".").iterdir())
    except OSError:
        return []
    return [folder + slash + name for name in names if not name.startswith(".")]


def _beginning(names: Iterable[str], incomplete: str) -> Items:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
