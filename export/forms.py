"""The forms that blocks are written in, and the one in which a linear layer runs fastest.

Activations are channel-major, (B, C, S, S), so that ONNX Runtime keeps them in its blocked layout
from one convolution to the next.
"""

from hwnas.export.graph import Scope
from hwnas.export.weights import Floats


def convolution(
    scope: Scope,
    name: str,
    x: str,
    folded: tuple[Floats, Floats | None],
    *,
    stride: int = 1,
    groups: int = 1,
) -> str:
    """Append a same-padded convolution; `folded` is its weight and bias.

    A weight (out, in, k, k) makes it two-dimensional, (out, in, k) one-dimensional.
    """
    weight, bias = folded
    kernel, rank = weight.shape[-1], weight.ndim - 2
    inputs = [x, scope.constant(f"{name}.weight", weight)]
    if bias is not None:
        inputs.append(scope.constant(f"{name}.bias", bias))
    return scope.node(
        "Conv",
        name,
        *inputs,
        kernel_shape=(kernel,) * rank,
        strides=(stride,) * rank,
        pads=(kernel // 2,) * (2 * rank),
        group=groups,
    )


def silu(scope: Scope, name: str, x: str) -> str:
    """Append x * sigmoid(x), which runtimes fuse."""
    return scope.node("Mul", name, x, scope.node("Sigmoid", f"{name}_gate", x))


def linear(
    scope: Scope, name: str, x: str, folded: tuple[Floats, Floats | None], *, side: int
) -> str:
    """Append a linear layer on every pixel of a map of `side`; its weight is (out, in, 1, 1)."""
    if scope.graph.linears == "product":
        return product(scope, name, x, folded, side=side)
    weight, bias = folded
    if side * side != ONE_VECTOR:
        return convolution(scope, name, x, folded)
    tokens = scope.reshape(f"{name}_tokens", x, 0, weight.shape[1], side * side)
    y = convolution(scope, name, tokens, (weight[..., 0], bias))
    return scope.reshape(f"{name}_map", y, 0, weight.shape[0], side, side)


def product(
    scope: Scope, name: str, x: str, folded: tuple[Floats, Floats | None], *, side: int
) -> str:
    """Append a linear layer as rows of pixels times a matrix: the form that is quantised."""
    weight, bias = folded
    cout, cin = weight.shape[:2]
    tokens = scope.reshape(f"{name}_tokens", x, 0, cin, side * side)
    rows = scope.transpose(f"{name}_rows", tokens, 0, 2, 1)
    matrix = scope.constant(f"{name}.weight", weight.reshape(cout, cin).T)
    y = scope.node("MatMul", name, rows, matrix)
    if bias is not None:
        y = scope.node("Add", f"{name}_bias", y, scope.constant(f"{name}.bias", bias))
    columns = scope.transpose(f"{name}_columns", y, 0, 2, 1)
    return scope.reshape(f"{name}_map", columns, 0, cout, side, side)


# With this many pixels a plain matrix product, which a one-dimensional convolution is, beats the
# blocked convolution: a row of pixels just fills a vector register.
ONE_VECTOR = 16
