"""The reference model: always the same, re-timed between candidates to see the machine drift.

Three 3x3 convolutions of 64 channels on a 28x28 map, 87 million multiply-accumulates. Its ONNX
file is encoded here because a device has no onnx package.
"""

from hwnas.io.onnxwire import FLOAT, delimited, encoded_varint, tag, with_tensors
from hwnas.profiling.weights import Spec, generate

_CHANNELS, _SIZE, _LAYERS = 64, 28, 3
_INTS = 7  # AttributeProto.AttributeType


def reference_model() -> bytes:
    """Return the reference model as an ONNX file."""
    nodes = b"".join(_conv(layer) for layer in range(_LAYERS))
    name = delimited(2, b"reference")
    shape = (1, _CHANNELS, _SIZE, _SIZE)
    ends = delimited(11, _value("x0", shape)) + delimited(12, _value(f"x{_LAYERS}", shape))
    opset = delimited(8, tag(2, 0) + encoded_varint(17))
    skeleton = tag(1, 0) + encoded_varint(8) + opset + delimited(7, nodes + name + ends)
    weights = (_CHANNELS, _CHANNELS, 3, 3)
    specs = [
        Spec(name=f"w{layer}", dtype=FLOAT, shape=weights, rule="normal", scale=0.04)
        for layer in range(_LAYERS)
    ]
    return with_tensors(skeleton, (generate(spec) for spec in specs))


def _conv(layer: int) -> bytes:
    inputs = delimited(1, f"x{layer}".encode()) + delimited(1, f"w{layer}".encode())
    pads = b"".join(tag(8, 0) + encoded_varint(1) for _ in range(4))
    attribute = delimited(1, b"pads") + pads + tag(20, 0) + encoded_varint(_INTS)
    output = delimited(2, f"x{layer + 1}".encode())
    named = delimited(3, f"conv{layer}".encode()) + delimited(4, b"Conv")
    return delimited(1, inputs + output + named + delimited(5, attribute))


def _value(name: str, shape: tuple[int, ...]) -> bytes:
    dims = b"".join(delimited(1, tag(1, 0) + encoded_varint(size)) for size in shape)
    tensor = tag(1, 0) + encoded_varint(FLOAT) + delimited(2, dims)
    return delimited(1, name.encode()) + delimited(2, delimited(1, tensor))
