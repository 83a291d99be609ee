"""Other precisions of an exported model. Each returns a new model; measure before you use one.

Only matrix products are quantised: ONNX Runtime's quantised convolutions are several times slower
than its single-precision ones on a CPU (figures in `docs/onnx-forms.md`). So the model must be
written with `linears="product"`.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hwnas.errors import MissingPackageError, UsageError
from hwnas.export.pixels import PIXELS_SLOT

if TYPE_CHECKING:
    import onnx

_OPERATORS = ("MatMul",)


def quantise_dynamic(model: bytes) -> bytes:
    """Return the model with 8-bit weights, and activations quantised as they come."""
    quantization = _quantization()
    source = _with_products(model)

    def write(path: Path) -> None:
        quantization.quantize_dynamic(
            source,
            str(path),
            op_types_to_quantize=list(_OPERATORS),
            nodes_to_exclude=_of_preprocessing(source),
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )

    return _written(write, source)


def quantise_static(model: bytes, batches: Iterable[NDArray[Any]]) -> bytes:
    """Return the model in 8 bits, with activation ranges measured on batches of its input."""
    quantization = _quantization()
    source = _with_products(model)
    name = source.graph.input[0].name
    reader = _Reader({name: images} for images in batches)

    def write(path: Path) -> None:
        quantization.quantize_static(
            source,
            str(path),
            reader,
            op_types_to_quantize=list(_OPERATORS),
            nodes_to_exclude=_of_preprocessing(source),
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )

    return _written(write, source)


def _of_preprocessing(model: "onnx.ModelProto") -> list[str]:
    """Return the names of nodes that work on pixels: 8 bits are what they come from."""
    prefix = f"{PIXELS_SLOT}/"
    return [node.name for node in model.graph.node if node.name.startswith(prefix)]


class _Reader:
    """Feeds calibration data in the way the runtime asks for it."""

    def __init__(self, feeds: Iterable[Mapping[str, NDArray[Any]]]) -> None:
        self._feeds = iter(feeds)
        self._next = next(self._feeds, None)
        if self._next is None:
            raise UsageError("static quantisation got no batches of images; accepted: at least one")

    def get_next(self) -> Mapping[str, NDArray[Any]] | None:
        now, self._next = self._next, next(self._feeds, None)
        return now


def to_half(model: bytes) -> bytes:
    """Return the model with 16-bit weights and arithmetic; inputs and outputs stay as they are."""
    _quantization()
    from onnxruntime.transformers.float16 import convert_float_to_float16

    source = _parsed(model)
    converted = convert_float_to_float16(
        source,
        keep_io_types=True,
        node_block_list=_of_preprocessing(source),  # pixels less their mean need the digits
    )
    _sort_nodes(converted)  # the casts are appended at the end, which the standard forbids
    del converted.graph.value_info[:]  # types and shapes on the way, which whoever loads it infers
    data = converted.SerializeToString()
    assert isinstance(data, bytes)
    return data


def _sort_nodes(model: "onnx.ModelProto") -> None:
    """Put every node behind those whose outputs it reads; otherwise keep their order."""
    maker = {name: at for at, node in enumerate(model.graph.node) for name in node.output}
    order: dict[int, None] = {}

    def place(at: int) -> None:
        for name in model.graph.node[at].input:
            if name in maker and maker[name] not in order:
                place(maker[name])
        order.setdefault(at)

    for at in range(len(model.graph.node)):
        place(at)
    ordered = [model.graph.node[at] for at in order]
    del model.graph.node[:]
    model.graph.node.extend(ordered)


def _quantization() -> Any:  # noqa: ANN401 - a module without types
    try:
        from onnxruntime import quantization
    except ImportError as error:
        raise MissingPackageError(
            f"other precisions need onnx and onnxruntime ({error})", "pip install 'hwnas[all]'"
        ) from error
    return quantization


def _parsed(model: bytes) -> "onnx.ModelProto":
    from onnx import load_model_from_string

    parsed: onnx.ModelProto = load_model_from_string(model)
    return parsed


def _with_products(model: bytes) -> "onnx.ModelProto":
    parsed = _parsed(model)
    stored = {tensor.name for tensor in parsed.graph.initializer}
    products = (node for node in parsed.graph.node if node.op_type in _OPERATORS)
    if not any(node.input[1] in stored for node in products):
        raise UsageError(
            "the model has no linear layers that can be quantised: they are convolutions",
            'write it with linears="product"',
        )
    return parsed


def _written(write: Callable[[Path], None], source: "onnx.ModelProto") -> bytes:
    """Return what `write` writes, tidied: only domains in use, the source's metadata."""
    from onnx import load_model

    with tempfile.TemporaryDirectory() as folder, _quiet():
        write(Path(folder) / "model.onnx")
        model = load_model(Path(folder) / "model.onnx")
    used = {node.domain for node in model.graph.node}
    domains = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:], model.metadata_props[:], model.graph.value_info[:]
    model.opset_import.extend(domains)
    model.metadata_props.extend(source.metadata_props)
    model.producer_name, model.producer_version = source.producer_name, source.producer_version
    data = model.SerializeToString()
    assert isinstance(data, bytes)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the runtime's advice to pre-process models, which ours do not need, off the log."""

    def ours(record: logging.LogRecord) -> bool:
        return "quantization" not in record.pathname

    root = logging.getLogger()
    root.addFilter(ours)
    try:
        yield
    finally:
        root.removeFilter(ours)
