"""Folders for temporary files, of which those of killed sessions are removed by later ones.

A session holds a lock on its folder, which the system drops when the process ends, however it
ends: a folder that can be locked is nobody's any more.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

if os.name == "posix":
    import fcntl

_PREFIX = "hwnas-scratch-"


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Yield an empty folder, which is removed at the end, or else by whoever calls this next."""
    if os.name == "posix":
        _clear_up()
    with ExitStack() as stack:
        while True:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
            try:
                if os.name != "posix" or _hold(folder, stack):
                    break
            except OSError:  # a file system without locks, where nobody clears up
                break
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        yield folder


def _clear_up() -> None:
    """Remove what killed sessions of this user left behind."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError), ExitStack() as stack:
            if folder.lstat().st_uid == os.geteuid() and _hold(folder, stack):
                shutil.rmtree(folder, ignore_errors=True)


def _hold(folder: Path, stack: ExitStack) -> bool:
    """Lock a folder for as long as `stack`; return whether it is ours. May raise OSError."""
    try:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        stack.callback(os.close, handle)
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (FileNotFoundError, BlockingIOError):
        return False
    return os.fstat(handle).st_nlink > 0  # else somebody cleared up between making and locking
