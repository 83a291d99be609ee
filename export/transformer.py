"""The transformer layer in ONNX, written so that no head is moved and little is transposed.

Shapes: B batch, W windows, H heads, D channels of a head, N tokens of a window. Everything linear
next to a linear is folded into it: scales and shifts of the norms, the scale of the queries,
relative positions through the first talking heads, the scaling vectors.
"""

from math import isqrt

import numpy as np

from hwnas.export.forms import convolution, linear, silu
from hwnas.export.graph import Scope
from hwnas.export.weights import EPS, Floats, after_affine, position_bias, scaled
from hwnas.spaces import blocks


def transformer(block: blocks.Transformer, x: str, scope: Scope, side: int) -> str:
    """Append attention and two MLPs, each behind a norm and with a residual."""
    attended = attention(block, norm(block, scope, "norm1", x), scope)
    x = scope.node("Add", "attention_residual", attended, x)
    for mlp_name, norm_name in (("mlp2", "norm3"), ("mlp1", "norm2")):
        y = norm(block, scope, norm_name, x)
        folded = after_norm(scope, f"{mlp_name}.first", norm_name, (block.hidden, block.dim))
        y = silu(
            scope, f"{mlp_name}_silu", linear(scope, f"{mlp_name}_first", y, folded, side=side)
        )
        folded = before_scale(block, scope, f"{mlp_name}.second", "scale_mlp", block.hidden)
        y = linear(scope, f"{mlp_name}_second", y, folded, side=side)
        x = scope.node("Add", f"{mlp_name}_residual", y, x)
    return x


def norm(block: blocks.Transformer, scope: Scope, name: str, x: str) -> str:
    """Append a layer norm without scale and shift, which the next linear absorbs."""
    graph = scope.graph
    if block.joint_norm:
        flat = scope.reshape(f"{name}_flat", x, 0, 1, -1)
        normed = scope.node(
            "InstanceNormalization", name, flat, graph.ones(1), graph.zeros(1), epsilon=EPS
        )
        return scope.reshape(f"{name}_map", normed, 0, block.dim, block.side, block.side)
    tokens = scope.transpose(f"{name}_tokens", x, 0, 2, 3, 1)
    ones = graph.ones(block.dim)
    normed = scope.node("LayerNormalization", name, tokens, ones, axis=-1, epsilon=EPS)
    return scope.transpose(f"{name}_map", normed, 0, 3, 1, 2)


def attention(block: blocks.Transformer, x: str, scope: Scope) -> str:
    """Append attention with talking heads on the output of a norm without scale and shift."""
    heads, tokens = block.heads, block.window_side**2
    q, k, v = (split_heads(block, scope, name, part) for name, part in qkv(block, x, scope))
    scores = scope.node("MatMul", "qk", scope.transpose("queries", q, 0, 1, 3, 2), k)
    before = scope.weights("attention.before.weight", heads, heads)
    scores = talk(scope, "before", scores, (before, None), pairs=tokens**2)
    positions = position_bias(
        scope.weights("attention.positions", block.offsets, block.offsets, heads),
        before,
        scope.weights("attention.before.bias", heads),
        block.window_side,
    )
    scores = scope.node("Add", "positions", scores, scope.constant("positions.bias", positions))
    shape = (0, heads, tokens, tokens)
    shares = scope.node("Softmax", "softmax", scope.reshape("scores", scores, *shape), axis=-1)
    after = scope.weights("attention.after.weight", heads, heads)
    after_bias = scope.weights("attention.after.bias", heads)
    shares = talk(scope, "after", shares, (after, after_bias), pairs=tokens**2)
    shares = scope.reshape("shares", shares, *shape)
    # The small sides are turned, the values before and the result after, not the shares.
    out = scope.node("MatMul", "pv", shares, scope.transpose("values", v, 0, 1, 3, 2))
    out = scope.transpose("pv_turned", out, 0, 1, 3, 2)
    joined = silu(scope, "attention_silu", join_heads(block, scope, out))
    folded = before_scale(block, scope, "attention.project", "scale_attention", block.value_dim)
    return linear(scope, "project", joined, folded, side=block.side)


