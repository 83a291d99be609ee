"""How each kind of block is written in ONNX: the forms that ONNX Runtime runs fastest.

Standard operators only, any batch size. What was tried and what it gained is in
`docs/onnx-forms.md`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hwnas.errors import HwnasError
from hwnas.export.forms import convolution, linear, silu
from hwnas.export.graph import Scope
from hwnas.export.transformer import transformer
from hwnas.export.weights import folded_norm
from hwnas.spaces import Placed, blocks

Emitter = Callable[[Any, str, Scope, int], str]


def emit(placed: Placed, x: str, scope: Scope) -> str:
    """Append the nodes of a block that reads `x`; return the name of its output."""
    emitter = EMITTERS.get(type(placed.block))
    if emitter is None:
        raise HwnasError(
            f"blocks of kind {type(placed.block).__name__} cannot be exported; "
            f"accepted: {', '.join(kind.__name__ for kind in EMITTERS)}"
        )
    return emitter(placed.block, x, scope, placed.side)


def stem(block: blocks.Stem, x: str, scope: Scope, side: int) -> str:
    """Append the first convolution."""
    folded = folded_norm(scope.weights, "conv", "norm", (block.cout, block.cin, 3, 3))
    return silu(scope, "silu", convolution(scope, "conv", x, folded, stride=block.stride))


def mbconv(block: blocks.MBConv, x: str, scope: Scope, side: int) -> str:
    """Append an inverted residual."""
    cin, mid, cout = block.cin, block.mid, block.cout
    y = x
    if block.expands:
        folded = folded_norm(scope.weights, "expand", "expand_norm", (mid, cin, 1, 1))
        y = silu(scope, "expand_silu", convolution(scope, "expand", y, folded))
    shape = (mid, 1, block.kernel, block.kernel)
    folded = folded_norm(scope.weights, "depth", "depth_norm", shape)
    y = convolution(scope, "depth", y, folded, stride=block.stride, groups=mid)
    y = silu(scope, "depth_silu", y)
    if block.squeezes:
        y = squeeze_excite(block, y, scope)
    folded = folded_norm(scope.weights, "project", "project_norm", (cout, mid, 1, 1))
    y = convolution(scope, "project", y, folded)
    return scope.node("Add", "residual", y, shortcut(block, x, scope, side))


def shortcut(block: blocks.MBConv, x: str, scope: Scope, side: int) -> str:
    """Append what an inverted residual adds: its input, pooled and projected where need be."""
    if block.stride > 1:
        x = mean_pool(block, x, scope, side)
    if block.cin != block.cout:
        weight = scope.weights("shortcut.weight", block.cout, block.cin, 1, 1)
        x = convolution(scope, "shortcut", x, (weight, None))
    return x


def mean_pool(block: blocks.MBConv, x: str, scope: Scope, side: int) -> str:
    """Append a mean over squares, padded zeros counted.

    As a depthwise convolution, because the runtime pools in its blocked layout only where
    channels are a multiple of the block.
    """
    square = (block.stride, block.stride)
    mean = np.full((block.cin, 1, *square), 1 / block.stride**2, np.float32)
    return scope.node(
        "Conv",
        "shortcut_pool",
        x,
        scope.constant("shortcut_pool.weight", mean),
        kernel_shape=square,
        strides=square,
        pads=(side % 2,) * 4,
        group=block.cin,
    )


def squeeze_excite(block: blocks.MBConv, x: str, scope: Scope) -> str:
    """Append the gates on the channels, as pooling and a hard sigmoid of one operator each."""
    mid, squeezed = block.mid, block.squeezed
    y = scope.node("GlobalAveragePool", "squeeze_pool", x)
    for name, cin, cout in (("reduce", mid, squeezed), ("expand", squeezed, mid)):
        weight = scope.weights(f"squeeze.{name}.weight", cout, cin, 1, 1)
        bias = scope.weights(f"squeeze.{name}.bias", cout)
        y = convolution(scope, f"squeeze_{name}", y, (weight, bias))
        if name == "reduce":
            y = scope.node("Relu", "squeeze_relu", y)
    gates = scope.node("HardSigmoid", "squeeze_gate", y, alpha=1 / 6, beta=0.5)
    return scope.node("Mul", "squeeze", x, gates)


def classifier(block: blocks.Classifier, x: str, scope: Scope, side: int) -> str:
    """Append the pooling head."""
    folded = folded_norm(scope.weights, "expand", "expand_norm", (block.mid, block.cin, 1, 1))
    y = silu(scope, "expand_silu", convolution(scope, "expand", x, folded))
    y = scope.node("GlobalAveragePool", "pool", y)
    mix = scope.weights("mix.weight", block.features, block.mid)
    y = silu(scope, "mix_silu", linear(scope, "mix", y, (mix[:, :, None, None], None), side=1))
    classify = scope.weights("classify.weight", block.classes, block.features)
    bias = scope.weights("classify.bias", block.classes)
    y = linear(scope, "classify", y, (classify[:, :, None, None], bias), side=1)
    return scope.node("Flatten", "logits", y, axis=1)


# A new kind of block adds its description in `hwnas.spaces` and one line here.
EMITTERS: Mapping[type, Emitter] = {
    blocks.Stem: stem,
    blocks.MBConv: mbconv,
    blocks.Transformer: transformer,
    blocks.Classifier: classifier,
}
