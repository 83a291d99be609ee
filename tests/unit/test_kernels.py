"""Training forms compute what the stock operators compute."""

import pytest
import torch
from torch.nn import functional as F

from hwnas.nets.kernels import batch_norm_silu, depthwise


def channels_last(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    images = torch.randn(shape, generator=generator)
    return images.contiguous(memory_format=torch.channels_last).requires_grad_()


@pytest.mark.parametrize("shape", [(2, 8, 5, 5), (4, 3, 12, 12), (8, 16, 1, 1)])
def test_batch_norm_silu(shape: tuple[int, ...]) -> None:
    x = channels_last(*shape)
    weight = torch.linspace(-1.5, 2, shape[1]).requires_grad_()
    bias = torch.linspace(-1, 1, shape[1]).requires_grad_()
    ours = batch_norm_silu(x, weight, bias, 1e-5)
    stock = F.silu(F.batch_norm(x, None, None, weight, bias, True, 0.0, 1e-5))
    assert torch.equal(ours, stock)
    seed = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    got = torch.autograd.grad(ours, (x, weight, bias), seed)
    wanted = torch.autograd.grad(stock, (x, weight, bias), seed)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 4, 7, 8, 12, 13])
def test_depthwise(kernel: int, stride: int, side: int) -> None:
    x = channels_last(3, 8, side, side)
    weight = torch.randn(8, 1, kernel, kernel, generator=torch.Generator().manual_seed(0))
    weight.requires_grad_()
    ours = depthwise(x, weight, stride)
    stock = F.conv2d(x, weight, None, stride, kernel // 2, groups=8)
    assert torch.equal(ours, stock)
    seed = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (x, weight), seed),
        torch.autograd.grad(stock, (x, weight), seed),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
