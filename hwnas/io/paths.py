"""Paths in files and commands of people; in a file they are relative to it, wherever it is read."""

import os
import shlex
from pathlib import Path


def typed(path: Path) -> str:
    """Return a path as it is typed in a command."""
    return shlex.quote(str(path))


def resolved(given: str, folder: Path) -> str:
    """Return a path that stands in a file of `folder` as it is called from this folder.

    Where nothing is there, what this folder has counts: recipes used to be read so.
    """
    if given.startswith("~") or os.path.isabs(given):
        return given
    there = os.path.normpath(folder / given)
    return there if os.path.exists(there) or not os.path.exists(given) else given


def seen_from(folder: Path, path: Path) -> str:
    """Return a path of this folder as it is called in `folder`; an absolute one stays so."""
    if path.is_absolute():
        return str(path)
    if os.path.realpath(folder) != os.path.abspath(folder):
        return os.path.abspath(path)  # `..` leads elsewhere behind a link
    return os.path.relpath(path, folder)
