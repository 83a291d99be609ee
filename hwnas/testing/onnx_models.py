"""Small ONNX models for tests and benchmarks, with nodes called "<block>/<operator>"."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.profiling.records import ArchJson, Settings

Attributes = dict[str, Any]


def conv_stack(*, width: int = 16, depth: int = 2, size: int = 12, seed: int = 0) -> bytes:
    """Return a serialised stack of convolutions with swish and a linear head, free batch size.

    Width 96, depth 6 and size 28 take some milliseconds.
    """
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(seed)
    weights, nodes = [], []

    def weight(name: str, shape: tuple[int, ...]) -> str:
        scale = 1 / math.sqrt(max(math.prod(shape[1:]), 4))
        values = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    def node(name: str, kind: str, inputs: list[str], output: str, attributes: Attributes) -> None:
        nodes.append(helper.make_node(kind, inputs, [output], name=name, **attributes))

    value, channels = "images", 3
    for i in range(depth):
        kernel = weight(f"b{i}.weight", (width, channels, 3, 3))
        shift = weight(f"b{i}.bias", (width,))
        node(f"block{i}/conv", "Conv", [value, kernel, shift], f"c{i}", {"pads": [1, 1, 1, 1]})
        node(f"block{i}/gate", "Sigmoid", [f"c{i}"], f"s{i}", {})
        node(f"block{i}/mul", "Mul", [f"c{i}", f"s{i}"], f"a{i}", {})
        value, channels = f"a{i}", width
    node("head/pool", "GlobalAveragePool", [value], "pooled", {})
    node("head/flatten", "Flatten", ["pooled"], "flat", {})
    head = ["flat", weight("head.weight", (10, width)), weight("head.bias", (10,))]
    node("head/linear", "Gemm", head, "logits", {"transB": 1})
    graph = helper.make_graph(
        nodes,
        "conv_stack",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, size, size])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        weights,
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())


def mean_colours(
    taken: Sequence[int | str],
    given: Sequence[int | str] | None,
    *,
    weight: NDArray[np.float32] | None = None,
    pixels: bool = False,
) -> bytes:
    """Return a model that multiplies an image's mean colours (N, C) by a weight (C, classes).

    Input and output have the dimensions as they are given, whatever they say. With `pixels` the
    input is of bytes; without a `weight` the model answers with the colours.
    """
    from onnx import TensorProto, helper, numpy_helper

    weight = np.eye(3, dtype=np.float32) if weight is None else weight
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["numbers"], ["colours"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["colours", "weight"], ["logits"]),
    ]
    kind = TensorProto.UINT8 if pixels else TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "mean_colours",
        [helper.make_tensor_value_info("images", kind, taken)],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, given)],
        [numpy_helper.from_array(weight, "weight")],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return bytes(model.SerializeToString())


def write_conv_stack(path: Path, *, width: int = 16, depth: int = 2, size: int = 12) -> Path:
    """Write a `conv_stack` to `path` and return it."""
    path.write_bytes(conv_stack(width=width, depth=depth, size=size))
    return path


def toy_arch(width: int) -> dict[str, Any]:
    """Return the document of an architecture whose network is a `conv_stack` of this width."""
    return {"space": "toy", "genes": {"width": width}, "digest": f"{width:064d}"}


TOY_ARCHS = [toy_arch(width) for width in range(4, 15)]


def provide_toy(arch: ArchJson, settings: Settings) -> bytes:
    """Return the model of a toy architecture, as `profile` asks for it."""
    return conv_stack(width=int(arch["genes"]["width"]))
