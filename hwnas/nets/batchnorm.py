"""Batch norm by the statistics of the batch on a CPU, as fast for a width of 24 as for one of 32.

The stock kernels go through the rows of a channels_last map, one per pixel, in vectors of 16
values, and lose up to three quarters of their time on what is left over in each row. Here pixels
are taken together until their rows leave nothing over: the same memory, seen as fewer and wider
rows, whose statistics are then pooled. Results differ from the stock ones by rounding; other maps
go to the stock kernels. Figures: `docs/training-forms.md`.
"""

from math import gcd

import torch
from torch import Tensor

_aten = torch.ops.aten
_VECTOR = 16
_WORTHWHILE = 2**16  # values in a map; below, the few small operators more take longer
_LONG_ROW = 512


def batch_normed(
    x: Tensor, weight: Tensor, bias: Tensor, eps: float, *, out: Tensor
) -> tuple[Tensor, Tensor]:
    """Write the batch norm of x to `out`; return mean and inverse standard deviation."""
    pixels = _pixels_in_a_row(x)
    if pixels == 1 or not _is_channels_last(out):
        mean, inverse_std = x.new_empty(0), x.new_empty(0)
        _aten.native_batch_norm.out(
            x, weight, bias, None, None, True, 0.0, eps,
            out=out, save_mean=mean, save_invstd=inverse_std,
        )  # fmt: skip
        return mean, inverse_std
    means, variances = (
        statistic.view(pixels, -1)
        for statistic in _aten.batch_norm_update_stats(_rows(x, pixels), None, None, 0.0)
    )
    mean = means.mean(0)
    inverse_std = (variances.mean(0) + (means - mean).square().mean(0) + eps).rsqrt()
    normed_by(x, weight, bias, mean, inverse_std, eps, out=out)
    return mean, inverse_std


def normed_by(  # noqa: PLR0917 - like the operator it stands for
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    mean: Tensor,
    inverse_std: Tensor,
    eps: float,
    *,
    out: Tensor,
) -> None:
    """Write x, normalised by these statistics, to `out`."""
    pixels = _pixels_in_a_row(x) if _is_channels_last(out) else 1
    variance = inverse_std.pow(-2) - eps
    repeated = (v.repeat(pixels) for v in (weight, bias, mean, variance))
    unused = x.new_empty(0)
    _aten.native_batch_norm.out(
        _rows(x, pixels), *repeated, False, 0.0, eps,
        out=_rows(out, pixels), save_mean=unused, save_invstd=unused.clone(),
    )  # fmt: skip


def batch_norm_gradients(  # noqa: PLR0917 - like the operator it stands for
    grad: Tensor, x: Tensor, weight: Tensor, mean: Tensor, inverse_std: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias."""
    pixels = _pixels_in_a_row(x) if _is_channels_last(grad) else 1
    if pixels == 1:
        return _aten.native_batch_norm_backward(  # type: ignore[no-any-return]
            grad, x, weight, None, None, mean, inverse_std, True, eps, [True, True, True]
        )
    repeated = [v.repeat(pixels) for v in (weight, mean, inverse_std)]
    _, *sums = _aten.native_batch_norm_backward(
        _rows(grad, pixels), _rows(x, pixels), repeated[0], None, None, *repeated[1:], True, eps,
        [False, True, True],
    )  # fmt: skip
    gweight, gbias = (total.view(pixels, -1).sum(0) for total in sums)
    count = x.numel() // x.shape[1]
    scale = weight * inverse_std
    slope = -scale * inverse_std * gweight / count
    shift = -scale * gbias / count - slope * mean
    return _linear(grad, scale, x, slope, shift), gweight, gbias


def _linear(grad: Tensor, scale: Tensor, x: Tensor, slope: Tensor, shift: Tensor) -> Tensor:
    """Return grad * scale + x * slope + shift, by rows so long that their number costs little."""
    channels, count = x.shape[1], x.numel() // x.shape[1]
    pixels = _pixels_in_a_row(x)
    while pixels * channels < _LONG_ROW and count % (2 * pixels) == 0:
        pixels *= 2
    grads, values = (t.permute(0, 2, 3, 1).view(-1, pixels * channels) for t in (grad, x))
    scale, slope, shift = (v.repeat(pixels) for v in (scale, slope, shift))
    gx = torch.addcmul(shift, values, slope).addcmul_(grads, scale)
    return gx.as_strided(x.shape, x.stride())


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
