"""Descriptions of network blocks: what a block is, and what it costs. No torch here.

A description has all that a plain module is built from (`hwnas.nets.build`), and nothing else, so
that equal descriptions mean equal modules. The side of the square map a block receives belongs
to its place in a network, not to the block.

Costs: multiply-accumulates of convolutions, linears and attention products, and nothing else (no
norms, activations, softmax, pooling or resizing). Parameters: the scalars of the plain module,
batch-norm statistics not included. Activations: elements written by the counted operations.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from math import isqrt
from typing import NamedTuple, Protocol

from hwnas.errors import UsageError

HEAD_DIM = 8


class Operation(NamedTuple):
    """The cost of one kind of operation inside a block, for one image."""

    kind: str
    macs: int
    params: int
    activations: int


KINDS = ("conv", "depthwise", "linear", "attention", "norm", "table")


class Block(Hashable, Protocol):
    """What every block description offers."""

    def side_after(self, side: int) -> int:
        """Return the side of the map this block makes out of a map of `side`."""

    def operations(self, side: int) -> Iterator[Operation]:
        """Yield the costs for an input map of `side`."""


def round_to_8(value: float) -> int:
    """Return the multiple of 8 nearest to `value`, never less than 90 % of it."""
    nearest = max(8, int(value + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * value else nearest


def strided(side: int, stride: int) -> int:
    """Return the side after a same-padded convolution of that stride."""
    return (side - 1) // stride + 1


def _conv(
    cin: int, cout: int, side: int, *, kernel: int = 1, bias: bool = False, kind: str = "conv"
) -> Operation:
    weights = cin * cout * kernel * kernel
    return Operation(kind, weights * side * side, weights + bias * cout, cout * side * side)


def _depthwise(channels: int, side: int, kernel: int) -> Operation:
    weights = channels * kernel * kernel
    return Operation("depthwise", weights * side * side, weights, channels * side * side)


def _accept(block: Block, *, is_possible: bool, field: str, accepted: str) -> None:
    if not is_possible:
        raise UsageError(
            f"{type(block).__name__}: {field} = {getattr(block, field)}; accepted: {accepted}"
        )


def _norm(channels: int) -> Operation:
    return Operation("norm", 0, 2 * channels, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stem:
    """Convolution 3x3, batch norm, SiLU."""

    cin: int
    cout: int
    stride: int = 2

    def side_after(self, side: int) -> int:
        """Return the side of the output map."""
        return strided(side, self.stride)

    def operations(self, side: int) -> Iterator[Operation]:
        """Yield the costs for an input map of `side`."""
        yield _conv(self.cin, self.cout, self.side_after(side), kernel=3)
        yield _norm(self.cout)


@dataclass(frozen=True, kw_only=True, slots=True)
class MBConv:
    """Inverted residual; the shortcut pools where it strides and projects where widths differ.

    `random_shortcut`: that projection starts at random, and not by passing channels on.
    """

    cin: int
    cout: int
    mid: int
    kernel: int
    stride: int
    expands: bool
    squeezes: bool
    random_shortcut: bool = False

    def __post_init__(self) -> None:
        _accept(self, is_possible=self.kernel % 2 == 1, field="kernel", accepted="odd numbers")

    @property
    def squeezed(self) -> int:
        """The width inside the squeeze-and-excitation branch."""
        return round_to_8(self.mid // 4)

    def side_after(self, side: int) -> int:
        """Return the side of the output map, which the shortcut has to pool to, too."""
        after = strided(side, self.stride)
        pooled = (side + 2 * (side % 2) - self.stride) // self.stride + 1
        if self.stride > 1 and pooled != after:
            raise UsageError(
                f"MBConv: with stride = {self.stride} a map of side {side} has side {after} after "
                f"the convolution and {pooled} in the shortcut; accepted: 1, 2 and divisors of "
                f"{side}"
            )
        return after

    def operations(self, side: int) -> Iterator[Operation]:
        """Yield the costs for an input map of `side`."""
        after = self.side_after(side)
        if self.expands:
            yield _conv(self.cin, self.mid, side)
            yield _norm(self.mid)
        yield _depthwise(self.mid, after, self.kernel)
        yield _norm(self.mid)
        if self.squeezes:
            yield _conv(self.mid, self.squeezed, 1, bias=True)
            yield _conv(self.squeezed, self.mid, 1, bias=True)
        yield _conv(self.mid, self.cout, after)
        yield _norm(self.cout)
        if self.cin != self.cout:
            yield _conv(self.cin, self.cout, after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Transformer:
    """Attention with talking heads and a depthwise convolution on V, then two MLPs.

    `side` is the side of the map it works on, because the table of relative positions has just
    the rows that occur there. `windows` is a square number of equal windows.
    `joint_norm` normalises over tokens and channels together, as the released NASViT does;
    otherwise over the channels of each token. The two scaling vectors (one for attention, one
    for both MLPs) are row `scale_row` of tables with `scale_rows` rows (none if that is 0),
    start at `scale_init` and are multiplied by `scale_gain`.
    """

    dim: int
    side: int
    mlp_ratio: int = 1
    windows: int = 1
    joint_norm: bool = True
    scale_row: int = 0
    scale_rows: int = 0
    scale_gain: float = 1.0
    scale_init: float = 1e-4

    def __post_init__(self) -> None:
        heads, rest = divmod(self.dim, HEAD_DIM)
        _accept(
            self, is_possible=heads > 0 and rest == 0, field="dim",
            accepted=f"multiples of {HEAD_DIM}",
        )  # fmt: skip
        along = isqrt(max(self.windows, 0))
        _accept(
            self,
            is_possible=along > 0 and along**2 == self.windows and self.side % along == 0,
            field="windows",
            accepted=f"squares of what divides the side {self.side}",
        )

    @property
    def heads(self) -> int:
        """The number of attention heads."""
        return self.dim // HEAD_DIM

    @property
    def value_dim(self) -> int:
        """The width of V over all heads."""
        return 4 * self.dim

    @property
    def hidden(self) -> int:
        """The width inside each MLP."""
        return self.mlp_ratio * self.dim

    @property
    def window_side(self) -> int:
        """The side of the square in which tokens attend to each other."""
        return self.side // isqrt(self.windows)

    @property
    def offsets(self) -> int:
        """The number of relative positions along one side."""
        return 2 * self.window_side - 1

    def side_after(self, side: int) -> int:
        """Return `side`: the map keeps its size, which is that of the table of positions."""
        _accept(self, is_possible=side == self.side, field="side", accepted=f"{side}, the map's")
        return side

    def operations(self, side: int) -> Iterator[Operation]:
        """Yield the costs for an input map of `side`."""
        dim, value, heads = self.dim, self.value_dim, self.heads
        tokens = self.side_after(side) ** 2
        pairs = tokens * tokens // self.windows
        for cin, cout in ((dim, dim), (dim, dim), (dim, value), (value, dim)):
            yield _conv(cin, cout, side, bias=True, kind="linear")
        yield _depthwise(value, side, 3)
        yield Operation("attention", pairs * dim, 0, pairs * heads)
        yield Operation("attention", pairs * value, 0, tokens * value)
        for _before_and_after_softmax in range(2):
            yield Operation("attention", pairs * heads**2, heads**2 + heads, pairs * heads)
        for _mlp in range(2):
            yield _conv(dim, self.hidden, side, bias=True, kind="linear")
            yield _conv(self.hidden, dim, side, bias=True, kind="linear")
        for _attention_and_mlps in range(3):
            yield _norm(dim)
        yield Operation("table", 0, self.offsets**2 * heads, 0)
        if self.scale_rows:
            yield Operation("table", 0, 2 * dim, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Classifier:
    """Widen, pool, widen again, classify: the efficient last stage of MobileNetV3."""

    cin: int
    mid: int
    features: int
    classes: int

    def side_after(self, side: int) -> int:
        """Return 1: the map is pooled."""
        return 1

    def operations(self, side: int) -> Iterator[Operation]:
        """Yield the costs for an input map of `side`."""
        yield _conv(self.cin, self.mid, side)
        yield _norm(self.mid)
        yield _conv(self.mid, self.features, 1, kind="linear")
        yield _conv(self.features, self.classes, 1, bias=True, kind="linear")


@dataclass(frozen=True, slots=True)
class Placed:
    """A block at its place: the slot whose weights it uses and the side of the map it gets."""

    slot: str
    block: Block
    side: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Network:
    """A chain of blocks for square images of `side` pixels with `channels` channels."""

    side: int
    channels: int
    classes: int
    blocks: tuple[Placed, ...]
