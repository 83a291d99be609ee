"""ONNX model of a forest, written field by field.

The onnx package is not needed where one only predicts, and the few messages used here are
short: `TreeEnsembleRegressor` of ai.onnx.ml 1 with two outputs per row, the mean of the trees'
values and the mean of their squares. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hwnas.predictors.forest import Forest

_FLOAT, _INT, _STRING, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 6, 7, 8  # AttributeProto.Type
_TENSOR_OF_FLOAT = 1  # TensorProto.DataType


def tree_model(forest: Forest) -> bytes:
    """Return the serialised model: input `rows` (n, columns), output `sums` (n, 2)."""
    inner = forest.feature >= 0
    sizes = np.diff([*forest.roots, len(forest.feature)])
    tree = np.repeat(np.arange(len(sizes)), sizes)
    local = np.arange(len(tree)) - forest.roots[tree]
    leaf = np.flatnonzero(~inner)
    value = forest.value[leaf].astype(np.float64) / len(sizes)
    squares = forest.value[leaf].astype(np.float64) ** 2 / len(sizes)
    child = [np.where(inner, side - forest.roots[tree], 0) for side in (forest.left, forest.right)]
    attributes = [
        _attribute("n_targets", _INT, _varint_field(3, 2)),
        _attribute("aggregate_function", _STRING, _bytes_field(4, b"SUM")),
        _attribute("post_transform", _STRING, _bytes_field(4, b"NONE")),
        _integers("nodes_treeids", tree),
        _integers("nodes_nodeids", local),
        _integers("nodes_featureids", np.maximum(forest.feature, 0)),
        _floats("nodes_values", np.where(inner, forest.threshold, 0.0)),
        _strings("nodes_modes", (b"BRANCH_LEQ" if branch else b"LEAF" for branch in inner)),
        _integers("nodes_truenodeids", child[0]),
        _integers("nodes_falsenodeids", child[1]),
        _integers("target_treeids", np.repeat(tree[leaf], 2)),
        _integers("target_nodeids", np.repeat(local[leaf], 2)),
        _integers("target_ids", np.tile([0, 1], len(leaf))),
        _floats("target_weights", np.stack([value, squares], axis=1).ravel()),
    ]
    node = _bytes_field(1, b"rows") + _bytes_field(2, b"sums") + _bytes_field(3, b"forest")
    node += _bytes_field(4, b"TreeEnsembleRegressor")
    node += b"".join(_bytes_field(5, attribute) for attribute in attributes)
    node += _bytes_field(7, b"ai.onnx.ml")
    graph = _bytes_field(1, node) + _bytes_field(2, b"forest")
    graph += _bytes_field(11, _value_info(b"rows")) + _bytes_field(12, _value_info(b"sums"))
    versions = _opset(b"", 13) + _opset(b"ai.onnx.ml", 1)
    return _varint_field(1, 7) + _bytes_field(7, graph) + versions


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


def _varint_field(field: int, number: int) -> bytes:
    return _varint(field << 3) + _varint(number)


def _bytes_field(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _attribute(name: str, kind: int, content: bytes) -> bytes:
    return _bytes_field(1, name.encode()) + content + _varint_field(20, kind)


def _integers(name: str, numbers: NDArray[np.integer]) -> bytes:
    packed = b"".join(_varint(int(number)) for number in numbers)
    return _attribute(name, _INTS, _bytes_field(8, packed))


def _floats(name: str, numbers: NDArray[np.floating] | Sequence[float]) -> bytes:
    packed = np.asarray(numbers, dtype="<f4").tobytes()
    return _attribute(name, _FLOATS, _bytes_field(7, packed))


def _strings(name: str, words: Iterable[bytes]) -> bytes:
    return _attribute(name, _STRINGS, b"".join(_bytes_field(9, word) for word in words))


def _value_info(name: bytes) -> bytes:
    """Return a two-dimensional tensor of floats of any size."""
    dimension = _bytes_field(1, _bytes_field(2, b"n")) + _bytes_field(1, _bytes_field(2, b"m"))
    tensor = _varint_field(1, _TENSOR_OF_FLOAT) + _bytes_field(2, dimension)
    return _bytes_field(1, name) + _bytes_field(2, _bytes_field(1, tensor))


def _opset(domain: bytes, version: int) -> bytes:
    return _bytes_field(8, _bytes_field(1, domain) + _varint_field(2, version))
