"""Packs: one file that carries many models to a device that has neither torch nor onnx.

A pack is a zip file: `manifest.json`, and for each model its ONNX graph without the large weights,
and the recipe for stand-ins (see `weights`). Graphs and recipes are stored under their SHA-256, so
equal ones are stored once, and the manifest holds the SHA-256 of the rebuilt model: what a device
measures is the same file, byte for byte, everywhere. Nothing in a pack is executed.
"""

import hashlib
import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hwnas.errors import AbsentError, FormatError
from hwnas.io import Schema, canonical_json, onnxwire, parse_json, write_atomic
from hwnas.profiling.graphs import graph_digest
from hwnas.profiling.records import ArchJson, Settings, arch_digest, network_of
from hwnas.profiling.weights import Spec, describe, generate

SCHEMA = Schema(name="hwnas/pack", version=1)
_MANIFEST = "manifest.json"
_LARGEST_ENTRY = 512 * 2**20
_MOST_WEIGHTS = 2**29  # an ONNX file has at most 2 GB
_MODEL_FIELDS = ("arch", "precision", "graph", "weights", "sha256")


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A model to pack: its architecture, its precision and its serialised ONNX file."""

    arch: ArchJson
    precision: str = "fp32"
    onnx: bytes = field(repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedModel:
    """A model in a pack. `graph` and `weights` name entries, `sha256` is of the rebuilt file."""

    arch: dict[str, Any]
    precision: str
    graph: str
    weights: str
    sha256: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """An opened pack. `about` is free text or settings of whoever made it."""

    path: Path
    models: tuple[PackedModel, ...]
    about: dict[str, Any]

    def find(self, arch: ArchJson, precision: str) -> PackedModel | None:
        """Return the model of an architecture and precision, None if the pack has none."""
        wanted = network_of(arch)
        for model in self.models:
            if model.precision == precision and network_of(model.arch) == wanted:
                return model
        return None

    def archs(self) -> list[dict[str, Any]]:
        """Return the architectures in the pack, each once."""
        return list({network_of(model.arch): model.arch for model in self.models}.values())


def write_pack(
    path: Path, models: Iterable[Model], *, about: dict[str, Any] | None = None
) -> tuple[PackedModel, ...]:
    """Write the models to one file, atomically, and return what the pack holds.

    `models` is consumed one by one, so they need not be in memory together. Equal input gives an
    equal file.
    """
    packed: list[PackedModel] = []

    def write(target: Path) -> None:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            written: set[str] = set()
            for model in models:
                packed.append(_add_model(archive, model, written))
            content = {"models": [asdict(model) for model in packed], "about": about or {}}
            _add_entry(archive, _MANIFEST, canonical_json(SCHEMA.stamp(content)).encode())

    write_atomic(Path(path), write)
    return tuple(packed)


def read_pack(path: Path) -> Pack:
    """Return the pack in `path`. Raises FormatError for damaged, foreign and newer files."""
    path = Path(path)
    with _opened(path) as archive:
        manifest = _read_entry(archive, _MANIFEST, path)
    document = SCHEMA.check(parse_json(manifest, f"{path}, manifest"), str(path))
    entries, about = document.get("models"), document.get("about") or {}
    if not isinstance(entries, list) or not entries:
        raise FormatError(f"{path}: the manifest lists no models")
    if not isinstance(about, dict):
        raise FormatError(f"{path}: `about` in the manifest is {about!r}, expected an object")
    models = tuple(_packed_model(entry, path) for entry in entries)
    return Pack(path=path, models=models, about=about)


def build_model(pack: Pack, model: PackedModel) -> bytes:
    """Return the ONNX file of a packed model with its weights generated.

    Raises FormatError if anything in it differs from what was packed.
    """
    with _opened(pack.path) as archive:
        graph = _checked_entry(archive, model.graph, pack.path)
        recipe = _checked_entry(archive, model.weights, pack.path)
    built = _with_weights(graph, _specs(recipe, pack.path))
    found = hashlib.sha256(built).hexdigest()
    if found != model.sha256:
        raise FormatError(
            f"{pack.path}: model {arch_digest(model.arch)[:12]} is rebuilt as {found[:12]}, "
            f"expected {model.sha256[:12]}"
        )
    return built


class PackProvider:
    """Makes the models of a pack for `driver.profile`; the last one is kept for other settings."""

    def __init__(self, pack: Pack) -> None:
        self._pack = pack
        self._last: tuple[PackedModel, bytes] | None = None

    def __call__(self, arch: ArchJson, settings: Settings) -> bytes:
        """Return the ONNX file of an architecture; runtimes make bf16 of the fp32 model."""
        model = self._model(arch, settings)
        if self._last is None or self._last[0] != model:
            self._last = (model, build_model(self._pack, model))
        return self._last[1]

    def graph(self, arch: ArchJson, settings: Settings) -> str:
        """Return the digest of the graph of an architecture's model, which is not built for it."""
        model = self._model(arch, settings)
        with _opened(self._pack.path) as archive:
            graph = _checked_entry(archive, model.graph, self._pack.path)
            recipe = _checked_entry(archive, model.weights, self._pack.path)
        return graph_digest(graph, _specs(recipe, self._pack.path))

    def _model(self, arch: ArchJson, settings: Settings) -> PackedModel:
        precision = "fp32" if settings.precision == "bf16" else settings.precision
        model = self._pack.find(arch, precision)
        if model is None:
            there = sorted({model.precision for model in self._pack.models})
            raise FormatError(
                f"{self._pack.path}: no {precision} model of {arch_digest(arch)[:12]}; "
                f"precisions in the pack: {', '.join(there)}"
            )
        return model