def qkv(block: blocks.Transformer, x: str, scope: Scope) -> list[tuple[str, str]]:
    """Append the maps of queries, keys and values."""
    weight, bias = after_norm(scope, "attention.q", "norm1", (block.dim, block.dim))
    scale = np.full(block.dim, (block.dim // block.heads) ** -0.5)
    q = linear(scope, "q", x, (scaled(weight, scale), scaled(bias, scale)), side=block.side)
    folded = after_norm(scope, "attention.k", "norm1", (block.dim, block.dim))
    k = linear(scope, "k", x, folded, side=block.side)
    folded = after_norm(scope, "attention.v", "norm1", (block.value_dim, block.dim))
    v = linear(scope, "v", x, folded, side=block.side)
    local = scope.weights("attention.local.weight", block.value_dim, 1, 3, 3)
    v = convolution(scope, "local", v, (local, None), groups=block.value_dim)
    return [("q", q), ("k", k), ("v", v)]


def talk(
    scope: Scope, name: str, x: str, folded: tuple[Floats, Floats | None], *, pairs: int
) -> str:
    """Append a linear across heads, (B * W, H, N, N) to (B * W, H, N * N).

    A one-dimensional convolution is a constant matrix on the left, and adds the bias itself.
    """
    weight, bias = folded
    flat = scope.reshape(f"{name}_flat", x, 0, weight.shape[1], pairs)
    return convolution(scope, name, flat, (weight[:, :, None], bias))


def split_heads(block: blocks.Transformer, scope: Scope, name: str, x: str) -> str:
    """Append the view (B * W, H, D, N) of a map."""
    inner = block.window_side
    if block.windows == 1:
        return scope.reshape(f"{name}_heads", x, 0, block.heads, -1, inner * inner)
    across = isqrt(block.windows)
    width = (block.value_dim if name == "v" else block.dim) // block.heads
    grid = scope.reshape(f"{name}_grid", x, 0, -1, across, inner, across, inner)
    windows = scope.transpose(f"{name}_windows", grid, 0, 2, 4, 1, 3, 5)
    return scope.reshape(f"{name}_heads", windows, -1, block.heads, width, inner * inner)


def join_heads(block: blocks.Transformer, scope: Scope, x: str) -> str:
    """Append the map of (B * W, H, D, N): the inverse of `split_heads` for values."""
    side, inner, value = block.side, block.window_side, block.value_dim
    if block.windows == 1:
        return scope.reshape("joined", x, 0, value, side, side)
    across = isqrt(block.windows)
    grid = scope.reshape("joined_grid", x, -1, across, across, value, inner, inner)
    windows = scope.transpose("joined_windows", grid, 0, 3, 1, 4, 2, 5)
    return scope.reshape("joined", windows, 0, value, side, side)


def after_norm(
    scope: Scope, name: str, norm_name: str, shape: tuple[int, int]
) -> tuple[Floats, Floats]:
    """Return a linear's weight and bias with the scale and shift of the norm before it."""
    cout, cin = shape
    return after_affine(
        (scope.weights(f"{name}.weight", cout, cin, 1, 1), scope.weights(f"{name}.bias", cout)),
        scope.weights(f"{norm_name}.weight", cin),
        scope.weights(f"{norm_name}.bias", cin),
    )


def before_scale(
    block: blocks.Transformer, scope: Scope, name: str, scale_name: str, cin: int
) -> tuple[Floats, Floats]:
    """Return a linear's weight and bias, times the scaling vector that comes after it."""
    weight = scope.weights(f"{name}.weight", block.dim, cin, 1, 1)
    bias = scope.weights(f"{name}.bias", block.dim)
    if not block.scale_rows:
        return weight, bias
    scale = scope.weights(scale_name, 1, block.dim)[0] * block.scale_gain
    return scaled(weight, scale), scaled(bias, scale)
