"""Take ONNX files apart and put them together without the onnx package.

A device that profiles packs has numpy and a runtime only. Just enough of the protobuf encoding is
read to find the initialisers; every other byte is passed through unchanged. Joining relies on a
rule of the encoding: two serialised messages in a row are their merge, repeated fields appended.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError

VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS = {_FIXED64: 8, _FIXED32: 4}

_MODEL_GRAPH, _MODEL_OPSET, _MODEL_METADATA, _MODEL_FUNCTION = 7, 8, 14, 25
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_NODE_INPUT, _NODE_OUTPUT, _NODE_NAME, _NODE_OPERATOR, _NODE_ATTRIBUTE = 1, 2, 3, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3
_ATTRIBUTE_TENSORS, _ATTRIBUTE_GRAPHS, _ATTRIBUTE_SPARSE = (5, 10), (6, 11), (22, 23)
_GRAPH_SPARSE, _SPARSE_TENSORS = 15, (1, 2)
_FUNCTION_NODE, _ENTRY_KEY, _ENTRY_VALUE = 7, 1, 2
_DIMS, _TYPE, _FLOATS, _NAME, _RAW, _EXTERNAL, _LOCATION = 1, 2, 4, 8, 9, 13, 14

# TensorProto.DataType of the types that weights come in.
FLOAT, UINT8, INT8, FLOAT16, BFLOAT16 = 1, 2, 3, 10, 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Tensor:
    """An initialiser. `raw` are its little-endian bytes, None if it is stored in another way."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    raw: bytes | None
    external: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """Where an initialiser is consumed: operator, position, and Gemm's transB."""

    operator: str
    position: int
    transposed: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One field of a message: its number, its value, and all its bytes including the tag."""

    number: int
    value: int | memoryview
    encoded: memoryview

    @property
    def payload(self) -> memoryview:
        """The value of a length-delimited field."""
        if isinstance(self.value, int):
            raise FormatError(f"not an ONNX file: field {self.number} has an unexpected type")
        return self.value

    @property
    def text(self) -> str:
        """The value of a string field."""
        try:
            return bytes(self.payload).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"not an ONNX file: field {self.number} is no text") from error

    @property
    def integer(self) -> int:
        """The value of an integer field."""
        if not isinstance(self.value, int):
            raise FormatError(f"not an ONNX file: field {self.number} has an unexpected type")
        return self.value


def fields(message: memoryview) -> Iterator[Field]:
    """Yield the fields of a serialised message in order."""
    at = 0
    while at < len(message):
        start = at
        head, at = _varint(message, at)
        number, kind = head >> 3, head & 7
        value: int | memoryview
        if kind == VARINT:
            value, at = _varint(message, at)
        else:
            length, at = _length(message, at, kind)
            value = message[at : at + length]
            at += length
            if at > len(message):
                raise FormatError("not an ONNX file, or cut off: a field ends beyond the file")
        yield Field(number=number, value=value, encoded=message[start:at])


def graph_fields(model: bytes) -> Iterator[Field]:
    """Yield the fields of the main graph in order."""
    for graph in _graphs(model):
        yield from fields(graph)


def initializers(model: bytes) -> list[Tensor]:
    """Return the initialisers of the main graph."""
    return [
        read_tensor(field.payload)
        for field in graph_fields(model)
        if field.number == _GRAPH_INITIALIZER
    ]


def uses(model: bytes) -> dict[str, Use]:
    """Return for each value of the main graph the first node that consumes it."""
    first: dict[str, Use] = {}
    for field in graph_fields(model):
        if field.number == _GRAPH_NODE:
            for name, use in _uses_of_node(field.payload):
                first.setdefault(name, use)
    return first


def nodes(model: bytes) -> list[tuple[str, list[str]]]:
    """Return the name and the outputs of each node of the main graph."""
    found = []
    for field in graph_fields(model):
        if field.number == _GRAPH_NODE:
            parts = list(fields(field.payload))
            name = next((part.text for part in parts if part.number == _NODE_NAME), "")
            found.append((name, [part.text for part in parts if part.number == _NODE_OUTPUT]))
    return found


def metadata(model: bytes) -> dict[str, str]:
    """Return the texts that a model carries about itself."""
    return dict(
        _entry(field.payload)
        for field in fields(memoryview(model))
        if field.number == _MODEL_METADATA
    )


def opsets(model: bytes) -> dict[str, int]:
    """Return the version of each domain of operators; "" is the standard's."""
    found = {}
    for field in fields(memoryview(model)):
        if field.number == _MODEL_OPSET:
            parts = {part.number: part for part in fields(field.payload)}
            domain = parts[_ENTRY_KEY].text if _ENTRY_KEY in parts else ""
            version = parts[_ENTRY_VALUE].integer if _ENTRY_VALUE in parts else 0
            found[domain] = version
    return found


def external_files(model: bytes) -> set[str]:
    """Return the files that tensors say they are stored in, wherever in the model they are."""
    found: set[str] = set()
    for graph in _graphs(model):
        found |= _external_in_graph(graph)
    for field in fields(memoryview(model)):
        if field.number == _MODEL_FUNCTION:
            for part in fields(field.payload):
                if part.number == _FUNCTION_NODE:
                    found |= _external_in_node(part.payload)
    return found


def _external_in_graph(graph: memoryview) -> set[str]:
    found: set[str] = set()
    for field in fields(graph):
        if field.number == _GRAPH_INITIALIZER:
            found |= _external_in_tensor(field.payload)
        elif field.number == _GRAPH_NODE:
            found |= _external_in_node(field.payload)
        elif field.number == _GRAPH_SPARSE:
            found |= _external_in_sparse(field.payload)
    return found


