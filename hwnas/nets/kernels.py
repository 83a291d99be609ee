"""Training forms that are faster or leaner than the stock ones on a CPU; same mathematics.

Each function falls back to the stock operator where its form does not apply (other devices and
types, export, no gradients), and the values of its forward pass are those of the stock operator
bit for bit, or to rounding where `hwnas.nets.batchnorm` says so. Figures: `docs/training-forms.md`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from hwnas.nets.batchnorm import batch_norm_gradients, batch_normed, normed_by
from hwnas.nets.scratch import scratch

_aten = torch.ops.aten


def trains_on_cpu(x: Tensor) -> bool:
    """Return whether the forms of this module apply to x: gradients, float32 and a CPU.

    Not under autocast, where an operator inside a form may answer in another type than x has.
    """
    return (
        x.device.type == "cpu"
        and x.dtype == torch.float32
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
        and not torch.compiler.is_exporting()
    )


def batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return the batch norm of x with batch statistics."""
    if trains_on_cpu(x):
        return _BatchNorm.apply(x, weight, bias, eps)  # type: ignore[no-any-return]
    return F.batch_norm(x, None, None, weight, bias, True, 0.0, eps)


class _BatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> Tensor:
        normed = torch.empty_like(x)
        mean, inverse_std = batch_normed(x, weight, bias, eps, out=normed)
        ctx.save_for_backward(x, weight, mean, inverse_std)
        ctx.eps = eps
        return normed

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, mean, inverse_std = ctx.saved_tensors
        return *batch_norm_gradients(grad, x, weight, mean, inverse_std, ctx.eps), None


def batch_norm_silu(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return silu(batch norm of x with batch statistics), keeping only x for the backward pass."""
    if trains_on_cpu(x):
        return _BatchNormSiLU.apply(x, weight, bias, eps)  # type: ignore[no-any-return]
    return F.silu(F.batch_norm(x, None, None, weight, bias, True, 0.0, eps))


class _BatchNormSiLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
    ) -> Tensor:
        normed = torch.empty_like(x)
        mean, inverse_std = batch_normed(x, weight, bias, eps, out=normed)
        ctx.save_for_backward(x, weight, bias, mean, inverse_std)
        ctx.eps = eps
        return F.silu(normed, inplace=True)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        x, weight, bias, mean, inverse_std = ctx.saved_tensors
        normed = torch.empty_like(x)
        normed_by(x, weight, bias, mean, inverse_std, out=normed)
        # The recomputed activation is not needed again, so its memory takes the gradient.
        grad = _aten.silu_backward.grad_input(grad, normed, grad_input=normed)
        return *batch_norm_gradients(grad, x, weight, mean, inverse_std, ctx.eps), None


def depthwise(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Return the same-padded depthwise convolution of x."""
    kernel = weight.shape[-1]
    if kernel == 5 and trains_on_cpu(x) and x.is_contiguous(memory_format=torch.channels_last):
        return _Depthwise5.apply(x, weight, stride)  # type: ignore[no-any-return]
    return F.conv2d(x, weight, None, stride, kernel // 2, groups=weight.shape[0])


class _Depthwise5(torch.autograd.Function):
    """5x5 depthwise convolution; oneDNN has no weight gradient of that width, but one of 3."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        stride: int,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.stride = stride
        return F.conv2d(x, weight, None, stride, 2, groups=weight.shape[0])

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        gx = gweight = None
        if ctx.needs_input_grad[0]:
            gx = convolution_backward(
                grad, x, weight, stride=ctx.stride, padding=(2, 2), wanted=(True, False)
            )[0]
        if ctx.needs_input_grad[1]:
            gweight = depthwise_weight_gradient(x, grad, ctx.stride)
        return gx, gweight, None


def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    *,
    stride: int,
    padding: tuple[int, int],
    wanted: tuple[bool, bool],
) -> tuple[Tensor, Tensor]:
    """Return the gradients of a depthwise convolution's input and weight that are wanted."""
    gx, gweight, _ = _aten.convolution_backward(
        grad, x, weight, None, [stride, stride], list(padding), [1, 1], False, [0, 0],
        weight.shape[0], [*wanted, False],
    )  # fmt: skip
    return gx, gweight


def depthwise_weight_gradient(
    x: Tensor, grad: Tensor, stride: int, *, activate: bool = False
) -> Tensor:
    """Return the gradient of a 5x5 depthwise weight, of a convolution of x or of silu(x).

    From two 5x3 gradients, on two views of one map with two zeros before each row. Rows follow
    each other in memory, so these zeros also end the row before; the second view starts two
    columns later.
    """
    batch, channels, height, width = x.shape
    padded_width = width + 2
    size = batch * height * padded_width * channels
    flat = scratch.flat(x, size + 2 * channels, "activated")
    flat[size:] = 0
    rows = flat[:size].view(batch, height, padded_width, channels)
    rows[:, :, :2] = 0
    inside, tokens = rows[:, :, 2:], x.permute(0, 2, 3, 1)
    if activate:
        _aten.silu.out(tokens, out=inside)
    else:
        inside.copy_(tokens)
    like = x.new_empty(channels, 1, 5, 3)
    result = x.new_empty(channels, 1, 5, 5)
    for column in (0, 2):  # columns 0-2 and 2-4 of the kernel
        shifted = flat[column * channels : column * channels + size]
        view = shifted.view(batch, height, padded_width, channels).permute(0, 3, 1, 2)
        result[..., column : column + 3] = convolution_backward(
            grad, view, like, stride=stride, padding=(2, 0), wanted=(False, True)
        )[1]
    return result


def add_scaled(x: Tensor, branch: Tensor, scale: Tensor, gain: float) -> Tensor:
    """Return x + branch * scale * gain, where scale has an entry per channel."""
    if trains_on_cpu(x):
        return _AddScaled.apply(x, branch, scale, gain)  # type: ignore[no-any-return]
    return torch.addcmul(x, branch, (scale * gain).view(1, -1, 1, 1))


class _AddScaled(torch.autograd.Function):
    """The stock operator's gradients take two more passes, which multiply by one."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        branch: Tensor,
        scale: Tensor,
        gain: float,
    ) -> Tensor:
        factor = (scale * gain).view(1, -1, 1, 1)
        ctx.save_for_backward(branch, factor)
        ctx.gain, ctx.shape = gain, scale.shape
        return torch.addcmul(x, branch, factor)

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        branch, factor = ctx.saved_tensors
        product = torch.mul(grad, branch, out=scratch.like(branch, "product"))
        gscale = product.sum((0, 2, 3)).mul_(ctx.gain).view(ctx.shape)
        return grad, grad * factor, gscale, None
