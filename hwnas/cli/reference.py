"""The reference of all commands as Markdown, from the commands themselves: docs/cli.md."""

import inspect
from collections.abc import Iterator

import click

from hwnas.cli.main import hwnas
from hwnas.cli.verbs import VERBS

COMMON = ("as_json", "quiet", "debug", "help")
_HEAD = """\
# Commands

Written by `python docs/make_cli.py` from the commands themselves; do not edit it by hand.

Every command has these options:

- `--json`: Print the result as JSON.
- `--quiet`: Print nothing but the result.
- `--debug`: Show the traceback of errors.
- `--help`: Show the help and exit.

Results go to standard output, everything else to standard error. Values have units: `25ms`, `60%`,
`5ms..20ms`, `200M`, `40MB`, `200/s`.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed; the message says why, and what to type next |
| 2 | the request makes no sense, or names what is not there |
| 3 | nothing can satisfy the request, or it is outside of what predictors know |
| 4 | something was examined and is not what was asked for |
| 5 | a measurement cannot be trusted, so there is no verdict |
| 70 | a mistake in hwnas; please report it |
| 130 | interrupted; the same command goes on from what is on disk |
"""


def commands() -> Iterator[tuple[str, click.Command]]:
    """Yield every command that can be run, with the words that are typed for it."""
    for verb in VERBS:
        command = hwnas.get_command(_root(), verb)
        assert command is not None
        yield from _below(f"hwnas {verb}", command)


def reference() -> str:
    """Return the reference."""
    parts = [_HEAD]
    for words, command in commands():
        parts.append(f"## {words}\n\n{_section(words, command)}")
    return "\n".join(parts)


def _root() -> click.Context:
    # With the settings of the program: commands remember how their help is asked for.
    return click.Context(hwnas, info_name="hwnas", **hwnas.context_settings)


def _below(words: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from _below(f"{words} {name}", inner)
    else:
        yield words, command


def _section(words: str, command: click.Command) -> str:
    context = click.Context(command, parent=_root())
    usage = " ".join([words, *command.collect_usage_pieces(context)])
    lines = [f"```\n{usage}\n```", "", _paragraphs(command.help or ""), ""]
    options = list(_options(command, context))
    return "\n".join([*lines, *options, ""] if options else lines)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1] and parameter.name not in COMMON:
            names, text = record
            yield f"- `{names}`: {' '.join(text.split())}"


def _paragraphs(text: str) -> str:
    blocks = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(" ".join(block.split()) for block in blocks)
