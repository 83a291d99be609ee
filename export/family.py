"""Families: several exported subnets of one space, so that the serving side can choose.

`choose_member` needs the standard library alone once the manifest is read.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hwnas.errors import FormatError, InfeasibleError, UsageError
from hwnas.export.artifact import verify
from hwnas.export.documents import STRICT, from_document, to_document
from hwnas.io import Schema, digest_file, read_json, write_json

FAMILY_SCHEMA = Schema(name="hwnas/family", version=1)
FAMILY_FILE = "family.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One model of a family.

    `file` is relative to the family's folder. `latency_ms` is what was measured when it was
    exported, else what the search predicted, else None; `measured` says which. `accuracy` is
    top-1 on held-out images: the network's on all those it was measured on, and what this file
    gained or lost against it on those that the export judged by. `budgets` are those of the
    search that it answers.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    file: str
    digest: str
    sha256: str
    size_bytes: int
    budgets: tuple[str, ...]
    accuracy: float
    latency_ms: float | None
    measured: bool
    precision: str
    promised: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """The members, fastest first, and the budget -> file table of the search's answers.

    `device` is the one that the latencies are of.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    space: str
    device: str
    budgets: dict[str, str]
    members: tuple[Member, ...]
    versions: dict[str, str]
    created: str


def write_family(folder: Path, family: Family) -> Path:
    """Write the manifest of a family to its folder; return the file."""
    path = folder / FAMILY_FILE
    write_json(path, FAMILY_SCHEMA, to_document(family))
    return path


def read_family(path: Path) -> Family:
    """Return the manifest of a family: the file, or the folder it is in."""
    path = Path(path)
    path = path / FAMILY_FILE if path.is_dir() else path
    family = from_document(Family, read_json(path, FAMILY_SCHEMA), str(path))
    files = {member.file for member in family.members}
    unknown = sorted(set(family.budgets.values()) - files)
    if not files or unknown:
        what = f"names {unknown[0]!r}, which is no member" if unknown else "has no members"
        raise FormatError(f"{path}: {what}", "export it anew: hwnas export --family")
    return family


def verify_family(path: Path) -> Family:
    """Return the family after comparing every file of every member with its manifests."""
    path = Path(path)
    folder = path if path.is_dir() else path.parent
    family = read_family(path)
    for member in family.members:
        verify((folder / member.file).parent)
        if digest_file(folder / member.file) != member.sha256:
            raise FormatError(f"{folder / member.file}: is not the file that the family names")
    return family


def choose_member(manifest: Family | Path | str, *, latency_ms: float) -> Member:
    """Return the most accurate member whose latency is at most `latency_ms`.

    `manifest` is a family, its folder or its file. Raises InfeasibleError naming the fastest
    member if there is none.
    """
    family = manifest if isinstance(manifest, Family) else read_family(Path(manifest))
    timed = [
        (member.latency_ms, member) for member in family.members if member.latency_ms is not None
    ]
    if not timed:
        raise UsageError(
            "the latencies of this family are not known", "export it anew where they are measured"
        )
    fitting = [(latency, member) for latency, member in timed if latency <= latency_ms]
    if not fitting:
        fastest, member = min(timed, key=lambda pair: pair[0])
        raise InfeasibleError(
            f"no member within {latency_ms:g} ms; the fastest, {member.file}, takes {fastest:.4g}",
            "allow more, or search for a smaller budget: hwnas search --latency ...",
        )
    # Of equally accurate ones the fastest.
    return max(fitting, key=lambda pair: (pair[1].accuracy, -pair[0]))[1]
