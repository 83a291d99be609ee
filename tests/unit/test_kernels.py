"""Training forms compute what the stock operators compute."""

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from hwnas.nets.kernels import add_scaled, batch_norm, batch_norm_silu, depthwise
from hwnas.nets.mbconv import MBConv
from hwnas.nets.norms import BatchNorm
from hwnas.nets.recompute import (
    expand_norm_silu_depthwise,
    norm_silu_depthwise,
    norm_silu_project,
    silu_pointwise,
)
from hwnas.nets.regularise import DropPath
from hwnas.nets.synchronised import synchronised, synchronised_batch_norm
from hwnas.spaces import blocks


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


@pytest.mark.parametrize("with_silu", [False, True])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize(
    "shape",
    [(8, 24, 24, 24), (4, 40, 21, 20), (2, 200, 16, 16), (1, 5, 128, 112), (3, 24, 55, 17)],
)
def test_batch_norm_of_rows_that_leave_a_rest(
    shape: tuple[int, ...], layout: torch.memory_format, with_silu: bool
) -> None:
    """Those whose pixels can be taken together, and at last one whose number of pixels is odd."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x = (3 + 2 * noise).contiguous(memory_format=layout).requires_grad_()
    weight = torch.linspace(-1.5, 2, shape[1]).requires_grad_()
    bias = torch.linspace(-1, 1, shape[1]).requires_grad_()
    stock = F.batch_norm(x, None, None, weight, bias, True, 0.0, 1e-5)
    if with_silu:
        ours, stock = batch_norm_silu(x, weight, bias, 1e-5), F.silu(stock)
    else:
        ours = batch_norm(x, weight, bias, 1e-5)
    torch.testing.assert_close(ours, stock, rtol=1e-5, atol=1e-5)
    assert ours.stride() == stock.stride()
    seed = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    got = torch.autograd.grad(ours, (x, weight, bias), seed)
    wanted = torch.autograd.grad(stock, (x, weight, bias), seed)
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


def test_statistics_of_joined_rows_are_pooled() -> None:
    """Pixels that differ by where they stand: each joined row alone would be normalised wrongly."""
    x = torch.zeros(8, 24, 24, 24).contiguous(memory_format=torch.channels_last)
    x[..., ::2] = 1
    normed = batch_norm(x.requires_grad_(), torch.ones(24), torch.zeros(24), 1e-5)
    assert normed.mean().abs() < 1e-5
    torch.testing.assert_close(normed.square().mean(), torch.tensor(1.0), rtol=1e-3, atol=0)


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


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


def assert_same(
    ours: torch.Tensor, stock: torch.Tensor, inputs: list[torch.Tensor], *, rtol: float = 0.0
) -> None:
    """The values are equal, or to rounding, and the gradients with respect to all inputs close."""
    torch.testing.assert_close(ours, stock, rtol=rtol, atol=rtol)
    seed = torch.randn(ours.shape, generator=torch.Generator().manual_seed(1))
    for mine, theirs in zip(
        torch.autograd.grad(ours, inputs, seed),
        torch.autograd.grad(stock, inputs, seed),
        strict=True,
    ):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("side", [3, 8, 13])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_norm_silu_depthwise(
    kernel: int, stride: int, side: int, layout: torch.memory_format
) -> None:
    x = channels_last(3, 8, side, side)
    weight, bias, filters = random(8), random(8), random(8, 1, kernel, kernel)
    entered = x.contiguous(memory_format=layout)
    ours = norm_silu_depthwise(entered, weight, bias, 1e-5, filters, stride)
    y = F.silu(F.batch_norm(entered, None, None, weight, bias, True, 0.0, 1e-5))
    stock = F.conv2d(y, filters, None, stride, kernel // 2, groups=8)
    assert_same(ours, stock, [x, weight, bias, filters])


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_large_map_goes_in_pieces(
    kernel: int, stride: int, layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hwnas.nets.recompute._PASSING", 2 * 24 * 13 * 13)
    x = channels_last(5, 24, 13, 13)  # two images, two, one
    weight, bias, filters = random(24), random(24), random(24, 1, kernel, kernel)
    entered = x.contiguous(memory_format=layout)
    ours = norm_silu_depthwise(entered, weight, bias, 1e-5, filters, stride)
    y = F.silu(F.batch_norm(entered, None, None, weight, bias, True, 0.0, 1e-5))
    stock = F.conv2d(y, filters, None, stride, kernel // 2, groups=24)
    assert_same(ours, stock, [x, weight, bias, filters], rtol=1e-5)


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("passing", [2**22, 2 * 24 * 13 * 13])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_what_widens_is_computed_again(
    kernel: int,
    stride: int,
    passing: int,
    layout: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hwnas.nets.recompute._PASSING", passing)
    x, expand = channels_last(5, 6, 13, 13), random(24, 6, 1, 1)
    weight, bias, filters = random(24), random(24), random(24, 1, kernel, kernel)
    entered = x.contiguous(memory_format=layout)
    ours = expand_norm_silu_depthwise(entered, expand, weight, bias, 1e-5, filters, stride)
    y = F.conv2d(entered, expand)
    kept = norm_silu_depthwise(y, weight, bias, 1e-5, filters, stride)
    assert torch.equal(ours, kept)
    y = F.silu(F.batch_norm(y, None, None, weight, bias, True, 0.0, 1e-5))
    stock = F.conv2d(y, filters, None, stride, kernel // 2, groups=24)
    assert_same(ours, stock, [x, expand, weight, bias, filters], rtol=1e-5)


def kept_bytes(block: MBConv, x: torch.Tensor) -> int:
    """Return how much memory the forward pass keeps for the backward pass, without weights."""
    known = {one.untyped_storage().data_ptr() for one in block.parameters()}
    kept = dict[int, int]()

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        out = block(x)
    out.sum().backward()
    return sum(kept.values())


def test_only_wide_maps_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map with as many values as the limit is kept, one with more is not."""
    torch.manual_seed(0)
    declared = blocks.MBConv(
        cin=4, cout=4, mid=16, kernel=3, stride=1, expands=True, squeezes=False
    )
    block = MBConv(declared)
    for norm in block.modules():
        if isinstance(norm, BatchNorm):
            norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    x = channels_last(2, 4, 8, 8)
    values = 2 * 16 * 8 * 8
    monkeypatch.setattr("hwnas.nets.recompute._WIDE", values)
    with_it = kept_bytes(block, x)
    monkeypatch.setattr("hwnas.nets.recompute._WIDE", values - 1)
    assert with_it - kept_bytes(block, x) == 4 * values


