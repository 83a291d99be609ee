"""Profile files: one JSON object a line, the first one a header that names the device.

Read, write, merge, compare and check them. A measurement that occurs twice is there once: the
better grade is kept, then the newer. Of measurements of different models of one network only those
of the last model count.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import AbsentError, FormatError, HwnasError
from hwnas.io import Journal, Schema, canonical_json, read_journal, write_atomic
from hwnas.io.journal import without_line
from hwnas.profiling.records import (
    Header,
    Key,
    Record,
    header_from,
    header_json,
    record_from,
    record_json,
)

SCHEMA = Schema(name="hwnas/profile", version=1)
_HEADER_STARTS = b'{"created_at":'  # keys are written in their order


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The measurements of one device, one for each key."""

    header: Header
    records: Mapping[Key, Record]

    def measured(self) -> list[Record]:
        """Return the records that have a latency."""
        return [record for record in self.records.values() if record.latency is not None]

    def failed(self) -> list[Record]:
        """Return the recorded failures."""
        return [record for record in self.records.values() if record.failure is not None]


class ProfileWriter:
    """A profile opened for appending; each record is on disk before `add` returns."""

    def __init__(self, path: Path, header: Header) -> None:
        self.path = Path(path)
        self._journal = Journal(self.path)
        if self.path.stat().st_size == 0:
            self._journal.append(SCHEMA.stamp(header_json(header)))

    def add(self, record: Record) -> None:
        """Append one record."""
        self._journal.append(record_json(record))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._journal.close()


def read_profile(path: Path) -> Profile:
    """Return the profile in `path`. Raises FormatError for damaged, foreign and newer files."""
    path = Path(path)
    lines = _lines(path)
    if not lines:
        raise FormatError(f"{path}: empty, expected a profile with a header line")
    first = SCHEMA.check(lines[0], str(path))
    content = {name: value for name, value in first.items() if name not in ("schema", "version")}
    header = header_from(content, f"{path}, line 1")
    records = [_record(line, path, number) for number, line in enumerate(lines[1:], start=2)]
    return Profile(header=header, records=_best_in_order(records))


def _record(line: dict[str, Any], path: Path, number: int) -> Record:
    try:
        return record_from(line, f"{path}, line {number}")
    except FormatError as error:
        raise FormatError(error.message, without_line(path, number)) from error


def profile_so_far(path: Path) -> Profile | None:
    """Return the profile in `path` to go on with, None if a session is yet to begin it.

    A file that ends within our header holds nothing; any other content belongs to somebody.
    """
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    if b"\n" in content:
        return read_profile(path)
    if content[: len(_HEADER_STARTS)] != _HEADER_STARTS[: len(content)]:
        raise FormatError(
            f"{path}: exists and is no profile; it is left as it is", "name another file: -o FILE"
        )
    return None


def write_profile(path: Path, profile: Profile) -> None:
    """Write a whole profile at once, atomically, in the order of its records."""
    lines = [SCHEMA.stamp(header_json(profile.header))]
    lines += [record_json(record) for record in profile.records.values()]
    write_atomic(Path(path), "".join(canonical_json(line) + "\n" for line in lines))


def rewrite_records(path: Path, change: Callable[[Record], Record]) -> None:
    """Replace the records of a profile by what `change` makes of them, at once.

    Also those of which there are better ones; lines that do not change stay as they are.
    """
    lines = _lines(path)
    for number, line in enumerate(lines[1:], start=1):
        record = _record(line, path, number + 1)
        changed = change(record)
        if changed is not record:
            lines[number] = record_json(changed)
    write_atomic(Path(path), "".join(canonical_json(line) + "\n" for line in lines))


def best_records(records: Iterable[Record]) -> dict[Key, Record]:
    """Return one record for each key: of the model measured last, the better grade, then the newer.

    Their order says nothing.
    """
    records = list(records)
    newest_last = sorted(records, key=lambda record: (record.measured_at, record.rank))
    best = _best_in_order(newest_last)
    return {record.key: best[record.key] for record in records}


def _best_in_order(records: Iterable[Record]) -> dict[Key, Record]:
    """Return what `best_records` does, of lines that were appended to a file.

    They are in order even where the clock is not: boards without a battery set it back.
    """
    same: dict[Key, list[Record]] = {}
    for record in records:
        same.setdefault(record.key, []).append(record)
    return {key: _best(found) for key, found in same.items()}


def _best(records: Sequence[Record]) -> Record:
    last = next((record.graph for record in reversed(records) if record.graph), None)
    return max(
        (record for record in records if record.graph in (None, last)),
        key=lambda record: record.rank,
    )


def merge_profiles(first: Profile, second: Profile) -> Profile:
    """Return the union of two profiles of one device."""
    one, other = first.header.device, second.header.device
    if one.fingerprint != other.fingerprint:
        raise HwnasError(
            f"profiles of different devices cannot be merged: {one.name!r} ({one.cpu}, "
            f"{one.cores} cores) and {other.name!r} ({other.cpu}, {other.cores} cores)",
            "compare them instead: hwnas profiles diff",
        )
    header = max(
        (first.header, second.header),
        key=lambda header: (header.created_at, canonical_json(header_json(header))),
    )
    merged = best_records([*first.records.values(), *second.records.values()])
    return Profile(header=header, records=dict(sorted(merged.items())))


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """How two profiles differ where both have a latency. Ratios are second / first.

    `other_models`: how many were measured of another model of the same network in the second.
    """

    keys: tuple[Key, ...]
    ratios: tuple[float, ...]
    median_ratio: float | None
    spearman: float | None
    only_first: int
    only_second: int
    other_models: int = 0


def diff_profiles(first: Profile, second: Profile) -> Difference:
    """Compare the median latencies of two profiles, of the same or of different devices."""
    ours = {record.key: record for record in first.measured()}
    theirs = {record.key: record for record in second.measured()}
    keys = tuple(sorted(set(ours) & set(theirs)))
    x = np.array([_median(ours[key]) for key in keys])
    y = np.array([_median(theirs[key]) for key in keys])
    ratios = y / x
    return Difference(
        keys=keys,
        ratios=tuple(ratios.tolist()),
        median_ratio=float(np.median(ratios)) if keys else None,
        spearman=_spearman(x, y) if len(keys) > 1 else None,
        only_first=len(set(ours) - set(theirs)),
        only_second=len(set(theirs) - set(ours)),
        other_models=len(other_models(ours, theirs)),
    )


def other_models(first: Mapping[Key, Record], second: Mapping[Key, Record]) -> list[Key]:
    """Return the keys under which different models were measured; where it is known."""
    graphs = {key: (first[key].graph, second[key].graph) for key in first if key in second}
    return [key for key, (one, other) in graphs.items() if one and other and one != other]


def _lines(path: Path) -> list[dict[str, Any]]:
    try:
        return read_journal(path)
    except FileNotFoundError as error:
        raise AbsentError(f"{path}: no such file") from error
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: Path, error: OSError) -> FormatError:
    return FormatError(f"{path}: cannot be read ({error.strerror or error})")


def _median(record: Record) -> float:
    assert record.latency is not None
    return record.latency.median_ms


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks where ties share their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[inverse], dtype=np.float64)


def _spearman(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    a, b = _ranks(x), _ranks(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])
