"""Folders that are written as a whole replace what is there: only what we wrote, and all of it."""

from collections.abc import Callable
from pathlib import Path

from hwnas.errors import HwnasError, UsageError
from hwnas.io.atomic import is_unfinished

_ELSEWHERE = "choose another --out"


def check_replaceable(folder: Path, what: str, files: Callable[[Path], set[Path]]) -> None:
    """Raise UsageError unless a folder is absent or empty, or holds an earlier `what` and no more.

    `files` returns the files that the one in a folder consists of; raises HwnasError if it is none.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(f"{folder}: exists and is no folder", _ELSEWHERE)
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError(
            f"{folder}: is the folder you are in, which would be replaced by another",
            f"go to another, or name one within it: --out {what}",
        )
    there = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    if not there:
        return
    try:
        ours = files(folder)
    except HwnasError as error:
        raise UsageError(
            f"{folder}: exists and is no {what} of ours ({error.message})", _ELSEWHERE
        ) from error
    others = sorted(path for path in set(there) - ours if not _is_left_over(path, ours))
    if others:
        name = others[0].relative_to(folder)
        raise UsageError(
            f"{folder}: holds {name}, which is no part of the {what} and would be deleted",
            f"move it elsewhere, or {_ELSEWHERE}",
        )


def _is_left_over(path: Path, ours: set[Path]) -> bool:
    """Return whether a process that was killed left it of writing one of our files."""
    return any(path.parent == one.parent and is_unfinished(path, one.name) for one in ours)
