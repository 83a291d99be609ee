"""Export of subnets to ONNX and the checks an exported file must pass.

The code lives in `export/` and is imported as `hwnas.export` only.
"""

if __name__ != "hwnas.export":  # every class would exist twice
    raise ImportError("import hwnas.export instead of export")
