"""What a written model must be before anybody gets it: valid, self-contained, nothing to spare."""

from typing import TYPE_CHECKING

from hwnas.errors import GateError, HwnasError
from hwnas.export.onnx import LARGEST_FILE
from hwnas.io import onnxwire

if TYPE_CHECKING:
    import onnx

_HINT = "this is a fault of the exporter: please report it with the architecture"


def check_model(data: bytes, *, opset: int, batch: int | None, origin: str) -> None:
    """Raise GateError unless the bytes are one complete model of standard operators.

    Checked are the standard itself (the onnx checker with shape inference), the opset in the file,
    the batch dimension, that every tensor is inside and read by a node, and every node is needed.
    """
    from onnx import load_model_from_string
    from onnx.checker import ValidationError, check_model
    from onnx.shape_inference import InferenceError

    try:
        model = load_model_from_string(data)
        check_model(model, full_check=True)
    except (ValidationError, InferenceError) as error:
        raise GateError(f"{origin}: not valid ONNX: {str(error).splitlines()[0]}", _HINT) from error
    problems = []
    if onnxwire.opsets(data) != {"": opset}:
        problems.append(f"operators are of {onnxwire.opsets(data)}, asked for opset {opset}")
    if onnxwire.external_files(data):
        problems.append("tensors are stored in other files")
    if len(data) > LARGEST_FILE:
        problems.append(f"{len(data)} bytes are more than the 2 GB of a single file")
    problems += _batch_problems(model, batch)
    problems += _dead(model)
    if problems:
        raise GateError(f"{origin}: {'; '.join(problems)}", _HINT)


def _batch_problems(model: "onnx.ModelProto", batch: int | None) -> list[str]:
    problems = []
    for value in (*model.graph.input, *model.graph.output):
        first = value.type.tensor_type.shape.dim[0]
        found = first.dim_value if first.HasField("dim_value") else None
        if found != batch:
            problems.append(
                f"{value.name} is for batch {found or 'any'}, asked for {batch or 'any'}"
            )
    return problems


def _dead(model: "onnx.ModelProto") -> list[str]:
    """Return what is stored or computed and never read."""
    graph = model.graph
    read = {name for node in graph.node for name in node.input}
    wanted = read | {value.name for value in graph.output}
    weights = [tensor.name for tensor in graph.initializer if tensor.name not in wanted]
    nodes = [node.name for node in graph.node if not wanted & set(node.output)]
    found = []
    for what, names in (("weights", weights), ("nodes", nodes)):
        if names:
            found.append(f"{len(names)} {what} nobody reads, such as {names[0]!r}")
    return found


def check_difference(difference: float, limit: float, *, origin: str) -> None:
    """Raise GateError if a model's answers are further from torch's than the limit."""
    if not difference <= limit:
        raise GateError(
            f"{origin}: logits differ from torch's by {difference:.2g} of the largest "
            f"(accepted: {limit:.2g})",
            "leave this precision out" if limit > FP32_LIMIT else _HINT,
        )


FP32_LIMIT = 1e-4


def parity_limit(precision: str) -> float:
    """Return how far the logits of a precision may be from torch's, relative to the largest."""
    limits = {"fp32": FP32_LIMIT, "fp16": 2e-2, "int8_dynamic": 0.25, "int8_static": 0.25}
    if precision not in limits:
        raise HwnasError(f"no limit is known for precision {precision!r}")
    return limits[precision]
