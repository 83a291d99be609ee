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

from hwnas.io.onnxwire import FLOAT, VARINT, delimited, encoded_varint, tag

if TYPE_CHECKING:
    from hwnas.predictors.forest import Forest

_FLOAT, _INT, _STRING, _FLOATS, _INTS, _STRINGS = 1, 2, 3, 6, 7, 8  # AttributeProto.Type


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
        _attribute("n_targets", _INT, _integer_field(3, 2)),
        _attribute("aggregate_function", _STRING, delimited(4, b"SUM")),
        _attribute("post_transform", _STRING, delimited(4, b"NONE")),
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
    node = delimited(1, b"rows") + delimited(2, b"sums") + delimited(3, b"forest")
    node += delimited(4, b"TreeEnsembleRegressor")
    node += b"".join(delimited(5, attribute) for attribute in attributes)
    node += delimited(7, b"ai.onnx.ml")
    graph = delimited(1, node) + delimited(2, b"forest")
    graph += delimited(11, _value_info(b"rows")) + delimited(12, _value_info(b"sums"))
    versions = _opset(b"", 13) + _opset(b"ai.onnx.ml", 1)
    return _integer_field(1, 7) + delimited(7, graph) + versions


def _integer_field(field: int, number: int) -> bytes:
    return tag(field, VARINT) + encoded_varint(number)


def _attribute(name: str, kind: int, content: bytes) -> bytes:
    return delimited(1, name.encode()) + content + _integer_field(20, kind)


def _integers(name: str, numbers: NDArray[np.integer]) -> bytes:
    packed = b"".join(encoded_varint(int(number)) for number in numbers)
    return _attribute(name, _INTS, delimited(8, packed))


def _floats(name: str, numbers: NDArray[np.floating] | Sequence[float]) -> bytes:
    packed = np.asarray(numbers, dtype="<f4").tobytes()
    return _attribute(name, _FLOATS, delimited(7, packed))


def _strings(name: str, words: Iterable[bytes]) -> bytes:
    return _attribute(name, _STRINGS, b"".join(delimited(9, word) for word in words))


def _value_info(name: bytes) -> bytes:
    """Return a two-dimensional tensor of floats of any size."""
    dimension = delimited(1, delimited(2, b"n")) + delimited(1, delimited(2, b"m"))
    tensor = _integer_field(1, FLOAT) + delimited(2, dimension)
    return delimited(1, name) + delimited(2, delimited(1, tensor))


def _opset(domain: bytes, version: int) -> bytes:
    return delimited(8, delimited(1, domain) + _integer_field(2, version))
