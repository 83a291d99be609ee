"""Writes that either happen completely or not at all, also when the machine stops."""

import ctypes
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeGuard

from hwnas.errors import HwnasError

_WINDOWS = os.name == "nt"
_RENAME_EXCHANGE = 2  # of renameat2(2)


def write_atomic(path: Path, write: bytes | str | Callable[[Path], None]) -> None:
    """Write `path`: its old content stays until the new one is complete and on disk.

    `write` is the content, or a function that writes it to the path it is given.
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_prefix(path.name), dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        if callable(write):
            write(temporary)
        else:
            temporary.write_bytes(write.encode() if isinstance(write, str) else write)
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp makes files private
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise write_error(error, path) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def is_unfinished(path: Path, name: str) -> bool:
    """Return whether `path` is what a process that was killed left of writing a file `name`."""
    return path.name.startswith(_prefix(name))


def _prefix(name: str) -> str:
    return f".{name}."


def write_folder_atomic(path: Path, write: Callable[[Path], None]) -> None:
    """Create the folder `path`; a half-written folder is never seen under that name."""
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=_prefix(path.name), dir=path.parent))
        os.chmod(temporary, 0o777 & ~_umask())
        write(temporary)
        for file in temporary.rglob("*"):
            _sync(file)
        _sync(temporary)
        _take_place(temporary, path)
        _sync(path.parent)
    except OSError as error:
        raise write_error(error, path) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _take_place(new: Path, path: Path) -> None:
    """Rename the folder `new` to `path`; an old one there is whole until it is replaced."""
    if not path.is_dir():
        os.replace(new, path)
        return
    if _exchanged(new, path):
        return
    old = new.with_name(f"{new.name}.old")
    try:
        os.replace(path, old)
        os.replace(new, path)
    finally:  # of an interrupt, too
        if not path.is_dir():
            os.replace(old, path)
        shutil.rmtree(old, ignore_errors=True)


def _exchanged(one: Path, other: Path) -> bool:
    """Return whether two folders have changed their names in one step, which Linux can."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    names = os.fsencode(one.absolute()), os.fsencode(other.absolute())
    return rename is not None and rename(0, names[0], 0, names[1], _RENAME_EXCHANGE) == 0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _sync(path: Path) -> None:
    if _WINDOWS and path.is_dir():
        return  # folders cannot be opened there, and files only be synced by who may write
    handle = os.open(path, os.O_RDWR if _WINDOWS else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def is_full(error: BaseException) -> TypeGuard[OSError]:
    """Return whether an error says that the disk is full, or the share of it that one may use."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_error(error: OSError, path: Path) -> HwnasError:
    """Return what is told to the user when `path` cannot be written."""
    if is_full(error):
        return HwnasError(
            f"no space left to write {path}", "free disk space; what was there before is intact"
        )
    if error.errno == errno.EFBIG:
        return HwnasError(
            f"{path} would become larger than files may be here",
            "raise the limit (ulimit -f); what was there before is intact",
        )
    return HwnasError(
        f"cannot write {path}: {error.strerror or error}",
        f"choose another place, or make {path.parent} one that can be written",
    )
