"""Chains of operators that keep only what they start from, and compute the rest again.

A stock chain keeps the input of each of its operators for the backward pass. Of a batch norm, an
activation and a convolution that is the map three times over; here it is kept once. What is
computed again are passes over one map, which cost little beside the convolutions, and where a map
is large the 1x1 convolution of few channels that made it. Values of the forward pass are those of
the stock operators bit for bit, or to rounding where `hwnas.nets.batchnorm` says so.

Use them where `trains_on_cpu` says so. Figures: `docs/training-forms.md`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.nets.batchnorm import (
    batch_norm_gradients,
    batch_normed,
    batch_statistics,
    normed_by,
)
from hwnas.nets.kernels import convolution_backward, depthwise_weight_gradient
from hwnas.nets.scratch import scratch

_aten = torch.ops.aten
# Values of a map: 16 MB, of which pieces are passed on; 8 MB, from which a 1x1 convolution is
# cheaper than the memory.
_PASSING = 2**22
_WIDE = 2**21
Gates = tuple[Tensor, Tensor, Tensor, Tensor]


def norm_silu_depthwise(  # noqa: PLR0917 - like the operators it stands for
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kernel: Tensor, stride: int
) -> Tensor:
    """Return the same-padded depthwise convolution of silu(batch norm of x)."""
    return _NormSiLUDepthwise.apply(  # type: ignore[no-any-return]
        x, weight, bias, eps, kernel, stride
    )


def is_too_wide_to_keep(x: Tensor, channels: int) -> bool:
    """Return whether x, with so many channels, is a map to compute again from x."""
    # A convolution in autocast has another type than its input, on which the forms depend.
    return x.numel() // x.shape[1] * channels > _WIDE and not torch.is_autocast_enabled("cpu")


def expand_norm_silu_depthwise(  # noqa: PLR0917 - like the operators it stands for
    x: Tensor,
    expand: Tensor,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    kernel: Tensor,
    stride: int,
) -> Tensor:
    """Return `norm_silu_depthwise` of the 1x1 convolution of x, which is not kept either."""
    return _ExpandNormSiLUDepthwise.apply(  # type: ignore[no-any-return]
        x, expand, weight, bias, eps, kernel, stride
    )


def norm_silu_project(  # noqa: PLR0917 - like the operators it stands for
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kernel: Tensor, gates: Gates | None
) -> Tensor:
    """Return the 1x1 convolution of silu(batch norm of x).

    Between the two each channel is multiplied by a gate if `gates` gives weight and bias of the
    two 1x1 convolutions that compute gates from the means of channels.
    """
    gates_or_none = gates or (None, None, None, None)
    return _NormSiLUProject.apply(  # type: ignore[no-any-return]
        x, weight, bias, eps, kernel, *gates_or_none
    )


def silu_pointwise(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Return the 1x1 convolution of silu(x)."""
    return _SiLUPointwise.apply(x, kernel, bias)  # type: ignore[no-any-return]


class _NormSiLUDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernel: Tensor,
        stride: int,
    ) -> Tensor:
        out, mean, inverse_std = _norm_silu_depthwise(x, weight, bias, eps, kernel, stride)
        ctx.save_for_backward(x, weight, bias, mean, inverse_std, kernel)
        ctx.eps, ctx.stride = eps, stride
        return out

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None, Tensor, None]:
        x, weight, bias, mean, inverse_std, kernel = ctx.saved_tensors
        gx, gweight, gbias, gkernel = _norm_silu_depthwise_backward(
            grad, x, weight, bias, mean, inverse_std, kernel, ctx.eps, ctx.stride
        )
        return gx, gweight, gbias, None, gkernel, None


