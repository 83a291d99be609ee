"""One profiler at a time on a device, whoever starts it: two would measure each other.

The lock is a file in the folder for temporary files that all users of a machine share.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from platformdirs import user_cache_path

from hwnas.errors import HwnasError, UnreliableError
from hwnas.io import lockfile
from hwnas.profiling.machine import whole_machine

FOLDER_VARIABLE = "HWNAS_LOCKS"
SHARED = Path("/tmp")  # noqa: S108 - not $TMPDIR, which may be a user's own
_ELSEWHERE = f"let {FOLDER_VARIABLE} name a folder of this machine that can be written"


@contextmanager
def device_lock(*, folder: Path | None = None) -> Iterator[None]:
    """Hold the lock of this machine, in `folder` or else where every profiler looks for it.

    It is one for all cores, as they share memory and caches.
    Raises UnreliableError while another process holds it.
    """
    name = f"hwnas-profiling-{whole_machine()}.lock"
    tried: list[str] = []
    for choice in _choices(folder):
        path = choice / name
        try:
            choice.mkdir(parents=True, exist_ok=True)
            held = lockfile.held(path)
        except lockfile.HeldError as error:
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