def _external_in_node(node: memoryview) -> set[str]:
    found: set[str] = set()
    for field in fields(node):
        if field.number != _NODE_ATTRIBUTE:
            continue
        for part in fields(field.payload):
            if part.number in _ATTRIBUTE_TENSORS:
                found |= _external_in_tensor(part.payload)
            elif part.number in _ATTRIBUTE_GRAPHS:
                found |= _external_in_graph(part.payload)
            elif part.number in _ATTRIBUTE_SPARSE:
                found |= _external_in_sparse(part.payload)
    return found


def _external_in_sparse(tensor: memoryview) -> set[str]:
    parts = [part.payload for part in fields(tensor) if part.number in _SPARSE_TENSORS]
    return set().union(*map(_external_in_tensor, parts))


def _external_in_tensor(tensor: memoryview) -> set[str]:
    entries = [_entry(field.payload) for field in fields(tensor) if field.number == _EXTERNAL]
    return {value for key, value in entries if key == "location"}


def _entry(message: memoryview) -> tuple[str, str]:
    texts = {field.number: field.text for field in fields(message)}
    return texts.get(_ENTRY_KEY, ""), texts.get(_ENTRY_VALUE, "")


def without(model: bytes, names: set[str]) -> bytes:
    """Return the model without the named initialisers, otherwise unchanged."""
    parts = []
    for field in fields(memoryview(model)):
        if field.number != _MODEL_GRAPH:
            parts.append(bytes(field.encoded))
            continue
        kept = b"".join(
            bytes(part.encoded)
            for part in fields(field.payload)
            if part.number != _GRAPH_INITIALIZER or read_tensor(part.payload).name not in names
        )
        parts.append(delimited(_MODEL_GRAPH, kept))
    return b"".join(parts)


def with_tensors(skeleton: bytes, tensors: Iterable[Tensor]) -> bytes:
    """Return the model with initialisers added."""
    added = [delimited(_GRAPH_INITIALIZER, _encoded_tensor(tensor)) for tensor in tensors]
    head = tag(_MODEL_GRAPH, _BYTES) + encoded_varint(sum(map(len, added)))
    return b"".join([skeleton, head, *added])


def read_tensor(message: memoryview) -> Tensor:
    """Return the TensorProto in `message`."""
    name, dtype, raw, external = "", 0, None, False
    shape: list[int] = []
    for field in fields(message):
        if field.number == _DIMS:
            shape += [field.value] if isinstance(field.value, int) else _packed(field.payload)
        elif field.number == _TYPE:
            dtype = field.integer
        elif field.number == _NAME:
            name = field.text
        elif field.number == _RAW or (field.number == _FLOATS and not isinstance(field.value, int)):
            raw = bytes(field.payload)
        elif field.number == _LOCATION:
            external = field.integer == 1
    return Tensor(name=name, dtype=dtype, shape=tuple(shape), raw=raw, external=external)


def floats(tensor: Tensor) -> NDArray[np.float32] | None:
    """Return the values of a floating point tensor as float32, None for other types."""
    if tensor.raw is None:
        return None
    if tensor.dtype == FLOAT:
        return np.frombuffer(tensor.raw, "<f4").astype(np.float32, copy=False)
    if tensor.dtype == FLOAT16:
        return np.frombuffer(tensor.raw, "<f2").astype(np.float32)
    if tensor.dtype == BFLOAT16:
        return (np.frombuffer(tensor.raw, "<u2").astype(np.uint32) << 16).view(np.float32)
    return None


def _graphs(model: bytes) -> list[memoryview]:
    found = [field.payload for field in fields(memoryview(model)) if field.number == _MODEL_GRAPH]
    if not found:
        raise FormatError("not an ONNX file: there is no graph in it")
    return found


def _uses_of_node(node: memoryview) -> list[tuple[str, Use]]:
    names, operator, transposed = [], "", False
    for field in fields(node):
        if field.number == _NODE_INPUT:
            names.append(field.text)
        elif field.number == _NODE_OPERATOR:
            operator = field.text
        elif field.number == _NODE_ATTRIBUTE:
            transposed = transposed or _is_set(field.payload, "transB")
    return [
        (name, Use(operator=operator, position=position, transposed=transposed))
        for position, name in enumerate(names)
    ]


def _is_set(attribute: memoryview, name: str) -> bool:
    parts = list(fields(attribute))
    named = any(part.number == _ATTRIBUTE_NAME and part.text == name for part in parts)
    return named and any(part.number == _ATTRIBUTE_INT and part.integer == 1 for part in parts)


def _encoded_tensor(tensor: Tensor) -> bytes:
    assert tensor.raw is not None
    dims = b"".join(tag(_DIMS, VARINT) + encoded_varint(size) for size in tensor.shape)
    kind = tag(_TYPE, VARINT) + encoded_varint(tensor.dtype)
    name = delimited(_NAME, tensor.name.encode())
    return dims + kind + name + delimited(_RAW, tensor.raw)


def delimited(number: int, payload: bytes) -> bytes:
    """Return a field of bytes, text or a message."""
    return tag(number, _BYTES) + encoded_varint(len(payload)) + payload


def tag(number: int, kind: int) -> bytes:
    """Return what precedes the value of a field."""
    return encoded_varint(number << 3 | kind)


def encoded_varint(value: int) -> bytes:
    """Return a non-negative integer in base 128, least significant digits first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _packed(payload: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(payload):
        value, at = _varint(payload, at)
        values.append(value)
    return values


def _length(message: memoryview, at: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _varint(message, at)
    if kind in _WIDTHS:
        return _WIDTHS[kind], at
    raise FormatError(f"not an ONNX file: wire type {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        if at >= len(message) or shift > 63:
            raise FormatError("not an ONNX file, or cut off: a number is not complete")
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
