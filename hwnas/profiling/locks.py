"""One profiler at a time on a device: two would measure each other."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from hwnas.errors import UnreliableError


@contextmanager
def device_lock(fingerprint: str, *, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of a device; the system drops it when the process ends, however it ends."""
    folder = folder or user_cache_path("hwnas")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"profiling-{fingerprint}.lock"
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
    try:
        owner.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
