"""Fetching a published file once: checked against its checksum, and never seen half-written."""

import hashlib
import http.client
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock

from hwnas.errors import HwnasError
from hwnas.io import write_atomic
from hwnas.training.datasets import Progress

TIMEOUT_S = 30.0
ATTEMPTS = 3
_CHUNK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A file at its official place, with the checksum its publisher gives."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rpartition("/")[2]


def fetch(
    file: Published,
    folder: Path,
    *,
    hint: str,
    progress: Progress | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Path:
    """Return the path of `file` in `folder`, fetched if it is not there.

    `hint` says how else to get it. Processes that want the same file wait for one of them.
    """
    target = folder / file.name
    if target.is_file():
        return target
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HwnasError(f"cannot write {folder}: {error.strerror}", hint) from error
    with FileLock(folder / f".{file.name}.lock"):
        if not target.is_file():
            write_atomic(
                target,
                lambda path: _download(
                    file, path, hint=hint, progress=progress, timeout_s=timeout_s
                ),
            )
    return target


def unreachable(file: Published, *, timeout_s: float) -> str | None:
    """Return why the publisher's site cannot be reached, None if it answers."""
    reasons = ["no answer"]

    def ask() -> None:
        request = urllib.request.Request(file.url, method="HEAD")  # noqa: S310 - constants
        try:
            with urllib.request.urlopen(request, timeout=timeout_s):  # noqa: S310
                reasons.clear()
        except urllib.error.HTTPError as error:
            with error:
                reasons[:] = [f"the server answers {error.code} {error.reason}"]
        except urllib.error.URLError as error:
            reasons[:] = [getattr(error.reason, "strerror", None) or str(error.reason)]
        except (http.client.HTTPException, OSError) as error:
            reasons[:] = [str(error) or type(error).__name__]

    # In a thread, because looking up a name knows no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(timeout_s)
    return reasons[0] if reasons else None


def _download(
    file: Published, path: Path, *, hint: str, progress: Progress | None, timeout_s: float
) -> None:
    reason = ""
    for _ in range(ATTEMPTS):
        try:
            with path.open("wb") as out:
                found = _transfer(file, out, progress=progress, timeout_s=timeout_s)
        except _InterruptedError as error:
            reason = str(error)
            continue
        if found != file.md5:
            raise HwnasError(
                f"{file.url} has the md5 {found}, expected {file.md5}: it is not the published "
                "file, or was changed on the way",
                hint,
            )
        return
    raise HwnasError(f"cannot fetch {file.url}: {reason}", hint)


class _InterruptedError(Exception):
    """The transfer did not complete; another attempt may."""


def _transfer(
    file: Published, out: BinaryIO, *, progress: Progress | None, timeout_s: float
) -> str:
    """Write the file to `out`; return its md5."""
    checksum = hashlib.md5(usedforsecurity=False)
    try:
        # The addresses are constants of this package.
        with urllib.request.urlopen(file.url, timeout=timeout_s) as answer:  # noqa: S310
            total = int(answer.headers.get("Content-Length") or 0)
            done = 0
            while chunk := answer.read(_CHUNK):
                _write(out, chunk)
                checksum.update(chunk)
                done += len(chunk)
                if progress is not None:
                    progress(f"fetching {file.name}", done, total)
    except _DiskError as fault:
        raise fault.error from fault
    except urllib.error.HTTPError as error:
        with error:
            raise _InterruptedError(f"the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _InterruptedError(str(error.reason)) from error
    except (http.client.HTTPException, OSError) as error:
        raise _InterruptedError(str(error) or type(error).__name__) from error
    if total and done != total:
        raise _InterruptedError(f"the transfer ended after {done} of {total} bytes")
    return checksum.hexdigest()


class _DiskError(Exception):
    """Writing failed, which no second attempt repairs; network faults are OSErrors as well."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


def _write(out: BinaryIO, chunk: bytes) -> None:
    try:
        out.write(chunk)
    except OSError as error:
        raise _DiskError(error) from error
