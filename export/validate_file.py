"""What a model file is before it runs: where it lies, what it holds, and whether it may be opened.

Reads bytes only; whoever opens a model with a runtime opens the files that it names.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.export.artifact import (
    MANIFEST_FILE,
    REFERENCE_FILE,
    Manifest,
    check_external_data,
    read_manifest,
    verify,
)
from hwnas.export.metadata import METADATA_KEY, read_model
from hwnas.export.validate_types import Gate, failed, listed, passed, skipped
from hwnas.io import is_ours, onnxwire

_STANDARD = ("", "ai.onnx", "ai.onnx.ml")
_OF_ONNX_RUNTIME = ("com.microsoft", "com.microsoft.nchwc")
_MODEL_GRAPH, _MODEL_FUNCTION = 7, 25
_GRAPH_NODE, _NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 1, 4, 5, 7
_ATTRIBUTE_GRAPHS = (6, 11)
_FUNCTION_NAME, _FUNCTION_NODE, _FUNCTION_DOMAIN = 1, 7, 10
_DEPTHS = ("", "*/", "artifacts/*/", "artifacts/family/*/", "family/*/")
_LFS = b"version https://git-lfs"

Operator = tuple[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A model file and what lies beside it."""

    model: Path
    manifest: Path | None
    reference: Path | None


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What the bytes of a model say."""

    sha256: str
    size_bytes: int
    opsets: Mapping[str, int]
    operators: Mapping[Operator, int]
    texts: Mapping[str, str]

    @property
    def opset(self) -> int | None:
        """The version of the standard operators."""
        return next((self.opsets[name] for name in _STANDARD[:2] if name in self.opsets), None)

    @property
    def foreign(self) -> bool:
        """Whether the file says nothing of itself as ours do, readable or not."""
        return METADATA_KEY not in self.texts


def locate(path: Path | str) -> Located:
    """Return the model that a path names: a file, or a folder with a manifest or one model."""
    path = Path(path)
    if path.is_dir():
        path = _model_in(path)
    elif not path.exists():
        raise UsageError(f"{path}: no such file or folder", _models_near(path.parent))
    beside = {name: path.parent / name for name in (MANIFEST_FILE, REFERENCE_FILE)}
    there = {name: place if place.is_file() else None for name, place in beside.items()}
    return Located(model=path, manifest=there[MANIFEST_FILE], reference=there[REFERENCE_FILE])


def _model_in(folder: Path) -> Path:
    if is_ours(folder / MANIFEST_FILE):
        return folder / read_manifest(folder).recommended
    models = sorted(folder.glob("*.onnx"))
    if len(models) == 1:
        return models[0]
    names = listed([model.name for model in models]) if models else "no ONNX file"
    raise UsageError(
        f"{folder} has no {MANIFEST_FILE} of ours and holds {names}", _models_near(folder)
    )


def _models_near(folder: Path) -> str:
    """Return what to name instead: models in a folder, those of a run or of a family, too."""
    places = [place for depth in _DEPTHS for place in sorted(folder.glob(f"{depth}*.onnx"))]
    if not places:
        return "name an ONNX file, or its folder; hwnas export writes one"
    return f"name one of: {listed([str(place) for place in places])}"


def read_facts(model: Path) -> FileFacts:
    """Return what the bytes of a model say; raises FormatError in one line if they are no model."""
    _refuse_what_is_no_model(model)
    content = read_model(model)
    try:
        return FileFacts(
            sha256=hashlib.sha256(content).hexdigest(),
            size_bytes=len(content),
            opsets=onnxwire.opsets(content),
            operators=dict(_operators(content)),
            texts=onnxwire.metadata(content),
        )
    except FormatError as error:
        raise FormatError(f"{model}: {error.message}", "export it anew") from error


def _refuse_what_is_no_model(model: Path) -> None:
    """Raise an error that says more than that the bytes make no sense."""
    if not model.is_file():
        raise FormatError(f"{model}: is no file")
    with model.open("rb") as file:
        start = file.read(1024)
    if not start:
        raise FormatError(f"{model}: is empty", "export it anew")
    if start.startswith(_LFS):
        raise FormatError(f"{model}: is a pointer of Git LFS, not the file", "git lfs pull")
    if start.isascii() and all(chr(byte).isprintable() or byte in b"\t\r\n" for byte in start):
        raise FormatError(f"{model}: is a text file; accepted: an ONNX model")


def external_gate(model: Path) -> tuple[Gate, int]:
    """Return whether all tensors are in the model's own folder, and the bytes they have there."""
    name = "external data"
    try:
        files = check_external_data(model)
    except RecursionError:
        return failed(name, f"{model}: its graphs are nested too deeply to be read"), 0
    except FormatError as error:
        return failed(name, error.message, hint=error.hint), 0
    missing = sorted(file.name for file in files if not file.is_file())
    if missing:
        reason = f"tensors are stored in files that are not there: {listed(missing)}"
        return failed(name, reason, hint="copy them into the folder of the model"), 0
    found = f"{len(files)} files in its folder" if files else "none"
    return passed(name, found), sum(file.stat().st_size for file in files)


