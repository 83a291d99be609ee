"""What a model file says about itself: the document under the key `hwnas` of its metadata.

Read without torch, onnx and the runtime, so that whoever gets the file alone can feed it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError
from hwnas.export.documents import STRICT, from_document, to_document
from hwnas.io import Schema, canonical_json, onnxwire, parse_json
from hwnas.io.preprocessing import Preprocessing

MODEL_SCHEMA = Schema(name="hwnas/model", version=1)
METADATA_KEY = "hwnas"

# What a graph takes: normalised planes, or the pixels of the cropped square as they are.
Input = Literal["float32 NCHW", "uint8 NHWC"]
PLANES: Input = "float32 NCHW"
PIXELS: Input = "uint8 NHWC"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelMetadata:
    """What a model takes, answers and is.

    With `input` "uint8 NHWC" the graph normalises and scales itself, and takes the square that
    `preprocessing.square` cuts; otherwise it takes what `preprocessing.normalise` makes of it.

    `arch` is the JSON of the architecture, `digest` its identity and `options` those of its
    space; `batch` is None where any batch size is accepted; `weights` is the SHA-256 of the
    subnet's weights file.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    preprocessing: Preprocessing
    input: Input
    classes: tuple[str, ...]
    arch: dict[str, Any]
    options: dict[str, Any]
    digest: str
    weights: str
    precision: str
    opset: int
    batch: int | None
    hwnas: str

    def as_props(self) -> dict[str, str]:
        """Return the entry to write into a model's metadata: canonical JSON under our key."""
        document = to_document(self)
        document["preprocessing"]["input"] = document.pop("input")
        return {METADATA_KEY: canonical_json(MODEL_SCHEMA.stamp(document))}

    def feed(self, squares: NDArray[np.uint8]) -> NDArray[Any]:
        """Return what the graph takes for cropped squares of pixels (N, crop, crop, channels)."""
        return squares if self.input == PIXELS else self.preprocessing.normalise(squares)


def metadata_from(texts: Mapping[str, str], origin: str) -> ModelMetadata | None:
    """Return what a model's metadata texts say, None if there is nothing of ours in them.

    The texts are those of `session.get_modelmeta().custom_metadata_map`, too.
    """
    if METADATA_KEY not in texts:
        return None
    document = parse_json(texts[METADATA_KEY], f"{origin}, metadata")
    document = MODEL_SCHEMA.check(document, f"{origin}, metadata")
    described = document.get("preprocessing")
    if isinstance(described, dict) and "input" in described:
        inner = {key: value for key, value in described.items() if key != "input"}
        document = {**document, "preprocessing": inner, "input": described["input"]}
    return from_document(ModelMetadata, document, f"{origin}, metadata")


def read_metadata(path: Path) -> ModelMetadata | None:
    """Return what the ONNX file says about itself, None if it is not one of ours."""
    return metadata_from(onnxwire.metadata(read_model(path)), str(path))


def read_model(path: Path) -> bytes:
    """Return the bytes of an ONNX file; raises FormatError if it cannot be one."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    try:
        if not onnxwire.opsets(content):
            raise FormatError("not an ONNX file: it names no set of operators")
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", "export it anew") from error
    return content
