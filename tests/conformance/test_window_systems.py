"""A small copy of a system on windows, declared with descriptions and modules and nothing else.

S3, which found AutoFormerV2 (Chen et al., 2021): windows as a choice, the width of all heads
apart from that of the block, patches merged by a linear layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.nets import build
from hwnas.spaces import SPACES, Part, Placed, Space
from hwnas.spaces.blocks import Operation
from hwnas.testing import SPACE_CHECKS, SUPERNET_CHECKS, randomised_supernet

SIDE, HEAD_DIM = 16, 4


def _linear(cin: int, cout: int, places: int = 1) -> Operation:
    return Operation("linear", cin * cout * places, (cin + 1) * cout, cout * places)


def _conv(cin: int, cout: int, kernel: int, places: int, *, bias: int = 1) -> Operation:
    weights = cin * cout * kernel**2
    return Operation("conv", weights * places, weights + bias * cout, cout * places)


def _norm(channels: int) -> Operation:
    return Operation("norm", 0, 2 * channels, 0)


def _attention(pairs: int, value: int) -> Operation:
    return Operation("attention", 2 * pairs * value, 0, pairs + value)


def _table(entries: int) -> Operation:
    return Operation("table", 0, entries, 0)


@dataclass(frozen=True, kw_only=True)
class Merge:
    """Squares of patches become one patch: norm and linear layer over all channels of a square."""

    cin: int
    cout: int
    across: int = 2

    def side_after(self, side: int) -> int:
        return side // self.across

    def operations(self, side: int) -> Iterator[Operation]:
        wide = self.cin * self.across**2
        yield _norm(wide)
        yield _conv(wide, self.cout, 1, self.side_after(side) ** 2, bias=0)


class MergeModule(nn.Module):
    # The channels of a square are an axis of their own, or a prefix would be of the first patch.
    AXES = {"weight": ("-", "cin"), "bias": ("-", "cin"), "reduction": ("cout", "-", "cin")}

    def __init__(self, block: Merge) -> None:
        super().__init__()
        self.across, square = block.across, block.across**2
        self.weight = nn.Parameter(torch.ones(square, block.cin))
        self.bias = nn.Parameter(torch.zeros(square, block.cin))
        self.reduction = nn.Parameter(0.1 * torch.randn(block.cout, square, block.cin))

    def forward(self, x: Tensor) -> Tensor:
        squares = F.pixel_unshuffle(x, self.across).permute(0, 2, 3, 1)
        squares = squares.unflatten(3, (x.shape[1], -1)).transpose(3, 4)
        normed = F.layer_norm(squares, self.weight.shape, self.weight, self.bias)
        return F.linear(normed.flatten(3), self.reduction.flatten(1)).permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Windowed:
    """Attention within windows, moved by `shift`, with a bias for each relative position."""

    dim: int
    heads: int
    window: int
    shift: int

    def side_after(self, side: int) -> int:
        return side

    def operations(self, side: int) -> Iterator[Operation]:
        value = self.heads * HEAD_DIM
        for cin, cout in ((self.dim, value),) * 3 + ((value, self.dim),):
            yield _linear(cin, cout, side**2)
        yield _attention(side**2 * self.window**2, value)
        yield _norm(self.dim)
        yield _table((2 * self.window - 1) ** 2 * self.heads)


class WindowedModule(nn.Module):
    AXES = {
        "norm.*": ("dim",),
        "[qkv].weight": ("value", "dim"),
        "[qkv].bias": ("value",),
        "project.weight": ("dim", "value"),
        "project.bias": ("dim",),
        "table": ("offset", "offset", "heads"),
    }

    def __init__(self, block: Windowed) -> None:
        super().__init__()
        self.heads, self.window, self.shift = block.heads, block.window, block.shift
        value = block.heads * HEAD_DIM
        self.norm = nn.LayerNorm(block.dim)
        self.q, self.k, self.v = (nn.Linear(block.dim, value) for _ in range(3))
        self.project = nn.Linear(value, block.dim)
        offsets = 2 * block.window - 1
        self.table = nn.Parameter(0.1 * torch.randn(offsets, offsets, block.heads))

    def forward(self, x: Tensor) -> Tensor:
        window, across = self.window, x.shape[2] // self.window
        rows = torch.roll(x.permute(0, 2, 3, 1), (-self.shift, -self.shift), (1, 2))
        windows = self.norm(rows).unflatten(2, (across, window)).unflatten(1, (across, window))
        windows = windows.transpose(2, 3).flatten(3, 4).flatten(0, 2)
        q, k, v = (
            layer(windows).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        place = torch.arange(window**2)
        apart = [
            place[:, None] // window - place // window,
            place[:, None] % window - place % window,
        ]
        bias = self.table[apart[0] + window - 1, apart[1] + window - 1].permute(2, 0, 1)
        scores = (q @ k.transpose(2, 3) * HEAD_DIM**-0.5 + bias).softmax(-1)
        out = self.project((scores @ v).transpose(1, 2).flatten(2))
        out = out.unflatten(0, (-1, across, across)).unflatten(3, (window, window)).transpose(2, 3)
        out = torch.roll(out.flatten(3, 4).flatten(1, 2), (self.shift, self.shift), (1, 2))
        return x + out.permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Head:
    """Classifies the mean of the map."""

    dim: int
    classes: int

    def side_after(self, side: int) -> int:
        return 1

    def operations(self, side: int) -> Iterator[Operation]:
        yield _norm(self.dim)
        yield _linear(self.dim, self.classes)


class HeadModule(nn.Module):
    AXES = {"norm.*": ("dim",), "classify.weight": ("-", "dim"), "classify.bias": ("-",)}

    def __init__(self, block: Head) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(block.dim)
        self.classify = nn.Linear(block.dim, block.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.norm(x.mean((2, 3))))


def s3(*, classes: int = 5, channels: int = 3) -> Space:
    genes = {"w1": (8, 12), "w2": (12, 16), "heads": (1, 2, 3), "window": (2, 4), "depth": (1, 2)}

    def first(g) -> tuple[Placed, ...]:
        return (Placed("merge1", Merge(cin=channels, cout=g["w1"], across=2), SIDE),)

    def layers(g) -> tuple[Placed, ...]:
        return tuple(
            Placed(f"layer{layer}",
                   Windowed(dim=g["w1"], heads=g["heads"], window=g["window"], shift=layer), 8)
            for layer in range(g["depth"])
        )  # fmt: skip

    def second(g) -> tuple[Placed, ...]:
        return (Placed("merge2", Merge(cin=g["w1"], cout=g["w2"]), 8),)

    parts = (
        Part("merge1", ("w1",), first),
        Part("stage", ("w1", "heads", "window", "depth"), layers),
        Part("merge2", ("w1", "w2"), second),
        Part("head", ("w2",), lambda g: (Placed("head", Head(dim=g["w2"], classes=classes), 4),)),
    )
    return Space("mini-s3", genes=genes, parts=parts, side=SIDE,
                 options={"classes": classes, "channels": channels})  # fmt: skip


MODULES = {Merge: MergeModule, Windowed: WindowedModule, Head: HeadModule}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MODULES", {**build.MODULES, **MODULES})
    monkeypatch.setitem(SPACES, "mini-s3", s3)


@pytest.mark.parametrize("check", SPACE_CHECKS, ids=lambda check: check.__name__)
def test_space(check) -> None:
    check(s3())


@pytest.mark.parametrize("check", SUPERNET_CHECKS, ids=lambda check: check.__name__)
def test_supernet(check) -> None:
    check(randomised_supernet(s3()))