def operators_gate(facts: FileFacts) -> Gate:
    """Return whether every runtime knows the operators."""
    domains = {domain for domain, _ in facts.operators}
    foreign = sorted(domains.difference(_STANDARD, _OF_ONNX_RUNTIME))
    if foreign:
        names = [f"{domain}.{kind}" for domain, kind in facts.operators if domain in foreign]
        return failed(
            "operators",
            f"custom operators {listed(sorted(names))}: a runtime cannot load them by itself",
            hint="export it with the operators of ONNX alone",
        )
    count = f"{sum(facts.operators.values())} nodes, opset {facts.opset}"
    own = [name for name in _OF_ONNX_RUNTIME if name in domains]
    only = f"operators of {own[0]}: it runs in ONNX Runtime alone" if own else ""
    return passed("operators", count, reason=only)


def hashes_gate(located: Located, *, foreign: bool) -> tuple[Gate, Manifest | None]:
    """Return whether the files are those of the manifest, and the manifest if it can be read.

    Beside a `foreign` model the manifest may be somebody else's, too.
    """
    name = "hashes"
    if located.manifest is None:
        return skipped(name, f"there is no {MANIFEST_FILE} beside {located.model.name}"), None
    if foreign and not is_ours(located.manifest):
        return skipped(
            name, f"the {MANIFEST_FILE} beside {located.model.name} is none of ours"
        ), None
    try:
        manifest = read_manifest(located.manifest)
    except HwnasError as error:
        return failed(name, error.message, hint=error.hint), None
    try:
        verify(located.manifest)
        manifest.model(located.model.name)
    except HwnasError as error:
        return failed(name, error.message, hint=error.hint), manifest
    return passed(name, f"{len(manifest.files)} files unchanged"), manifest


def _operators(model: bytes) -> Counter[Operator]:
    """Return how often each operator occurs, in all graphs and functions; "" is the standard.

    What the model defines itself, as a function of other operators, is no operator of its own.
    """
    found: Counter[Operator] = Counter()
    defined: set[Operator] = set()
    waiting: list[memoryview] = []
    for field in onnxwire.fields(memoryview(model)):
        if field.number == _MODEL_GRAPH:
            waiting += _parts(field.payload, _GRAPH_NODE)
        elif field.number == _MODEL_FUNCTION:
            waiting += _parts(field.payload, _FUNCTION_NODE)
            texts = {part.number: part for part in onnxwire.fields(field.payload)}
            defined.add(_named(texts, _FUNCTION_DOMAIN, _FUNCTION_NAME))
    while waiting:
        parts = list(onnxwire.fields(waiting.pop()))
        found[_named({part.number: part for part in parts}, _NODE_DOMAIN, _NODE_OPERATOR)] += 1
        for part in parts:
            if part.number == _NODE_ATTRIBUTE:
                for graph in _parts(part.payload, *_ATTRIBUTE_GRAPHS):
                    waiting += _parts(graph, _GRAPH_NODE)
    for operator in defined:
        found.pop(operator, None)
    return found


def _parts(message: memoryview, *numbers: int) -> Iterator[memoryview]:
    return (part.payload for part in onnxwire.fields(message) if part.number in numbers)


def _named(parts: Mapping[int, onnxwire.Field], domain: int, name: int) -> Operator:
    text = {number: parts[number].text for number in (domain, name) if number in parts}
    return text.get(domain, ""), text.get(name, "")
