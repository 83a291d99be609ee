"""Chains of operators that keep only what they start from, and compute the rest again.

A stock chain keeps the input of each of its operators for the backward pass. Of a batch norm, an
activation and a convolution that is the map three times over; here it is kept once. What is
computed again are passes over one map, which cost little beside the convolutions. Values of the
forward pass are those of the stock operators bit for bit, or to rounding where
`hwnas.nets.batchnorm` says so.

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
# Values of a map; 16 MB.
_PASSING = 2**22
Gates = tuple[Tensor, Tensor, Tensor, Tensor]


def norm_silu_depthwise(  # noqa: PLR0917 - like the operators it stands for
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, kernel: Tensor, stride: int
) -> Tensor:
    """Return the same-padded depthwise convolution of silu(batch norm of x)."""
    return _NormSiLUDepthwise.apply(  # type: ignore[no-any-return]
        x, weight, bias, eps, kernel, stride
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
        pieces = _pieces(x)
        if len(pieces) == 1:
            y, mean, inverse_std = _norm_silu(x, weight, bias, eps)
            out = _depthwise(y, kernel, stride)
        else:
            mean, inverse_std = batch_statistics(x, eps)
            side = [-(-length // stride) for length in x.shape[2:]]
            shape = (len(x), len(kernel), *side)
            out = torch.empty(shape, memory_format=torch.channels_last)
            for piece in pieces:
                y = _normed_again(x[piece], weight, bias, mean, inverse_std)
                out[piece] = _depthwise(F.silu(y, inplace=True), kernel, stride)
        ctx.save_for_backward(x, weight, bias, mean, inverse_std, kernel)
        ctx.eps, ctx.stride = eps, stride
        return out

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None, Tensor, None]:
        x, weight, bias, mean, inverse_std, kernel = ctx.saved_tensors
        pieces = _pieces(x)
        gy, gkernel = None, torch.zeros_like(kernel)
        for piece in pieces:
            normed = _normed_again(x[piece], weight, bias, mean, inverse_std)
            part, summand = _silu_depthwise_backward(grad[piece], normed, kernel, ctx.stride)
            gkernel += summand
            if len(pieces) > 1:
                gy = torch.empty_like(x) if gy is None else gy
                gy[piece] = part
            else:
                gy = part
        assert gy is not None
        gx, gweight, gbias = batch_norm_gradients(gy, x, weight, mean, inverse_std, ctx.eps)
        return gx, gweight, gbias, None, gkernel, None


def _depthwise(y: Tensor, kernel: Tensor, stride: int) -> Tensor:
    return F.conv2d(y, kernel, None, stride, kernel.shape[-1] // 2, groups=len(kernel))


def _silu_depthwise_backward(
    grad: Tensor, normed: Tensor, kernel: Tensor, stride: int
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `normed`, in its memory, and of the kernel."""
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
    return _aten.silu_backward.grad_input(gy, normed, grad_input=normed), gkernel


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
