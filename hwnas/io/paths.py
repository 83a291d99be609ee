"""Paths in files that people write: relative to the file, so that they hold wherever it is read."""

import os
from pathlib import Path


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
