"""Files that one process at a time holds a lock on.

The system drops a lock when its process ends, however that ends; that the file is there means
nothing. Others may have made the file, so it is only used if it is an ordinary one.
"""

import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path

from filelock import FileLock, Timeout

if os.name == "posix":
    import fcntl

_LONGEST_NUMBER = 20


class HeldError(Exception):
    """Somebody else has the lock; the text is the number of the process."""


_taken: set[int] = set()


def _let_go() -> None:
    """Close the locks in a forked process, which would keep them when the one that forked dies."""
    for descriptor in _taken:
        os.close(descriptor)
    _taken.clear()


if os.name == "posix":
    os.register_at_fork(after_in_child=_let_go)


def held_by_flock(path: Path) -> ExitStack:
    """Lock the file at `path`, which anybody may have made. Raises HeldError and OSError."""
    while True:
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not _is_at(path, descriptor):  # removed meanwhile: the next one is another file
                os.close(descriptor)
                continue
            with suppress(OSError):  # who it is, is only told; a full disk is no reason to stop
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            _taken.add(descriptor)
            held = ExitStack()
            held.callback(_release, descriptor)
            return held
        except BlockingIOError as error:
            who = os.pread(descriptor, _LONGEST_NUMBER, 0).decode("ascii", "replace")
            os.close(descriptor)
            raise HeldError(who if who.isdigit() else "unknown") from error
        except OSError:
            os.close(descriptor)
            raise


def _release(descriptor: int) -> None:
    if descriptor in _taken:  # not in a forked process, whose is closed
        _taken.remove(descriptor)
        os.close(descriptor)


def _opened(path: Path) -> int:
    """Open the file for locking, make it if it is not there, and refuse what is no plain file."""
    # Neither follow a link that somebody laid, nor wait for who reads a pipe.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, os.O_RDWR | flags)
    except FileNotFoundError:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | flags, 0o666)
        except FileExistsError:  # another profiler was faster
            return _opened(path)
        with suppress(OSError):
            os.fchmod(descriptor, 0o666)  # all users lock it, whatever the maker's umask
    except PermissionError:
        descriptor = os.open(path, os.O_RDONLY | flags)  # to lock it, reading is enough
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(descriptor)
        raise OSError(f"{path} is no plain file")
    return descriptor


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def held_without_flock(path: Path) -> ExitStack:
    """Lock a file on systems without flock. Raises HeldError and OSError."""
    lock = FileLock(path)
    owner = path.with_suffix(".owner")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise HeldError(owner.read_text() if owner.exists() else "unknown") from error
    with suppress(OSError):
        owner.write_text(str(os.getpid()))
    held = ExitStack()
    held.callback(lock.release)
    held.callback(owner.unlink, missing_ok=True)
    return held


held = held_by_flock if os.name == "posix" else held_without_flock