@pytest.mark.parametrize("gain", [1.0, 0.5])
@pytest.mark.parametrize("shape", [(6,), (1, 6)])
def test_add_scaled(gain: float, shape: tuple[int, ...]) -> None:
    x, branch, scale = channels_last(3, 6, 4, 4), channels_last(3, 6, 4, 4), random(*shape)
    stock = x + branch * (scale * gain).view(1, -1, 1, 1)
    assert_same(add_scaled(x, branch, scale, gain), stock, [x, branch, scale], rtol=1e-6)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_norm_silu_project(gated: bool, layout: torch.memory_format) -> None:
    x = channels_last(3, 8, 7, 7)
    weight, bias, kernel = random(8), random(8), random(5, 8, 1, 1)
    gates = (random(4, 8, 1, 1), random(4), random(8, 4, 1, 1), random(8)) if gated else None
    entered = x.contiguous(memory_format=layout)
    ours = norm_silu_project(entered, weight, bias, 1e-5, kernel, gates)
    y = F.silu(F.batch_norm(entered, None, None, weight, bias, True, 0.0, 1e-5))
    if gates is not None:
        hidden = F.relu(F.conv2d(y.mean((2, 3), keepdim=True), gates[0], gates[1]))
        y = y * F.hardsigmoid(F.conv2d(hidden, gates[2], gates[3]))
    assert_same(ours, F.conv2d(y, kernel), [x, weight, bias, kernel, *(gates or ())])


