"""How each kind of block is written in ONNX: the forms that ONNX Runtime runs fastest.

Activations stay channel-major, (B, C, S, S): every linear is a 1x1 convolution, because that is
what the runtime's blocked layout serves best. Standard operators only, any batch size. What was
tried and what it gained is in `docs/onnx-forms.md`.
"""

from collections.abc import Callable, Mapping
from math import isqrt
from typing import Any

import numpy as np

from hwnas.errors import HwnasError
from hwnas.export.graph import Scope
from hwnas.export.weights import (
    EPS,
    Floats,
    Weights,
    after_affine,
    folded_norm,
    position_bias,
    scaled,
)
from hwnas.spaces import Placed, blocks

Emitter = Callable[[Any, str, Scope, Weights, int], str]


def emit(placed: Placed, x: str, scope: Scope, weights: Weights) -> str:
    """Append the nodes of a block that reads `x`; return the name of its output."""
    emitter = EMITTERS.get(type(placed.block))
    if emitter is None:
        raise HwnasError(f"blocks of kind {type(placed.block).__name__} cannot be exported yet")
    return emitter(placed.block, x, scope, weights, placed.side)


def convolution(
    scope: Scope, name: str, x: str, weight: Floats, bias: Floats | None, *, stride: int = 1
) -> str:
    """Append a same-padded convolution, a depthwise one if the weight has one input channel."""
    inputs = [x, scope.constant(f"{name}.weight", weight, fan_in=int(np.prod(weight.shape[1:])))]
    if bias is not None:
        inputs.append(scope.constant(f"{name}.bias", bias))
    kernel = weight.shape[-1]
    return scope.node(
        "Conv",
        name,
        *inputs,
        kernel_shape=(kernel, kernel),
        strides=(stride, stride),
        pads=(kernel // 2,) * 4,
        group=weight.shape[0] if weight.shape[1] == 1 else 1,
    )


def silu(scope: Scope, name: str, x: str) -> str:
    """Append x * sigmoid(x), which runtimes fuse."""
    return scope.node("Mul", name, x, scope.node("Sigmoid", f"{name}_gate", x))


def stem(block: blocks.Stem, x: str, scope: Scope, weights: Weights, side: int) -> str:
    """Append the first convolution."""
    weight = weights("conv.weight", block.cout, block.cin, 3, 3)
    folded = folded_norm(weights, "norm", weight)
    return silu(scope, "silu", convolution(scope, "conv", x, *folded, stride=block.stride))


def mbconv(block: blocks.MBConv, x: str, scope: Scope, weights: Weights, side: int) -> str:
    """Append an inverted residual."""
    cin, mid, cout = block.cin, block.mid, block.cout
    y = x
    if block.expands:
        folded = folded_norm(weights, "expand_norm", weights("expand.weight", mid, cin, 1, 1))
        y = silu(scope, "expand_silu", convolution(scope, "expand", y, *folded))
    weight = weights("depth.weight", mid, 1, block.kernel, block.kernel)
    folded = folded_norm(weights, "depth_norm", weight)
    y = convolution(scope, "depth", y, *folded, stride=block.stride)
    y = silu(scope, "depth_silu", y)
    if block.squeezes:
        y = squeeze_excite(scope, y, weights, mid, block.squeezed)
    folded = folded_norm(weights, "project_norm", weights("project.weight", cout, mid, 1, 1))
    y = convolution(scope, "project", y, *folded)
    return scope.node("Add", "residual", y, shortcut(block, x, scope, weights, side))


def shortcut(block: blocks.MBConv, x: str, scope: Scope, weights: Weights, side: int) -> str:
    """Append what an inverted residual adds: its input, pooled and projected where need be."""
    if block.stride > 1:
        x = scope.node(
            "AveragePool",
            "shortcut_pool",
            x,
            kernel_shape=(block.stride, block.stride),
            strides=(block.stride, block.stride),
            pads=(side % 2,) * 4,
            count_include_pad=1,
        )
    if block.cin != block.cout:
        weight = weights("shortcut.weight", block.cout, block.cin, 1, 1)
        x = convolution(scope, "shortcut", x, weight, None)
    return x


def squeeze_excite(scope: Scope, x: str, weights: Weights, channels: int, squeezed: int) -> str:
    """Append the gates on the channels."""
    means = scope.node("GlobalAveragePool", "squeeze_pool", x)
    for name, cin, cout in (("reduce", channels, squeezed), ("expand", squeezed, channels)):
        weight = weights(f"squeeze.{name}.weight", cout, cin, 1, 1)
        bias = weights(f"squeeze.{name}.bias", cout)
        means = convolution(scope, f"squeeze_{name}", means, weight, bias)
        if name == "reduce":
            means = scope.node("Relu", "squeeze_relu", means)
    gates = scope.node("HardSigmoid", "squeeze_gate", means, alpha=1 / 6, beta=0.5)
    return scope.node("Mul", "squeeze", x, gates)


def transformer(
    block: blocks.Transformer, x: str, scope: Scope, weights: Weights, side: int
) -> str:
    """Append attention and two MLPs, each behind a norm and with a residual."""
    normed = norm(block, scope, "norm1", x)
    x = scope.node("Add", "attention_residual", attention(block, normed, scope, weights), x)
    for mlp_name, norm_name in (("mlp2", "norm3"), ("mlp1", "norm2")):
        y = norm(block, scope, norm_name, x)
        y = mlp(block, scope, weights, y, mlp_name, norm_name)
        x = scope.node("Add", f"{mlp_name}_residual", y, x)
    return x


def norm(block: blocks.Transformer, scope: Scope, name: str, x: str) -> str:
    """Append a layer norm without scale and shift, which the next linear absorbs."""
    dim, side = block.dim, block.side
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    if block.joint_norm:
        flat = scope.reshape(f"{name}_flat", x, 0, 1, -1)
        scale = scope.constant(f"{name}.one", one)
        shift = scope.constant(f"{name}.zero", zero)
        normed = scope.node("InstanceNormalization", name, flat, scale, shift, epsilon=EPS)
        return scope.reshape(f"{name}_map", normed, 0, dim, side, side)
    tokens = scope.transpose(f"{name}_tokens", x, 0, 2, 3, 1)
    scale = scope.constant(f"{name}.one", np.ones(dim, np.float32))
    normed = scope.node("LayerNormalization", name, tokens, scale, axis=-1, epsilon=EPS)
    return scope.transpose(f"{name}_map", normed, 0, 3, 1, 2)


def mlp(
    block: blocks.Transformer, scope: Scope, weights: Weights, x: str, name: str, norm_name: str
) -> str:
    """Append an MLP that takes the output of a norm without scale and shift."""
    weight, bias = linear_after_norm(weights, f"{name}.first", norm_name, block.hidden, block.dim)
    y = silu(scope, f"{name}_silu", convolution(scope, f"{name}_first", x, weight, bias))
    weight, bias = linear_before_scale(block, weights, f"{name}.second", "scale_mlp", block.hidden)
    return convolution(scope, f"{name}_second", y, weight, bias)


def attention(block: blocks.Transformer, x: str, scope: Scope, weights: Weights) -> str:
    """Append attention with talking heads on the output of a norm without scale and shift."""
    dim, value, heads = block.dim, block.value_dim, block.heads
    pairs = block.window_side**4
    parts = {}
    for name, width in (("q", dim), ("k", dim), ("v", value)):
        weight, bias = linear_after_norm(weights, f"attention.{name}", "norm1", width, dim)
        if name == "q":
            weight, bias = weight * (dim // heads) ** -0.5, bias * (dim // heads) ** -0.5
        parts[name] = convolution(scope, name, x, weight, bias)
    local = weights("attention.local.weight", value, 1, 3, 3)
    parts["v"] = convolution(scope, "local", parts["v"], local, None)
    q, k, v = (split_heads(block, scope, name, part) for name, part in parts.items())
    scores = scope.node("MatMul", "qk", scope.transpose("q_rows", q, 0, 1, 3, 2), k)
    before = weights("attention.before.weight", heads, heads)
    positions = position_bias(
        weights("attention.positions", block.offsets, block.offsets, heads),
        before,
        weights("attention.before.bias", heads),
        block.window_side,
    )
    scores = talk(scope, "before", scores, before, positions, pairs)
    shape = (0, heads, block.window_side**2, block.window_side**2)
    shares = scope.node("Softmax", "softmax", scope.reshape("scores", scores, *shape), axis=-1)
    after = weights("attention.after.weight", heads, heads)
    after_bias = weights("attention.after.bias", heads)[:, None]
    shares = talk(scope, "after", shares, after, after_bias, pairs)
    shares = scope.reshape("shares", shares, *shape)
    out = scope.node("MatMul", "pv", v, scope.transpose("shares_columns", shares, 0, 1, 3, 2))
    joined = silu(scope, "attention_silu", join_heads(block, scope, out))
    weight, bias = linear_before_scale(
        block, weights, "attention.project", "scale_attention", value
    )
    return convolution(scope, "project", joined, weight, bias)


def talk(scope: Scope, name: str, x: str, matrix: Floats, bias: Floats, pairs: int) -> str:
    """Append a linear across heads as a constant matrix on the left: no head is moved."""
    flat = scope.reshape(f"{name}_flat", x, 0, matrix.shape[0], pairs)
    weight = scope.constant(f"{name}.weight", matrix, fan_in=matrix.shape[1])
    mixed = scope.node("MatMul", name, weight, flat)
    return scope.node("Add", f"{name}_bias", mixed, scope.constant(f"{name}.bias", bias))


def split_heads(block: blocks.Transformer, scope: Scope, name: str, x: str) -> str:
    """Append the view (B * windows, heads, width, tokens) of a map."""
    inner = block.window_side
    if block.windows == 1:
        return scope.reshape(f"{name}_heads", x, 0, block.heads, -1, inner * inner)
    across = isqrt(block.windows)
    grid = scope.reshape(f"{name}_grid", x, 0, -1, across, inner, across, inner)
    windows = scope.transpose(f"{name}_windows", grid, 0, 2, 4, 1, 3, 5)
    width = {"q": block.dim, "k": block.dim, "v": block.value_dim}[name] // block.heads
    return scope.reshape(f"{name}_heads", windows, -1, block.heads, width, inner * inner)


def join_heads(block: blocks.Transformer, scope: Scope, x: str) -> str:
    """Append the inverse of `split_heads` for the value's width."""
    side, inner, value = block.side, block.window_side, block.value_dim
    if block.windows == 1:
        return scope.reshape("joined", x, 0, value, side, side)
    across = isqrt(block.windows)
    grid = scope.reshape("joined_grid", x, -1, across, across, value, inner, inner)
    windows = scope.transpose("joined_windows", grid, 0, 3, 1, 4, 2, 5)
    return scope.reshape("joined", windows, 0, value, side, side)


def linear_after_norm(
    weights: Weights, name: str, norm_name: str, cout: int, cin: int
) -> tuple[Floats, Floats]:
    """Return a linear's weight and bias with the scale and shift of the norm before it."""
    return after_affine(
        weights(f"{name}.weight", cout, cin, 1, 1),
        weights(f"{name}.bias", cout),
        weights(f"{norm_name}.weight", cin),
        weights(f"{norm_name}.bias", cin),
    )


def linear_before_scale(
    block: blocks.Transformer, weights: Weights, name: str, scale_name: str, cin: int
) -> tuple[Floats, Floats]:
    """Return a linear's weight and bias, times the scaling vector that comes after it."""
    weight = weights(f"{name}.weight", block.dim, cin, 1, 1)
    bias = weights(f"{name}.bias", block.dim)
    if not block.scale_rows:
        return weight, bias
    scale = weights(scale_name, 1, block.dim)[0] * np.float32(block.scale_gain)
    return scaled(weight, scale), scaled(bias, scale)


def classifier(block: blocks.Classifier, x: str, scope: Scope, weights: Weights, side: int) -> str:
    """Append the pooling head."""
    weight = weights("expand.weight", block.mid, block.cin, 1, 1)
    folded = folded_norm(weights, "expand_norm", weight)
    y = silu(scope, "expand_silu", convolution(scope, "expand", x, *folded))
    y = scope.node("Flatten", "features", scope.node("GlobalAveragePool", "pool", y), axis=1)
    mix = weights("mix.weight", block.features, block.mid)
    mixed = scope.constant("mix.weight", mix, fan_in=block.mid)
    y = silu(scope, "mix_silu", scope.node("Gemm", "mix", y, mixed, transB=1))
    classify = weights("classify.weight", block.classes, block.features)
    weight_name = scope.constant("classify.weight", classify, fan_in=block.features)
    bias_name = scope.constant("classify.bias", weights("classify.bias", block.classes))
    return scope.node("Gemm", "classify", y, weight_name, bias_name, transB=1)


# A new kind of block adds its description in `hwnas.spaces` and one line here.
EMITTERS: Mapping[type, Emitter] = {
    blocks.Stem: stem,
    blocks.MBConv: mbconv,
    blocks.Transformer: transformer,
    blocks.Classifier: classifier,
}
