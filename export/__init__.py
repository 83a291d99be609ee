"""Export of subnets to ONNX and the checks an exported file must pass.

The code lives in `export/` and is imported as `hwnas.export` only. No torch is imported here: a
module that is exported brings its own.
"""

if __name__ != "hwnas.export":  # every class would exist twice
    raise ImportError("import hwnas.export instead of export")

from hwnas.export.artifact import read_manifest, verify
from hwnas.export.family import choose_member
from hwnas.export.graph import OPSET, OPSETS
from hwnas.export.onnx import onnx_from_description, to_onnx
from hwnas.export.validate_model import validate
from hwnas.export.validate_types import Limits, Running, Verdict

__all__ = [
    "OPSET",
    "OPSETS",
    "Limits",
    "Running",
    "Verdict",
    "choose_member",
    "onnx_from_description",
    "read_manifest",
    "to_onnx",
    "validate",
    "verify",
]
