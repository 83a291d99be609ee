"""One profiler at a time on a device, whoever starts it: two would measure each other.

The lock is a file in the folder for temporary files that all users of a machine share. It is held
by the system, which drops it when the process ends, however it ends; that the file is there means
nothing. Others may have made the file, so it is only used if it is an ordinary one.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from hwnas.errors import HwnasError, UnreliableError

if os.name == "posix":
    import fcntl

FOLDER_VARIABLE = "HWNAS_LOCKS"
SHARED = Path("/tmp")  # noqa: S108 - not $TMPDIR, which may be a user's own
_ELSEWHERE = f"let {FOLDER_VARIABLE} name a folder of this machine that can be written"
_LONGEST_NUMBER = 20


class _HeldError(Exception):
    """Somebody else has the lock; the text is the number of the process."""


@contextmanager
def device_lock(fingerprint: str, *, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of a device, in `folder` or else where every profiler looks for it.

    Raises UnreliableError while another process holds it.
    """
    tried: list[str] = []
    for choice in _choices(folder):
        path = choice / f"hwnas-profiling-{fingerprint}.lock"
        try:
            choice.mkdir(parents=True, exist_ok=True)
            held = _held(path)
        except _HeldError as error:
            raise UnreliableError(
                f"another profiler is measuring on this device (process {error})",
                f"wait for it, or end it; the lock is {path}",
            ) from error
        except (OSError, NotImplementedError) as error:  # the latter: no locks on that file system
            tried.append(f"{path} ({getattr(error, 'strerror', None) or error})")
            continue
        with held:
            yield
        return
    raise HwnasError(
        f"no place for the lock that keeps other profilers off; tried {', '.join(tried)}",
        _ELSEWHERE,
    )


def _choices(folder: Path | None) -> list[Path]:
    """Return where the lock may be: one place for all users, or else for this one."""
    named = os.environ.get(FOLDER_VARIABLE)
    if folder is not None or named:
        return [folder or Path(named or "")]
    shared = [SHARED] if os.name == "posix" and SHARED.is_dir() else []
    return [*shared, user_cache_path("hwnas"), Path(tempfile.gettempdir()) / "hwnas"]


def _held_by_flock(path: Path) -> ExitStack:
    """Lock the file at `path`, which anybody may have made. Raises _HeldError and OSError."""
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
            held = ExitStack()
            held.callback(os.close, descriptor)
            return held
        except BlockingIOError as error:
            who = os.pread(descriptor, _LONGEST_NUMBER, 0).decode("ascii", "replace")
            os.close(descriptor)
            raise _HeldError(who if who.isdigit() else "unknown") from error
        except OSError:
            os.close(descriptor)
            raise


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


def _held_without_flock(path: Path) -> ExitStack:
    """Lock a file on systems without flock. Raises _HeldError and OSError."""
    lock = FileLock(path)
    owner = path.with_suffix(".owner")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise _HeldError(owner.read_text() if owner.exists() else "unknown") from error
    with suppress(OSError):
        owner.write_text(str(os.getpid()))
    held = ExitStack()
    held.callback(lock.release)
    return held


_held = _held_by_flock if os.name == "posix" else _held_without_flock
