"""The manifest of an exported model: what it is, where it comes from, and the hash of each file.

`verify` notices one changed byte and names the file. Nothing here needs torch or onnx.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from hwnas.errors import FormatError, GateError
from hwnas.export.documents import STRICT, from_document, to_document
from hwnas.export.metadata import Input, read_model
from hwnas.io import Schema, digest_file, onnxwire, read_json, write_json
from hwnas.io.preprocessing import Preprocessing

ARTIFACT_SCHEMA = Schema(name="hwnas/artifact", version=1)
MANIFEST_FILE = "manifest.json"
REFERENCE_FILE = "reference.safetensors"
VERDICT_FILE = "verdict.json"  # of whoever examined it since; in no manifest
_HINT = "export it anew: hwnas export"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileEntry:
    """What is known of a file of an artifact."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    sha256: str
    size_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEntry:
    """One model file: its form, and what was found when it was exported.

    `difference` is the largest one to the torch module's logits on the reference images, relative
    to the largest logit; `agreement` the share of held-out images with the module's answer;
    `accuracy` top-1 on these images. `latency` holds median_ms, p99_ms, threads, batch, grade,
    the device and the pace that they are told at, or is None if it was not measured.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    file: str
    precision: str
    opset: int
    batch: int | None
    difference: float
    agreement: float
    accuracy: float
    images: int
    latency: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What an artifact consists of. Paths are relative to its folder, with `/`.

    `supernet` and `data` say where the weights come from (as the subnet's card does); `weights`
    is the SHA-256 of the subnet's weights file; `promised` is what search foretold, `measured`
    what was found since of the file that is `recommended` on the device of the measurements.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    arch: dict[str, Any]
    options: dict[str, Any]
    digest: str
    weights: str
    supernet: dict[str, Any] | None
    data: dict[str, Any]
    preprocessing: Preprocessing
    input: Input
    classes: tuple[str, ...]
    models: tuple[ModelEntry, ...]
    recommended: str
    promised: dict[str, Any]
    measured: dict[str, Any]
    versions: dict[str, str]
    created: str
    files: dict[str, FileEntry] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return ARTIFACT_SCHEMA.stamp(to_document(self))

    def model(self, name: str) -> ModelEntry:
        """Return the entry of a model file."""
        for entry in self.models:
            if entry.file == name:
                return entry
        known = ", ".join(entry.file for entry in self.models)
        raise FormatError(f"the manifest has no model {name!r}; it has: {known}")


def hashed(folder: Path) -> dict[str, FileEntry]:
    """Return the entry of every file below `folder` except its manifest."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): _entry(path)
        for path in paths
        if path != folder / MANIFEST_FILE
    }


def _entry(path: Path) -> FileEntry:
    return FileEntry(sha256=digest_file(path), size_bytes=path.stat().st_size)


def write_manifest(folder: Path, manifest: Manifest) -> Path:
    """Write the manifest of the files that are in `folder` now; return its path."""
    content = to_document(manifest)
    content["files"] = {name: to_document(entry) for name, entry in hashed(folder).items()}
    path = folder / MANIFEST_FILE
    write_json(path, ARTIFACT_SCHEMA, content)
    return path


def read_manifest(path: Path) -> Manifest:
    """Return the manifest at `path`: the file, its folder, or a model beside it."""
    path = _manifest_path(Path(path))
    manifest = from_document(Manifest, read_json(path, ARTIFACT_SCHEMA), str(path))
    for name in manifest.files:
        _inside(path, name, f"{path}: files")
    return manifest


def files_of(folder: Path) -> set[Path]:
    """Return the files that the artifact in a folder consists of, with the verdict on it."""
    names = (MANIFEST_FILE, VERDICT_FILE, *read_manifest(folder).files)
    return {folder / name for name in names}


def verify(path: Path) -> Manifest:
    """Return the manifest after comparing every file with it.

    Raises GateError naming the files that are missing or changed, and FormatError if a model
    keeps tensors outside of the folder. Files that the manifest does not list are nobody's harm.
    """
    folder = _manifest_path(Path(path)).parent
    manifest = read_manifest(path)
    problems = list(_differences(folder, manifest))
    if problems:
        raise GateError(f"{folder}: {'; '.join(problems)}", _HINT)
    for entry in manifest.models:
        check_external_data(folder / entry.file)
    return manifest


def check_external_data(model: Path) -> set[Path]:
    """Return the files in which a model keeps tensors; raises FormatError if one is elsewhere.

    Whoever opens the model opens these files: none may be outside of the model's folder.
    """
    found = onnxwire.external_files(read_model(model))
    return {_inside(model, name, f"{model}: external data") for name in sorted(found)}


def _manifest_path(path: Path) -> Path:
    if path.is_dir():
        return path / MANIFEST_FILE
    return path if path.suffix == ".json" else path.parent / MANIFEST_FILE


def _inside(document: Path, name: str, origin: str) -> Path:
    """Return the path of a file that a document names; it must be below the document's folder.

    Where the document is a link, as in a cache of downloads, the file may lie where it leads to.
    """
    pure, folder = PurePosixPath(name.replace("\\", "/")), document.parent
    place = (folder / pure).resolve()
    allowed = (folder.resolve(), document.resolve().parent)
    if pure.is_absolute() or ":" in name or not any(map(place.is_relative_to, allowed)):
        raise FormatError(
            f"{origin}: {name!r} is outside of the folder; accepted: files in {folder}",
            "do not open this model: get it again from whoever exported it",
        )
    return folder / pure


def _differences(folder: Path, manifest: Manifest) -> Iterable[str]:
    for name, entry in manifest.files.items():
        if not (folder / name).is_file():
            yield f"{name} is missing"
        elif (found := _entry(folder / name)) != entry:
            yield f"{name} was changed (sha256 {found.sha256[:12]}, not {entry.sha256[:12]})"
    for model in manifest.models:
        if model.file not in manifest.files:
            yield f"{model.file} has no hash in the manifest"
