"""One training at a time in a folder: two would remove each other's checkpoints."""

import errno
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hwnas.errors import HwnasError
from hwnas.io import lockfile
from hwnas.io.atomic import is_unfinished, write_error

LOCK_FILE = ".lock"
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}


@contextmanager
def alone_in(folder: Path, *, leads: bool, note: Callable[[str], None]) -> Iterator[None]:
    """Keep other trainings out of a folder, which is made if it is not there.

    In a distributed training the process that `leads` does. `note` hears of a file system without
    locks. Raises HwnasError while another process trains there. A folder that was made and is
    still empty at the end is removed.
    """
    if not leads:
        yield
        return
    path = folder / LOCK_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = lockfile.held(path)
    except lockfile.HeldError as error:
        raise HwnasError(
            f"{folder} is being trained by another process ({error})",
            "wait for it, or end it; or choose another folder",
        ) from error
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise write_error(error, path) from error
        note(f"{folder} is on a file system without locks: start no second training there")
        yield
        return
    with held:
        try:
            yield
        finally:
            with suppress(OSError):  # not every system removes what is open
                path.unlink()
            with suppress(OSError):  # not empty: there is something to keep
                folder.rmdir()


def holds_only(folder: Path, names: Collection[str]) -> bool:
    """Return whether nothing but files of these names is in a folder.

    What trainings that were killed leave does not count: their lock, and unfinished files.
    """
    return all(
        path.name in {LOCK_FILE, *names} or any(is_unfinished(path, name) for name in names)
        for path in folder.iterdir()
    )