def check_pack(pack: Pack) -> None:
    """Rebuild every model of a pack; raises FormatError for the first that is damaged."""
    for model in pack.models:
        build_model(pack, model)


def stand_in(onnx: bytes) -> bytes:
    """Return the model as a device would rebuild it from a pack: same graph, generated weights."""
    graph, specs = _split(onnx)
    return _with_weights(graph, specs)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, ValueError) as error:
        raise FormatError(f"{path}: not a pack, or cut off ({error})") from error
    except FileNotFoundError as error:
        raise AbsentError(f"{path}: no such file") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror or error})") from error


def _split(onnx: bytes) -> tuple[bytes, list[Spec]]:
    consumers = onnxwire.uses(onnx)
    specs = []
    for tensor in onnxwire.initializers(onnx):
        if tensor.external:
            raise FormatError(
                f"weight {tensor.name!r} is stored outside the ONNX file",
                "save the model with its weights inside the file",
            )
        spec = describe(tensor, consumers.get(tensor.name))
        if spec is not None:
            specs.append(spec)
    return onnxwire.without(onnx, {spec.name for spec in specs}), specs


def _with_weights(graph: bytes, specs: Iterable[Spec]) -> bytes:
    return onnxwire.with_tensors(graph, (generate(spec) for spec in specs))


def _add_model(archive: zipfile.ZipFile, model: Model, written: set[str]) -> PackedModel:
    graph, specs = _split(model.onnx)
    recipe = canonical_json([asdict(spec) for spec in specs]).encode()
    names = []
    for content in (graph, recipe):
        name = hashlib.sha256(content).hexdigest()
        if name not in written:
            _add_entry(archive, name, content)
            written.add(name)
        names.append(name)
    return PackedModel(
        arch=dict(model.arch),
        precision=model.precision,
        graph=names[0],
        weights=names[1],
        sha256=hashlib.sha256(_with_weights(graph, specs)).hexdigest(),
    )


def _add_entry(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Without a date, so that equal content gives an equal file.
    entry = zipfile.ZipInfo(name)
    entry.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(entry, content)


def _read_entry(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    try:
        if archive.getinfo(name).file_size > _LARGEST_ENTRY:
            raise FormatError(f"{path}: entry {name[:12]} is too large to be a graph")
        return archive.read(name)
    except KeyError as error:
        raise FormatError(f"{path}: not a pack, there is no {name[:13]} in it") from error
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError) as error:
        # A RuntimeError: encrypted, or compressed in a way that this Python does not know.
        raise FormatError(f"{path}: entry {name[:13]} is damaged ({error})") from error


def _checked_entry(archive: zipfile.ZipFile, name: str, path: Path) -> bytes:
    content = _read_entry(archive, name, path)
    if hashlib.sha256(content).hexdigest() != name:
        raise FormatError(f"{path}: entry {name[:12]} is damaged (its SHA-256 differs)")
    return content


def _packed_model(entry: object, path: Path) -> PackedModel:
    if not isinstance(entry, dict) or sorted(entry) != sorted(_MODEL_FIELDS):
        raise FormatError(f"{path}: a model in the manifest has other fields than {_MODEL_FIELDS}")
    if not isinstance(entry["arch"], dict) or not all(
        isinstance(entry[name], str) for name in _MODEL_FIELDS[1:]
    ):
        raise FormatError(f"{path}: a model in the manifest has a field of the wrong type")
    return PackedModel(**{name: entry[name] for name in _MODEL_FIELDS})


def _specs(recipe: bytes, path: Path) -> list[Spec]:
    items = parse_json(recipe, f"{path}, a weight recipe")
    try:
        specs = [Spec(**{**item, "shape": tuple(item["shape"])}) for item in items]
        sizes = [_size(spec) for spec in specs]
    except (TypeError, KeyError) as error:
        raise FormatError(f"{path}: a weight recipe cannot be read ({error})") from error
    if sum(sizes) > _MOST_WEIGHTS:
        raise FormatError(f"{path}: a weight recipe asks for {sum(sizes)} numbers, too many")
    return specs


def _size(spec: Spec) -> int:
    if not isinstance(spec.name, str) or not isinstance(spec.scale, int | float):
        raise TypeError(f"name {spec.name!r}, scale {spec.scale!r}")
    if any(type(size) is not int or size < 0 for size in (*spec.shape, spec.dtype)):
        raise TypeError(f"shape {spec.shape!r}, type {spec.dtype!r}")
    return math.prod(spec.shape)
