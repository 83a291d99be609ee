"""The entry point: finds the verb, runs it, and turns every outcome into text and an exit code."""

import errno
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import TextIO

import click

from hwnas import __version__
from hwnas.cli.output import DEBUG
from hwnas.cli.verbs import VERBS, require
from hwnas.errors import (
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_OK,
    HwnasError,
    UsageError,
    memory_shortage,
    unknown_name,
)

# Set by the shell's completion script, see `hwnas completion`.
COMPLETE_VARIABLE = "_HWNAS_COMPLETE"
# Names too long, no right to read or write, full or locked disks: not our mistakes.
_REFUSALS = {
    errno.ENAMETOOLONG, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT, errno.EROFS,
    errno.ELOOP, errno.ENOTDIR,
}  # fmt: skip
_LONGEST_NAME = 60
EXIT_PIPE_CLOSED = 141  # what a shell reports for a program that SIGPIPE ended


class LazyGroup(click.Group):
    """A group whose commands are imported when they are run, not when they are listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of a verb."""
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        require(cmd_name, verb.needs)
        module, _, name = verb.target.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb's command and what is left of the arguments."""
        if args[0] not in VERBS:
            raise unknown_name("command", args[0], VERBS, hint="hwnas --help")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the verbs from the table, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])


@click.group(
    cls=LazyGroup,
    help="Search, cut out and deploy vision networks for your hardware.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@DEBUG
@click.version_option(__version__, prog_name="hwnas")
def hwnas(debug: bool) -> None:
    """Hold the verbs. `main` reads --debug itself, since errors occur before options are parsed."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if COMPLETE_VARIABLE in os.environ:
        from hwnas.cli.completing import complete

        return complete(hwnas, os.environ[COMPLETE_VARIABLE])
    _open_closed_streams()
    before, warnings.showwarning = warnings.showwarning, _show_warning
    if isinstance(sys.stdout, TextIOWrapper):  # names that its encoding has not, files' for example
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with _terminated_is_interrupted():
            code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more when it exits; that must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    finally:
        warnings.showwarning = before
    return code


def _open_closed_streams() -> None:
    """Let output that nobody wants (>&-) go nowhere, before files are given its number."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - to the end


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM end every verb as Ctrl-C does: explained, and with nothing left running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: list[str]) -> int:
    debug = "--debug" in arguments
    try:
        with hwnas.make_context("hwnas", arguments) as context:
            hwnas.invoke(context)
    except click.exceptions.Exit as request:
        return request.exit_code
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return UsageError.exit_code
    except (HwnasError, click.ClickException) as error:
        return _explain(error, debug=debug)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary: whatever else happens is our mistake
        return _unexpected(error, debug=debug)
    return EXIT_OK


def _interrupted() -> int:
    _say("interrupted; the same command goes on from what is on disk", "")
    return EXIT_INTERRUPTED


def _was_interrupted(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _unexpected(error: Exception, *, debug: bool) -> int:
    if _was_interrupted(error):  # some libraries turn an interrupt into an error of theirs
        return _interrupted()
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        return _explain(_refused(error), debug=debug)
    if (short := memory_shortage(error)) is not None:
        hint = "when there is more, the same command goes on from what is on disk; smaller batches "
        return _explain(HwnasError(f"out of memory ({short})", f"{hint}need less"), debug=debug)
    _traceback()
    _say("this is a bug in hwnas", "please report it with the lines above and the command")
    return EXIT_BUG


def _refused(error: OSError) -> HwnasError:
    """Return what is told of something that the system does not allow, wherever it was tried."""
    name = "" if error.filename is None else str(error.filename)
    shown = f"{name[:_LONGEST_NAME]}..." if len(name) > _LONGEST_NAME else name
    return HwnasError(f"{shown}: {error.strerror}" if shown else str(error.strerror))


def _explain(error: HwnasError | click.ClickException, *, debug: bool) -> int:
    if debug:
        _traceback()
    if isinstance(error, HwnasError):
        _say(error.message, error.hint)
        return error.exit_code
    message = error.format_message()
    context = error.ctx if isinstance(error, click.UsageError) else None
    _say(message[:1].lower() + message[1:], f"{context.command_path} --help" if context else "")
    return error.exit_code


def _say(message: str, hint: str) -> None:
    click.echo(f"error: {message}", err=True)
    if hint:
        click.echo(f"hint: {hint}", err=True)


def _traceback() -> None:
    import traceback

    click.echo(traceback.format_exc(), err=True, nl=False)


def _show_warning(  # noqa: PLR0917 - the signature of warnings.showwarning
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    click.echo(f"warning: {message}", err=True)
