"""Batch norm by the statistics of the batch on a CPU, as fast for a width of 24 as for one of 32.

The stock kernels go through the rows of a channels_last map, one per pixel, in vectors of 16
values, and lose up to three quarters of their time on what is left over in each row. Here pixels
are taken together until their rows leave nothing over: the same memory, seen as fewer and wider
rows, whose statistics are then pooled. What is linear in a map goes by rows that are longer still,
as their number costs time, too. Results differ from the stock ones by rounding; other maps go to
the stock kernels. Figures: `docs/training-forms.md`.
"""

from collections.abc import Sequence
from math import gcd

import torch
from torch import Tensor

_aten = torch.ops.aten
_VECTOR = 16
_LONG_ROW = 512
# Values in a map. Below the first, the few small operators more take longer; from the second on,
# the stock kernel that normalises does so even where rows leave nothing over.
_WORTHWHILE, _LARGE = 2**16, 2**20


def batch_normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the batch norm of x to `out`; return mean and inverse standard deviation."""
    pixels = _pixels_in_a_row(x)
    if (pixels == 1 and x.numel() < _LARGE) or not (
        _is_channels_last(x) and _is_channels_last(out)
    ):
        mean, inverse_std = x.new_empty(0), x.new_empty(0)
        _aten.native_batch_norm.out(
            x, weight, bias, None, None, True, 0.0, eps,
            out=out, save_mean=mean, save_invstd=inverse_std,
        )  # fmt: skip
        return mean, inverse_std
    mean, inverse_std = batch_statistics(x, eps)
    normed_by(x, weight, bias, mean, inverse_std, out=out)
    return mean, inverse_std


def batch_statistics(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return mean and inverse standard deviation of each channel."""
    pixels = _pixels_in_a_row(x)
    mean, variance = _aten.batch_norm_update_stats(_rows(x, pixels), None, None, 0.0)
    if pixels > 1:
        means, variances = mean.view(pixels, -1), variance.view(pixels, -1)
        mean = means.mean(0)
        variance = variances.mean(0) + (means - mean).square().mean(0)
    return mean, (variance + eps).rsqrt()


def normed_by(
    x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, inverse_std: Tensor, *, out: Tensor
) -> None:
    """Write x, normalised by these statistics, to `out`."""
    scale = weight * inverse_std
    shift = torch.addcmul(bias, mean, scale, value=-1)
    if _is_channels_last(x) and _is_channels_last(out):
        (values, written), (scale, shift) = _long_rows((x, out), (scale, shift))
        torch.addcmul(shift, values, scale, out=written)
    else:
        torch.addcmul(shift.view(1, -1, 1, 1), x, scale.view(1, -1, 1, 1), out=out)


def batch_norm_gradients(  # noqa: PLR0917 - like the operator it stands for
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    eps: float,
    *,
    spends_x: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias; that of x may take the memory of x if spent."""
    pixels = _pixels_in_a_row(x) if _is_channels_last(grad) else 1
    if pixels == 1:
        return _aten.native_batch_norm_backward(  # type: ignore[no-any-return]
            grad, x, weight, None, None, mean, inverse_std, True, eps, [True, True, True]
        )
    repeated = torch.stack((mean, inverse_std)).repeat(1, pixels)
    _, *sums = _aten.native_batch_norm_backward(
        _rows(grad, pixels), _rows(x, pixels), None, None, None, *repeated, True, eps,
        [False, True, True],
    )  # fmt: skip
    gweight, gbias = torch.stack(sums).view(2, pixels, -1).sum(1)
    count = x.numel() // x.shape[1]
    scale = weight * inverse_std
    slope = scale * inverse_std * (gweight / -count)
    shift = torch.addcmul(scale * (gbias / -count), slope, mean, value=-1)
    (grads, values), (scale, slope, shift) = _long_rows((grad, x), (scale, slope, shift))
    gx = torch.addcmul(shift, values, slope, out=values if spends_x else None)
    gx.addcmul_(grads, scale)
    return gx.as_strided(x.shape, x.stride()), gweight, gbias


def _long_rows(
    maps: Sequence[Tensor], factors: Sequence[Tensor]
) -> tuple[list[Tensor], Sequence[Tensor]]:
    """Return channels_last maps by rows so long that their number costs little, and factors so."""
    channels, count = maps[0].shape[1], maps[0].numel() // maps[0].shape[1]
    pixels = 1
    while pixels * channels < _LONG_ROW and count % (2 * pixels) == 0:
        pixels *= 2
    rows = [one.permute(0, 2, 3, 1).view(-1, pixels * channels) for one in maps]
    return rows, torch.stack(tuple(factors)).repeat(1, pixels).unbind()


def _pixels_in_a_row(x: Tensor) -> int:
    """Return how many pixels to take together; 1 leaves the map as it is."""
    channels = x.shape[1]
    pixels = _VECTOR // gcd(channels, _VECTOR)
    fits = (x.numel() // channels) % pixels == 0 and x.numel() >= _WORTHWHILE
    return pixels if fits and _is_channels_last(x) else 1


def _is_channels_last(x: Tensor) -> bool:
    return x.is_contiguous(memory_format=torch.channels_last)


def _rows(x: Tensor, pixels: int) -> Tensor:
    """Return the same memory as a channels_last map with so many pixels taken as one."""
    if pixels == 1:
        return x
    channels = pixels * x.shape[1]
    return x.permute(0, 2, 3, 1).view(1, -1, 1, channels).permute(0, 3, 1, 2)
