"""Errors that a user can act on, and their exit codes.

The library raises these; only `hwnas.cli` prints them. A message says what was wrong, the value
and what is accepted; the hint says what to type next.
"""

from collections.abc import Iterable
from difflib import get_close_matches

EXIT_OK = 0
EXIT_BUG = 70
EXIT_INTERRUPTED = 130


class HwnasError(Exception):
    """A failure that is explained to the user without a traceback."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(HwnasError):
    """The request itself is malformed: an unknown name, a value outside its choices."""

    exit_code = 2


class InfeasibleError(HwnasError):
    """The request is well formed and nothing can satisfy it."""

    exit_code = 3


class GateError(HwnasError):
    """An artefact was examined and does not meet what was asked of it."""

    exit_code = 4


class UnreliableError(HwnasError):
    """A measurement cannot be trusted, so no verdict is given."""

    exit_code = 5


class FormatError(HwnasError):
    """A file is damaged, foreign, or written by a newer version."""


class AbsentError(FormatError):
    """A file or folder that was named is not there."""

    exit_code = 2


class MissingPackageError(HwnasError):
    """A verb needs packages that are not installed."""


def unknown_name(kind: str, name: object, known: Iterable[str], *, hint: str = "") -> UsageError:
    """Return the error for a name that is not among `known`, naming the nearest ones."""
    known = list(known)
    near = get_close_matches(str(name), known, n=3, cutoff=0.4)
    all_of_them = f"known: {', '.join(known)}" if known else "there are none"
    accepted = f"did you mean {' or '.join(near)}?" if near else all_of_them
    return UsageError(f"unknown {kind} {name!r}; {accepted}", hint)


def memory_shortage(error: BaseException) -> str | None:
    """Return what an error says of memory that was not to be had, None if it is about other things.

    Told without importing torch: its CPU allocator raises a plain RuntimeError, its GPUs' a class.
    """
    said = (str(error).strip().splitlines() or ["the system has no more"])[0]
    names = {kind.__name__ for kind in type(error).__mro__}
    on_cpu = isinstance(error, RuntimeError) and "can't allocate memory" in said
    return said if on_cpu or names & {"MemoryError", "OutOfMemoryError"} else None
