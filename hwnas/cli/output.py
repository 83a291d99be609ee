"""What verbs print: results on stdout as text or JSON, notes on stderr."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import click

P = ParamSpec("P")
DEBUG = click.option("--debug", is_flag=True, help="Show the traceback of errors.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """Where a verb puts its result and its notes."""

    as_json: bool = False
    quiet: bool = False

    def result(self, document: Any, text: str) -> None:  # noqa: ANN401 - any JSON value
        """Print the result: `document` with --json, else `text`."""
        click.echo(json.dumps(document, indent=1, allow_nan=False) if self.as_json else text)

    def note(self, text: str) -> None:
        """Tell what is going on, unless --quiet."""
        if not self.quiet:
            click.echo(text, err=True)


def verb_options(command: Callable[Concatenate[Output, P], None]) -> Callable[P, None]:
    """Give a verb the options that all verbs have; it gets an `Output` first."""

    @click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
    @click.option("--quiet", is_flag=True, help="Print nothing but the result.")
    @DEBUG
    @wraps(command)
    def with_output(*arguments: P.args, **options: P.kwargs) -> None:
        options.pop("debug")
        output = Output(as_json=bool(options.pop("as_json")), quiet=bool(options.pop("quiet")))
        command(output, *arguments, **options)

    return with_output


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int]) -> str:
    """Return aligned text, one line per row; the columns `right` are aligned to the right."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def millions(value: float) -> str:
    """Return a count such as 189.79M."""
    return f"{value / 1e6:.2f}M"
