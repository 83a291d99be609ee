"""Export of subnets to ONNX and the checks an exported file must pass.

The code lives in `export/` and is imported as `hwnas.export` only. No torch is imported here: a
module that is exported brings its own.
"""

if __name__ != "hwnas.export":  # every class would exist twice
    raise ImportError("import hwnas.export instead of export")

from hwnas.export.graph import OPSET, OPSETS
from hwnas.export.onnx import TensorSpec, onnx_from_description, onnx_skeleton, to_onnx

__all__ = [
    "OPSET",
    "OPSETS",
    "TensorSpec",
    "onnx_from_description",
    "onnx_skeleton",
    "to_onnx",
]
