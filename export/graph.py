"""A small builder of ONNX graphs: nodes and constants as plain values, written out at the end.

Nodes are named `<slot>/<operation>`, so that a runtime's per-node timings add up per block.
Only `to_model_bytes` needs the `onnx` package; nothing here needs torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import MissingPackageError, UsageError
from hwnas.export.weights import Floats, Weights

if TYPE_CHECKING:
    import onnx

# LayerNormalization came with 17; the forms used here mean the same in all of these.
OPSET = 17
OPSETS = range(17, 23)

Linears = Literal["convolution", "product"]
Dim = int | str
Attribute = int | float | str | Sequence[int]
Array = NDArray[np.float32] | NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """One operation with one output, which is named as the node unless it is the graph's."""

    operator: str
    name: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute]


@dataclass(frozen=True, slots=True)
class Value:
    """An input or output of the graph."""

    name: str
    shape: tuple[Dim, ...]
    dtype: str = "float32"


@dataclass(kw_only=True)
class Graph:
    """A graph under construction. `linears`: the form that linear layers are written in."""

    linears: Linears = "convolution"
    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    outputs: list[Value] = field(default_factory=list)

    def finish(self, last: str, output: Value) -> None:
        """Make `last`, the output of the last node, the output of the graph."""
        node = self.nodes.pop()
        assert node.output == last, f"{last} is not what the last node writes"
        self.nodes.append(replace(node, output=output.name))
        self.outputs.append(output)

    def store(self, name: str, array: Array) -> str:
        """Add a constant and return its name."""
        assert name not in self.constants, f"constant {name} is stored twice"
        self.constants[name] = array
        return name

    def shared(self, name: str, array: Array) -> str:
        """Store a constant that many nodes read, once; equal names mean equal values."""
        self.constants.setdefault(name, array)
        return name

    def integers(self, values: Iterable[int]) -> str:
        """Return the name of a constant list of integers; equal lists are stored once."""
        array = np.array(list(values), np.int64)
        return self.shared("integers/" + "_".join(str(value) for value in array), array)

    def ones(self, count: int) -> str:
        """Return the name of a constant vector of ones."""
        return self.shared(f"ones/{count}", np.ones(count, np.float32))

    def zeros(self, count: int) -> str:
        """Return the name of a constant vector of zeros."""
        return self.shared(f"zeros/{count}", np.zeros(count, np.float32))


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Where one block is written: its nodes and constants are named `<slot>/...`."""

    graph: Graph
    slot: str
    weights: Weights

    def node(self, operator: str, name: str, *inputs: str, **attributes: Attribute) -> str:
        """Append a node and return the name of its output; attributes are the operator's."""
        full = f"{self.slot}/{name}"
        node = Node(operator=operator, name=full, inputs=inputs, output=full, attributes=attributes)
        self.graph.nodes.append(node)
        return full

    def constant(self, name: str, array: Floats) -> str:
        """Store a constant of this block and return its name."""
        return self.graph.store(f"{self.slot}/{name}", np.ascontiguousarray(array, np.float32))

    def reshape(self, name: str, x: str, *shape: int) -> str:
        """Append a Reshape; 0 keeps a dimension, -1 takes what is left."""
        return self.node("Reshape", name, x, self.graph.integers(shape))

    def transpose(self, name: str, x: str, *order: int) -> str:
        """Append a Transpose."""
        return self.node("Transpose", name, x, perm=order)


def check_opset(opset: int) -> None:
    """Raise UsageError unless the forms of this package are known to mean the same there."""
    if opset not in OPSETS:
        raise UsageError(f"opset {opset}; accepted: {OPSETS.start} to {OPSETS.stop - 1}")


def to_model_bytes(graph: Graph, *, opset: int = OPSET, metadata: Mapping[str, str]) -> bytes:
    """Return the graph as a serialised ONNX model."""
    check_opset(opset)
    used = {name for node in graph.nodes for name in node.inputs}
    dead = sorted(graph.constants.keys() - used)
    assert not dead, f"constants nobody reads: {dead[:3]}"
    names = [node.name for node in graph.nodes]
    assert len(set(names)) == len(names), "two nodes have the same name"
    model = _empty_model(opset, metadata)
    proto = model.graph
    for node in graph.nodes:
        _add_node(proto, node)
    for name, array in graph.constants.items():
        _add_constant(proto, name, array)
    for values, target in ((graph.inputs, proto.input), (graph.outputs, proto.output)):
        for value in values:
            _add_value(target, value)
    data = model.SerializeToString()
    assert isinstance(data, bytes)
    return data


def _empty_model(opset: int, metadata: Mapping[str, str]) -> "onnx.ModelProto":
    try:
        from onnx import ModelProto, helper
    except ImportError as error:
        raise MissingPackageError(
            f"writing ONNX files needs the onnx package ({error})", "pip install 'hwnas[all]'"
        ) from error
    import hwnas

    domain = helper.make_opsetid("", opset)
    model = ModelProto(
        ir_version=helper.find_min_ir_version_for([domain]),
        producer_name="hwnas",
        producer_version=hwnas.__version__,
        opset_import=[domain],
    )
    model.graph.name = "hwnas"
    for key, text in metadata.items():
        model.metadata_props.add(key=key, value=text)
    return model


def _add_node(proto: "onnx.GraphProto", node: Node) -> None:
    from onnx import helper

    added = proto.node.add(op_type=node.operator, name=node.name)
    added.input.extend(node.inputs)
    added.output.append(node.output)
    added.attribute.extend(
        helper.make_attribute(key, value) for key, value in node.attributes.items()
    )


def _add_constant(proto: "onnx.GraphProto", name: str, array: Array) -> None:
    from onnx import helper

    proto.initializer.add(
        name=name,
        data_type=helper.np_dtype_to_tensor_dtype(array.dtype),
        dims=array.shape,
        raw_data=array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes(),
    )


def _add_value(target: Any, value: Value) -> None:  # noqa: ANN401 - a container of protobuf
    from onnx import helper

    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    target.append(helper.make_tensor_value_info(value.name, dtype, value.shape))
