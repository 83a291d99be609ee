"""Files that survive crashes."""

import errno
import json
import os
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from safetensors import SafetensorError

from hwnas.errors import FormatError, HwnasError
from hwnas.io import (
    Journal,
    Schema,
    atomic,
    canonical_json,
    digest,
    parse_json,
    read_journal,
    read_json,
    read_tensors,
    write_atomic,
    write_folder_atomic,
    write_json,
    write_tensors,
)

NOTE = Schema(
    name="hwnas/note",
    version=3,
    upgrades={
        1: lambda old: {**old, "title": old["name"]},
        2: lambda old: {**old, "tags": []},
    },
)


def test_digest_does_not_depend_on_order_or_spacing() -> None:
    assert digest({"b": 1, "a": [1.5, None]}) == digest({"a": [1.5, None], "b": 1})
    with pytest.raises(ValueError, match="Out of range float"):
        canonical_json(float("nan"))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")

    def fails(target: Path) -> None:
        target.write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(HwnasError, match="no space left to write .*file"):
        write_atomic(path, fails)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("number", "message"),
    [(28, "no space left to write .*a.safetensors"), (27, "larger than files may be here")],
)
def test_tensors_on_a_full_disk_are_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refused(*_arguments: object, **_options: object) -> None:
        raise SafetensorError(f"Error while serializing: I/O error: it is full (os error {number})")

    path = tmp_path / "a.safetensors"
    write_tensors(path, {"a": np.zeros(3)})
    before = path.read_bytes()
    monkeypatch.setattr("hwnas.io.tensors.save_file", refused)
    with pytest.raises(HwnasError, match=message) as caught:
        write_tensors(path, {"a": np.ones(3)})
    assert "what was there before is intact" in caught.value.hint
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_journal_on_a_full_disk_is_explained_and_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    class Full(FileIO):
        def write(self, line: bytes) -> int:
            if len(line) < 8:
                refused()
            return super().write(line[:5])

    def refused(_handle: int = 0) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = tmp_path / "events.jsonl"
    with Journal(path) as journal, Full(path, "ab") as full:
        journal.append({"a": 1})
        with monkeypatch.context() as context:
            if call == "write":
                context.setattr(journal, "_file", full)
            else:
                context.setattr("os.fsync", refused)
            with pytest.raises(HwnasError, match="no space left to write .*events.jsonl"):
                journal.append({"a": 2})
        journal.append({"a": 3})
    assert read_journal(path) == [{"a": 1}, {"a": 3}]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "a").write_text("a")
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(HwnasError, match="Input/output error"):
        write_folder_atomic(tmp_path / "folder", fails)
    assert list(tmp_path.iterdir()) == []
    write_folder_atomic(tmp_path / "folder", lambda folder: (folder / "a").touch())
    assert [file.name for file in (tmp_path / "folder").iterdir()] == ["a"]


def test_old_versions_are_upgraded_and_newer_ones_refused(tmp_path: Path) -> None:
    path = tmp_path / "note.json"
    path.write_text(json.dumps({"schema": "hwnas/note", "version": 1, "name": "n"}))
    assert read_json(path, NOTE) == {
        "schema": "hwnas/note", "version": 3, "name": "n", "title": "n", "tags": [],
    }  # fmt: skip
    for content, message in (
        ({"schema": "hwnas/note", "version": 4}, "version 4 of hwnas/note; accepted: up to 3"),
        ({"schema": "hwnas/other", "version": 1}, "is a 'hwnas/other', expected 'hwnas/note'"),
        ({"version": 1}, "no schema"),
        ({"schema": "hwnas/note", "version": "x"}, "version is 'x'"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(FormatError, match=message):
            read_json(path, NOTE)
    path.write_text('{"schema": "hwnas/no')
    with pytest.raises(FormatError, match="perhaps truncated"):
        read_json(path, NOTE)
    with pytest.raises(FormatError, match="no such file"):
        read_json(tmp_path / "absent", NOTE)
    write_json(path, NOTE, {"title": "new"})
    assert read_json(path, NOTE)["title"] == "new"


def test_a_torn_last_line_is_dropped_and_cut_before_going_on(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.append({"n": 1})
        journal.append({"n": 2})
    with path.open("ab") as file:
        file.write(b'{"n": 3')
    with pytest.warns(UserWarning, match="not written whole"):
        assert read_journal(path) == [{"n": 1}, {"n": 2}]
    with Journal(path) as journal:
        journal.append({"n": 4})
    assert read_journal(path) == [{"n": 1}, {"n": 2}, {"n": 4}]


def test_damage_before_the_last_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_text('{"n": 1}\n{"n"\n{"n": 3}\n')
    with pytest.raises(FormatError, match="line 2: not JSON"):
        read_journal(path)


def test_tensors_keep_values_and_metadata(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_tensors(path, {"a": array.T, "scalar": np.array(3.0)}, {"key": "value"})
    arrays, metadata = read_tensors(path)
    assert np.array_equal(arrays["a"], array.T)
    assert metadata == {"key": "value"}
    assert arrays["scalar"].shape == ()
    several = {"b": "2", "a": "1", "c": "3"}
    written = set()
    for order in (several, dict(sorted(several.items()))):
        write_tensors(path, {"a": array}, order)
        assert read_tensors(path)[1] == several
        written.add(path.read_bytes())
    assert len(written) == 1
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FormatError, match="not a complete safetensors file"):
        read_tensors(path)


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"a": \xff}', b'{"a": NaN}'])
def test_no_line_of_a_journal_is_a_crash(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "j.jsonl").write_bytes(b"{}\n" + line + b"\n")
    with pytest.raises(FormatError, match="line 2: not JSON"):
        read_journal(tmp_path / "j.jsonl")
    (tmp_path / "d.json").write_bytes(line)
    with pytest.raises(FormatError, match="not JSON"):
        read_json(tmp_path / "d.json", Schema(name="s", version=1))


def test_json_is_at_most_so_deep_that_it_can_be_written_again() -> None:
    assert parse_json("[" * 100 + "]" * 100, "d") is not None
    wide = [{"a": [n]} for n in range(500)]
    assert parse_json(canonical_json(wide), "d") == wide
    for depth in (101, 500, 900, 5_000, 100_000):
        for opening, closing in (("[", "]"), ('{"a":', "}")):
            with pytest.raises(FormatError, match="^d: "):
                parse_json(opening * depth + "1" + closing * depth, "d")


def test_where_folders_cannot_be_opened_files_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_as_windows_does(path: Path, flags: int, *rest: int) -> int:
        if Path(path).is_dir():
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest)

    real = os.open
    monkeypatch.setattr(atomic, "_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_as_windows_does)
    write_atomic(tmp_path / "a" / "b.txt", "text")
    assert (tmp_path / "a" / "b.txt").read_text() == "text"
