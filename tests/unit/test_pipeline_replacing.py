"""Folders that are written as a whole delete nothing that somebody else put there."""

import json
from pathlib import Path

import pytest

from hwnas.errors import HwnasError, UsageError
from hwnas.export.artifact import MANIFEST_FILE, VERDICT_FILE
from hwnas.export.family import FAMILY_FILE, Family, Member, write_family
from hwnas.pipeline.exporting import artifact_folder
from hwnas.pipeline.families import export_family
from hwnas.pipeline.replacing import check_replaceable
from hwnas.pipeline.rundir import Run
from hwnas.testing.exported import write_artifact

RUN = Run(folder=Path("none"), status="", space="nano", options={}, origin={}, versions={}, host={})


def names(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


def write_members(folder: Path) -> Path:
    found = write_artifact(folder / "a", images=8)
    member = Member(
        file="a/model.onnx", digest="", sha256="", size_bytes=1, budgets=("b",), accuracy=0.9,
        latency_ms=1.0, measured=True, precision="fp32", promised={},
    )  # fmt: skip
    (found.folder / VERDICT_FILE).write_text("of an examination")
    write_family(folder, Family(
        space="nano", device="", budgets={"b": member.file}, members=(member,), versions={},
        created="",
    ))  # fmt: skip
    return folder


def replace(folder: Path, kind: str) -> None:
    """Export to a folder; raises an HwnasError that is no UsageError once that may be replaced."""
    if kind == "artifact":
        artifact_folder(Path("subnet"), folder)
        raise HwnasError("may be replaced")
    export_family(RUN, out=folder)


@pytest.mark.parametrize(
    ("kind", "file"), [("artifact", MANIFEST_FILE), ("family", FAMILY_FILE), ("artifact", None)]
)
def test_what_is_not_ours_is_kept(tmp_path: Path, kind: str, file: str | None) -> None:
    """A file of such a name proves nothing: every web application has a manifest.json."""
    site = tmp_path / "site"
    (site / "src").mkdir(parents=True)
    (site / "src" / "code.txt").write_text("mine")
    if file is not None:
        (site / file).write_text(json.dumps({"name": "my web application"}))
    before = names(site)
    with pytest.raises(UsageError, match=f"no {kind} of ours .*{file or MANIFEST_FILE}"):
        replace(site, kind)
    assert names(site) == before


@pytest.mark.parametrize(
    ("kind", "make", "place"),
    [
        ("artifact", lambda folder: write_artifact(folder, images=8), "notes/today.txt"),
        ("family", write_members, "notes.txt"),
        ("family", write_members, "a/notes.txt"),
    ],
)
def test_what_was_put_beside_ours_is_named(tmp_path: Path, kind: str, make, place: str) -> None:
    folder = tmp_path / "out"
    make(folder)
    with pytest.raises(HwnasError) as raised:
        replace(folder, kind)
    assert not isinstance(raised.value, UsageError), raised.value
    (folder / place).parent.mkdir(exist_ok=True)
    (folder / place).write_text("mine")
    with pytest.raises(UsageError, match=f"holds {place}, which is no part of the {kind}"):
        replace(folder, kind)


def test_what_a_killed_writer_left_is_no_work_of_somebody(tmp_path: Path) -> None:
    ours = tmp_path / "out" / "verdict.json"
    ours.parent.mkdir()
    (ours.parent / ".verdict.json.x1y2z3").write_text("half of it")
    check_replaceable(ours.parent, "artifact", lambda _: {ours})
    (ours.parent / ".notes.txt.x1y2z3").write_text("of another")
    with pytest.raises(UsageError, match=r"holds \.notes\.txt\.x1y2z3"):
        check_replaceable(ours.parent, "artifact", lambda _: {ours})


@pytest.mark.parametrize("kind", ["artifact", "family"])
def test_empty_folders_are_written_to(tmp_path: Path, kind: str) -> None:
    (tmp_path / "out" / "within").mkdir(parents=True)
    with pytest.raises(HwnasError) as raised:
        replace(tmp_path / "out", kind)
    assert not isinstance(raised.value, UsageError), raised.value


@pytest.mark.parametrize("typed", [".", "..", "../within"])
def test_the_folder_somebody_is_in_is_not_taken_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (tmp_path / "within").mkdir()
    monkeypatch.chdir(tmp_path / "within")
    with pytest.raises(UsageError, match="is the folder you are in") as raised:
        check_replaceable(Path(typed), "artifact", lambda _: set())
    assert raised.value.hint == "go to another, or name one within it: --out artifact"


def test_files_are_no_folders(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="exists and is no folder"):
        check_replaceable(tmp_path / "file", "subnet", lambda _: set())
