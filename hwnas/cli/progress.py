"""One line on stderr that tells how far a long verb is; its own line now and then in a log."""

import sys
import time

import click

from hwnas.cli.output import Output

_LOG_SECONDS, _TERMINAL_SECONDS = 10.0, 0.2


class ProgressLine:
    """Shows lines, each over the one before on a terminal."""

    def __init__(self, output: Output) -> None:
        self._quiet = output.quiet
        self._terminal = sys.stderr.isatty()
        self._shown = 0.0
        self._open = False

    def show(self, line: str, *, last: bool = False) -> None:
        """Show a line unless the one before is too recent; the last one always."""
        pause = _TERMINAL_SECONDS if self._terminal else _LOG_SECONDS
        if self._quiet or not (last or time.monotonic() - self._shown > pause):
            return
        self._shown = time.monotonic()
        if self._terminal:
            click.echo(f"\r\x1b[2K{line}", err=True, nl=last)
            self._open = not last
        else:
            click.echo(line, err=True)

    def note(self, text: str) -> None:
        """Print a line that stays, unless --quiet."""
        if self._quiet:
            return
        click.echo(f"\r\x1b[2K{text}" if self._open else text, err=True)
        self._open = False


def clock(seconds: float) -> str:
    """Return a duration such as 3:07."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"