def test_silu_pointwise() -> None:
    x, kernel, bias = channels_last(3, 8, 4, 4), random(5, 8, 1, 1), random(5)
    ours = silu_pointwise(x, kernel, bias)
    assert_same(ours, F.conv2d(F.silu(x), kernel, bias), [x, kernel, bias])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_synchronised_batch_norm_of_one_process_is_batch_norm(dtype: torch.dtype) -> None:
    x = channels_last(4, 6, 5, 5).detach().to(dtype).requires_grad_()
    kept = torch.float64 if dtype == torch.float64 else torch.float32
    weight = torch.linspace(-1.5, 2, 6, dtype=kept).requires_grad_()
    bias = torch.linspace(-1, 1, 6, dtype=kept).requires_grad_()
    with synchronised(lambda vector: vector[None]):
        ours = synchronised_batch_norm(x, weight, bias, 1e-5)
    stock = F.batch_norm(x, None, None, weight, bias, True, 0.0, 1e-5)
    rtol = 2e-2 if dtype == torch.bfloat16 else 1e-4
    torch.testing.assert_close(ours, stock, rtol=rtol, atol=rtol)
    seed = torch.linspace(-1, 1, ours.numel(), dtype=dtype).view_as(ours)
    for mine, theirs in zip(
        torch.autograd.grad(ours, (x, weight, bias), seed),
        torch.autograd.grad(stock, (x, weight, bias), seed),
        strict=True,
    ):
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=rtol, atol=rtol)


def test_synchronised_batch_norm_joins_maps_of_different_sizes() -> None:
    """Two processes, of which this is the first; the second has three times as many values."""
    own, other = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)).split([10, 30])
    own = own.t().reshape(1, 3, 10, 1)
    row = torch.cat([other.mean(0), other.var(0, correction=0), torch.tensor([30.0])])
    with synchronised(lambda vector: torch.stack([vector, row])):
        ours = synchronised_batch_norm(own, torch.ones(3), torch.zeros(3), 1e-5)
    joined = torch.cat([own[0, :, :, 0].t(), other])
    wanted = (own - joined.mean(0).view(1, 3, 1, 1)) / joined.std(0, correction=0).view(1, 3, 1, 1)
    torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)


def test_synchronised_batch_norm_gives_the_backward_pass_all_statistics() -> None:
    """CUDA's form for channels_last refuses to run without saved ones; CPUs ignore them."""
    given = []

    class Listening(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.native_batch_norm_backward.default:
                given.append(args)
            return function(*args, **(kwargs or {}))

    x = channels_last(4, 6, 5, 5)
    with synchronised(lambda vector: vector[None]):
        ours = synchronised_batch_norm(x, torch.ones(6), torch.zeros(6), 1e-5)
    with Listening():
        ours.square().sum().backward()
    ((_, _, _, mean, variance, saved_mean, saved_inverse_std, *_),) = given
    assert torch.equal(saved_mean, mean)
    assert torch.equal(saved_inverse_std, (variance + 1e-5).rsqrt())
    assert saved_inverse_std.dtype == torch.float32


def test_a_wide_map_under_autocast_has_gradients() -> None:
    """The convolution answers in half precision there, whatever its input has."""
    x, kernel = channels_last(2, 6, 8, 8), random(6, 1, 5, 5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = depthwise(x, kernel, 1)
    assert ours.dtype == torch.bfloat16
    stock = F.conv2d(x.bfloat16(), kernel.bfloat16(), None, 1, 2, groups=6)
    assert_same(ours, stock, [x, kernel])


def test_paths_are_dropped_in_the_type_of_the_branch() -> None:
    drop = DropPath().train()
    drop.rate = 0.5
    branch = torch.ones(16, 3, 2, 2, dtype=torch.bfloat16)
    with torch.random.fork_rng(devices=[]):
        left = drop(branch)
    assert left.dtype == torch.bfloat16
    assert set(left.flatten().tolist()) == {0.0, 2.0}
