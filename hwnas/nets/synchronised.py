"""Batch norm by the statistics of all processes of a run, with gradient; on any device.

torch's own synchronised batch norm runs on GPUs only. Here statistics and sums of gradients go
through a function that gathers one vector of every process, whatever carries it.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Returns the vectors of all processes as rows, in the same order everywhere.
Gather = Callable[[Tensor], Tensor]

_aten = torch.ops.aten
_gathers: list[Gather] = []


@contextmanager
def synchronised(gather: Gather | None) -> Iterator[None]:
    """Let batch norms without running statistics use those of all processes in the body.

    The backward pass may come after the body. None changes nothing.
    """
    if gather is None:
        yield
        return
    _gathers.append(gather)
    try:
        yield
    finally:
        _gathers.pop()


def is_synchronised() -> bool:
    """Return whether this is the body of `synchronised`."""
    return bool(_gathers)


def synchronised_batch_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """Return x normalised by the statistics of all processes' maps."""
    return _SynchronisedBatchNorm.apply(  # type: ignore[no-any-return]
        x, weight, bias, eps, _gathers[-1]
    )


class _SynchronisedBatchNorm(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917 - autograd passes by position
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        gather: Gather,
    ) -> Tensor:
        mean, variance, count = _joint_statistics(x, gather)
        ctx.save_for_backward(x, weight, mean, variance, count)
        ctx.eps, ctx.gather = eps, gather
        return torch.native_batch_norm(x, weight, bias, mean, variance, False, 0.0, eps)[0]

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401
        grad: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, None, None]:
        x, weight, mean, variance, count = ctx.saved_tensors
        inverse_std = (variance + ctx.eps).rsqrt()
        # As if the statistics were constants; what they contribute is added below. They are given
        # as saved ones, too: CUDA's form for channels_last takes them from nowhere else.
        gx, gweight, gbias = _aten.native_batch_norm_backward(
            grad, x, weight, mean, variance, mean, inverse_std, False, ctx.eps, [True, True, True]
        )
        sums = ctx.gather(torch.cat([gweight, gbias])).sum(0) / count
        along, mean_grad = sums.chunk(2)
        slope = -weight * inverse_std.square() * along
        shift = -weight * inverse_std * mean_grad - slope * mean
        gx = gx + (x * slope.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1))
        return gx.to(x.dtype), gweight, gbias, None, None


def _joint_statistics(x: Tensor, gather: Gather) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean and variance of each channel, and the number of values, of all processes."""
    wide = x if x.dtype in (torch.float32, torch.float64) else x.float()
    variance, mean = torch.var_mean(wide, (0, 2, 3), correction=0)
    own = mean.new_full((1,), x.numel() // x.shape[1])
    rows = gather(torch.cat([mean, variance, own]))
    means, variances, counts = rows[:, : len(mean)], rows[:, len(mean) : -1], rows[:, -1:]
    count = counts.sum()
    mean = (means * counts).sum(0) / count
    variance = ((variances + (means - mean).square()) * counts).sum(0) / count
    return mean, variance, count
