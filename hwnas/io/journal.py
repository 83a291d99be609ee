"""Append-only JSON lines that survive `kill -9`.

A line is on disk before `append` returns. Only the last line can be torn; it is dropped with a
warning when the file is read, and cut off before the next append.
"""

import os
import warnings
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hwnas.errors import FormatError
from hwnas.io.atomic import write_error
from hwnas.io.canonical import canonical_json, parse_json


class Journal:
    """A journal opened for appending."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                _cut_torn_line(self.path)
            # Without a buffer: what could not be written must not be tried again at the end.
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise write_error(error, self.path) from error

    def append(self, record: dict[str, Any]) -> None:
        """Write one record and wait until it is on disk; all of it or, on an error, nothing."""
        line = memoryview(canonical_json(record).encode() + b"\n")
        try:
            before = os.fstat(self._file.fileno()).st_size
            try:
                while line:
                    line = line[self._file.write(line) :]
                os.fsync(self._file.fileno())
            except OSError:
                self._file.truncate(before)
                raise
        except OSError as error:
            raise write_error(error, self.path) from error

    def close(self) -> None:
        """Close the file; records are already on disk."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def read_journal(path: Path) -> list[dict[str, Any]]:
    """Return the records of a journal; a torn last line is dropped with a warning.

    Raises FormatError for a line that is no record.
    """
    path = Path(path)
    lines = path.read_bytes().split(b"\n")
    complete, torn = lines[:-1], lines[-1]
    if torn:
        warnings.warn(f"{path}: dropped a last line that was not written whole", stacklevel=2)
    records = []
    for number, line in enumerate(complete, start=1):
        origin = f"{path}, line {number}"
        try:
            record = parse_json(line, origin)
        except FormatError as error:
            raise FormatError(error.message, without_line(path, number)) from error
        if not isinstance(record, dict):
            raise FormatError(f"{origin}: not a JSON object", without_line(path, number))
        records.append(record)
    return records


def without_line(path: Path, number: int) -> str:
    """Return the hint how to go on with the other lines of a journal, if they say enough."""
    if number == 1:
        return ""
    return f"every line stands for itself; to do without this one: sed -i {number}d {path}"


def _cut_torn_line(path: Path) -> None:
    with path.open("r+b") as file:
        content = file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            file.truncate(whole)
