"""The reference model: always the same, re-timed between candidates to see the machine drift.

Three 3x3 convolutions of 64 channels on a 28x28 map, 87 million multiply-accumulates. Its ONNX
file is put together here because a device has no onnx package.
"""

from hwnas.io import onnxparts
from hwnas.io.onnxwire import FLOAT, with_tensors
from hwnas.profiling.weights import Spec, generate

_CHANNELS, _SIZE, _LAYERS = 64, 28, 3


def reference_model() -> bytes:
    """Return the reference model as an ONNX file."""
    shape = (1, _CHANNELS, _SIZE, _SIZE)
    skeleton = onnxparts.model(
        "reference",
        [_conv(layer) for layer in range(_LAYERS)],
        inputs=[onnxparts.value("x0", shape)],
        outputs=[onnxparts.value(f"x{_LAYERS}", shape)],
        opsets={"": 17},
        ir_version=8,
    )
    weights = (_CHANNELS, _CHANNELS, 3, 3)
    specs = [
        Spec(name=f"w{layer}", dtype=FLOAT, shape=weights, rule="normal", scale=0.04)
        for layer in range(_LAYERS)
    ]
    return with_tensors(skeleton, (generate(spec) for spec in specs))


def _conv(layer: int) -> bytes:
    return onnxparts.node(
        "Conv",
        f"conv{layer}",
        inputs=[f"x{layer}", f"w{layer}"],
        output=f"x{layer + 1}",
        attributes=[onnxparts.integers("pads", (1, 1, 1, 1))],
    )