class _ExpandNormSiLUDepthwise(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        expand: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernel: Tensor,
        stride: int,
    ) -> Tensor:
        wide = F.conv2d(x, expand)
        out, mean, inverse_std = _norm_silu_depthwise(wide, weight, bias, eps, kernel, stride)
        ctx.save_for_backward(x, expand, weight, bias, mean, inverse_std, kernel)
        ctx.eps, ctx.stride = eps, stride
        return out

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, None, Tensor, None]:
        x, expand, weight, bias, mean, inverse_std, kernel = ctx.saved_tensors
        wide = F.conv2d(x, expand)
        gwide, gweight, gbias, gkernel = _norm_silu_depthwise_backward(
            grad, wide, weight, bias, mean, inverse_std, kernel, ctx.eps, ctx.stride,
            spends_x=True,
        )  # fmt: skip
        gx, gexpand = _pointwise_backward(gwide, x, expand)
        return gx, gexpand, gweight, gbias, None, gkernel, None


def _norm_silu_depthwise(  # noqa: PLR0917 - like the operators it stands for
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kernel: Tensor, stride: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the map, and the statistics of x."""
    pieces = _pieces(x)
    if len(pieces) == 1:
        y, mean, inverse_std = _norm_silu(x, weight, bias, eps)
        return _depthwise(y, kernel, stride), mean, inverse_std
    mean, inverse_std = batch_statistics(x, eps)
    side = [-(-length // stride) for length in x.shape[2:]]
    out = torch.empty((len(x), len(kernel), *side), memory_format=torch.channels_last)
    for piece in pieces:
        y = _normed_again(x[piece], weight, bias, mean, inverse_std)
        out[piece] = _depthwise(F.silu(y, inplace=True), kernel, stride)
    return out, mean, inverse_std


def _norm_silu_depthwise_backward(  # noqa: PLR0917 - the order in which they are saved
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    kernel: Tensor,
    eps: float,
    stride: int,
    *,
    spends_x: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients of x, of weight and bias of its norm, and of the kernel."""
    pieces = _pieces(x)
    # A single piece leaves its gradient where the normed map was.
    gy = torch.empty_like(x) if len(pieces) > 1 else scratch.like(x, "normed")
    gkernel = torch.zeros_like(kernel)
    for piece in pieces:
        normed = _normed_again(x[piece], weight, bias, mean, inverse_std)
        gkernel += _silu_depthwise_backward(grad[piece], normed, kernel, stride, out=gy[piece])
    norm = batch_norm_gradients(gy, x, weight, mean, inverse_std, eps, spends_x=spends_x)
    return *norm, gkernel


def _depthwise(y: Tensor, kernel: Tensor, stride: int) -> Tensor:
    return F.conv2d(y, kernel, None, stride, kernel.shape[-1] // 2, groups=len(kernel))


def _silu_depthwise_backward(
    grad: Tensor, normed: Tensor, kernel: Tensor, stride: int, *, out: Tensor
) -> Tensor:
    """Write the gradient of `normed` to `out`, which may be the same; return the kernel's."""
    width = kernel.shape[-1]
    if width == 5 and normed.is_contiguous(memory_format=torch.channels_last):
        grad = grad.contiguous(memory_format=torch.channels_last)
        gkernel = depthwise_weight_gradient(normed, grad, stride, activate=True)
        # The gradient with respect to a convolution's input does not depend on that input.
        gy = convolution_backward(
            grad, normed, kernel, stride=stride, padding=(2, 2), wanted=(True, False)
        )[0]
    else:
        gy, gkernel = convolution_backward(
            grad, _silu(normed), kernel, stride=stride, padding=(width // 2, width // 2),
            wanted=(True, True),
        )  # fmt: skip
    _aten.silu_backward.grad_input(gy, normed, grad_input=out)
    return gkernel


class _NormSiLUProject(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        kernel: Tensor,
        reduce_weight: Tensor | None,
        reduce_bias: Tensor | None,
        expand_weight: Tensor | None,
        expand_bias: Tensor | None,
    ) -> Tensor:
        y, mean, inverse_std = _norm_silu(x, weight, bias, eps)
        means = hidden = wide = None
        if reduce_weight is not None and expand_weight is not None:
            means = y.mean((2, 3), keepdim=True)
            hidden = F.relu(F.conv2d(means, reduce_weight, reduce_bias))
            wide = F.conv2d(hidden, expand_weight, expand_bias)
            y.mul_(F.hardsigmoid(wide))
        ctx.save_for_backward(
            x, weight, bias, mean, inverse_std, kernel,
            reduce_weight, expand_weight, means, hidden, wide,
        )  # fmt: skip
        ctx.eps = eps
        return F.conv2d(y, kernel)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse_std, kernel, *gating = ctx.saved_tensors
        normed = _normed_again(x, weight, bias, mean, inverse_std)
        y = _silu(normed)
        gates: tuple[Tensor | None, ...] = (None, None, None, None)
        if gating[0] is None:
            gy, gkernel = _pointwise_backward(grad, y, kernel)
        else:
            gy, gkernel, gates = _gated_backward(grad, y, kernel, *gating)
        gy = _aten.silu_backward.grad_input(gy, normed, grad_input=normed)
        gx, gweight, gbias = batch_norm_gradients(gy, x, weight, mean, inverse_std, ctx.eps)
        return gx, gweight, gbias, None, gkernel, *gates


def _gated_backward(  # noqa: PLR0917 - the order in which they are saved
    grad: Tensor,
    y: Tensor,
    kernel: Tensor,
    reduce_weight: Tensor,
    expand_weight: Tensor,
    means: Tensor,
    hidden: Tensor,
    wide: Tensor,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """Return the gradients of y, the kernel, and weights and biases of the gates' network."""
    gates = F.hardsigmoid(wide)
    gated, gkernel = _pointwise_backward(
        grad, torch.mul(y, gates, out=scratch.like(y, "gated")), kernel
    )
    ggates = y.mul_(gated).sum((2, 3), keepdim=True)
    gwide = _aten.hardsigmoid_backward(ggates, wide)
    ghidden, gexpand, gexpand_bias = _pointwise_backward_with_bias(gwide, hidden, expand_weight)
    ghidden = _aten.threshold_backward(ghidden, hidden, 0)
    gmeans, greduce, greduce_bias = _pointwise_backward_with_bias(ghidden, means, reduce_weight)
    share = gmeans / (y.shape[2] * y.shape[3])
    gy = torch.addcmul(share, gated, gates, out=y)
    return gy, gkernel, (greduce, greduce_bias, gexpand, gexpand_bias)


class _SiLUPointwise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        kernel: Tensor,
        bias: Tensor,
    ) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return F.conv2d(_silu(x), kernel, bias)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        gy, gkernel, gbias = _pointwise_backward_with_bias(grad, _silu(x), kernel)
        return _aten.silu_backward.grad_input(gy, x, grad_input=gy), gkernel, gbias


def _norm_silu(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return silu(batch norm of x), in passing memory, and the statistics."""
    y = scratch.like(x, "normed")
    mean, inverse_std = batch_normed(x, weight, bias, eps, out=y)
    return F.silu(y, inplace=True), mean, inverse_std


def _normed_again(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse_std: Tensor
) -> Tensor:
    """Return the batch norm of x, in passing memory."""
    normed = scratch.like(x, "normed")
    normed_by(x, weight, bias, mean, inverse_std, out=normed)
    return normed


def _pieces(x: Tensor) -> list[slice]:
    """Return images that go together, so that passing memory holds a piece of a large map."""
    images = max(1, _PASSING // (x.numel() // len(x)))
    return [slice(first, first + images) for first in range(0, len(x), images)]


def _silu(x: Tensor) -> Tensor:
    """Return silu(x), in passing memory."""
    return _aten.silu.out(x, out=scratch.like(x, "activated"))  # type: ignore[no-any-return]


def _pointwise_backward(grad: Tensor, x: Tensor, kernel: Tensor) -> tuple[Tensor, Tensor]:
    gx, gkernel, _ = _aten.convolution_backward(
        grad, x, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, False]
    )
    return gx, gkernel


def _pointwise_backward_with_bias(
    grad: Tensor, x: Tensor, kernel: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _aten.convolution_backward(  # type: ignore[no-any-return]
        grad, x, kernel, [len(kernel)], [1, 1], [0, 0], [1, 1], False, [0, 0], 1,
        [True, True, True],
    )  # fmt: skip
