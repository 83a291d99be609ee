"""Write small ONNX models without the onnx package, which a device does not have.

Messages are bytes; field numbers are those of onnx.proto. What carries weights is added with
`onnxwire.with_tensors`.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hwnas.io.onnxwire import FLOAT, VARINT, delimited, encoded_varint, tag

_INT, _STRING, _FLOATS, _INTS, _STRINGS = 2, 3, 6, 7, 8  # AttributeProto.AttributeType


def integer(name: str, value: int) -> bytes:
    """Return an attribute that is a non-negative integer."""
    return _attribute(name, _INT, _integer_field(3, value))


def text(name: str, value: str) -> bytes:
    """Return an attribute that is a text."""
    return _attribute(name, _STRING, delimited(4, value.encode()))


def integers(name: str, values: Iterable[int]) -> bytes:
    """Return an attribute that is a list of non-negative integers."""
    packed = b"".join(encoded_varint(int(value)) for value in values)
    return _attribute(name, _INTS, delimited(8, packed))


def floats(name: str, values: NDArray[np.floating] | Sequence[float]) -> bytes:
    """Return an attribute that is a list of numbers."""
    return _attribute(name, _FLOATS, delimited(7, np.asarray(values, dtype="<f4").tobytes()))


def texts(name: str, values: Iterable[str]) -> bytes:
    """Return an attribute that is a list of texts."""
    return _attribute(name, _STRINGS, b"".join(delimited(9, value.encode()) for value in values))


def node(
    operator: str,
    name: str,
    *,
    inputs: Iterable[str],
    output: str,
    attributes: Iterable[bytes] = (),
    domain: str = "",
) -> bytes:
    """Return a node with one output."""
    content = b"".join(delimited(1, value.encode()) for value in inputs)
    content += delimited(2, output.encode()) + delimited(3, name.encode())
    content += delimited(4, operator.encode())
    content += b"".join(delimited(5, attribute) for attribute in attributes)
    return content + (delimited(7, domain.encode()) if domain else b"")


def value(name: str, shape: Iterable[int | str]) -> bytes:
    """Return an input or output of floats; a size may be a name, for any size."""
    sizes = b"".join(delimited(1, _size(size)) for size in shape)
    kind = delimited(1, _integer_field(1, FLOAT) + delimited(2, sizes))
    return delimited(1, name.encode()) + delimited(2, kind)


def model(
    name: str,
    nodes: Iterable[bytes],
    *,
    inputs: Iterable[bytes],
    outputs: Iterable[bytes],
    opsets: Mapping[str, int],
    ir_version: int,
) -> bytes:
    """Return the file of a model. `opsets`: the version of each domain of operators."""
    graph = b"".join(delimited(1, one) for one in nodes) + delimited(2, name.encode())
    graph += b"".join(delimited(11, one) for one in inputs)
    graph += b"".join(delimited(12, one) for one in outputs)
    versions = b"".join(
        delimited(8, delimited(1, domain.encode()) + _integer_field(2, version))
        for domain, version in opsets.items()
    )
    return _integer_field(1, ir_version) + delimited(7, graph) + versions


def _size(size: int | str) -> bytes:
    return delimited(2, size.encode()) if isinstance(size, str) else _integer_field(1, size)


def _attribute(name: str, kind: int, content: bytes) -> bytes:
    return delimited(1, name.encode()) + content + _integer_field(20, kind)


def _integer_field(number: int, content: int) -> bytes:
    return tag(number, VARINT) + encoded_varint(content)
