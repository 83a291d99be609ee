"""One profiler at a time on a device: two would measure each other."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from hwnas.errors import HwnasError, UnreliableError

_ELSEWHERE = "let XDG_CACHE_HOME name a folder of this machine that can be written"


@contextmanager
def device_lock(fingerprint: str, *, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of a device; the system drops it when the process ends, however it ends."""
    path = _writable(folder) / f"profiling-{fingerprint}.lock"
    owner = path.with_suffix(".owner")
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        who = owner.read_text() if owner.exists() else "unknown"
        raise UnreliableError(
            f"another profiler is measuring on this device (process {who})",
            f"wait for it, or end it; the lock is {path}",
        ) from error
    except (OSError, NotImplementedError) as error:  # the latter: no locks on this file system
        raise HwnasError(f"cannot lock {path}: {error}", _ELSEWHERE) from error
    try:
        with suppress(OSError):  # who it is, is only told; a full disk is no reason to stop
            owner.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()


def _writable(folder: Path | None) -> Path:
    """Return the folder, or else the user's own, or that of temporary files where it is not."""
    usual = user_cache_path("hwnas")
    choices = (usual, Path(tempfile.gettempdir()) / "hwnas") if folder is None else (folder,)
    for choice in choices:
        with suppress(OSError):
            choice.mkdir(parents=True, exist_ok=True)
            if os.access(choice, os.W_OK):
                return choice
    raise HwnasError(
        "no place for the lock that keeps other profilers off; tried "
        + ", ".join(map(str, choices)),
        _ELSEWHERE,
    )
