"""ONNX models of torch networks that are none of ours, written by torch's own exporter.

The batch is fixed and layers that can be merged for inference are: that is how somebody who
deploys such a network would write it.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from hwnas.errors import GateError, HwnasError, UsageError
from hwnas.export.precisions import FP32
from hwnas.export.quantise import quantise_dynamic, quantise_static, to_half

if TYPE_CHECKING:
    from torch import nn

INPUT, OUTPUT = "images", "logits"
FOREIGN_OPSET = 18  # the lowest that torch's exporter writes by itself


def foreign_bytes(module: "nn.Module", *, shape: tuple[int, int, int], batch: int) -> bytes:
    """Return the model of a network, in evaluation mode, for images of a shape (C, H, W).

    Raises HwnasError where torch cannot write it, GateError where what it writes is not ONNX.
    """
    import torch

    named = type(module).__name__
    images = torch.zeros(batch, *shape)
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        try:
            torch.onnx.export(
                module.eval(),
                (images,),
                path,
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                opset_version=FOREIGN_OPSET,
                external_data=False,
                verbose=False,
            )
        except (RuntimeError, TypeError, ValueError, LookupError) as error:
            raise HwnasError(f"torch cannot write {named} as ONNX: {_first_line(error)}") from error
        data = path.read_bytes()
    return _checked(data, named)


def in_precision(
    model: bytes, precision: str, *, calibration: Callable[[], Iterable[NDArray[Any]]]
) -> tuple[bytes, str]:
    """Return the model in a precision, and the precision it is in then.

    A network without matrix products stays as it is where 8 bits are asked for: quantised
    convolutions are slower. `bf16` is a setting of the runtime, which takes the same file.
    """
    if precision == "fp16":
        return to_half(model), precision
    if not precision.startswith("int8"):
        return model, precision
    try:
        if precision == "int8_dynamic":
            return quantise_dynamic(model), precision
        return quantise_static(model, calibration()), precision
    except UsageError:  # nothing in it that could be quantised
        return model, FP32


def _checked(data: bytes, named: str) -> bytes:
    """Return the model without what it says of shapes inside, which quantising would trip over."""
    from onnx import load_model_from_string
    from onnx.checker import ValidationError, check_model
    from onnx.shape_inference import InferenceError

    try:
        model = load_model_from_string(data)
        del model.graph.value_info[:]
        check_model(model, full_check=True)
    except (ValidationError, InferenceError) as error:
        raise GateError(
            f"what torch writes for {named} is not valid ONNX: {_first_line(error)}"
        ) from error
    found = model.SerializeToString()
    assert isinstance(found, bytes)
    return found


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
