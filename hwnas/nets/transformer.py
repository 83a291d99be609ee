"""The transformer layer of NASViT (paper section 2 and B.1, as the released code computes it).

x = x + s_a * Attention(N1(x)); x = x + s_m * MLP2(N3(x)); x = x + s_m * MLP1(N2(x)).

Shapes: B batch, C channels, S side, N tokens of a window, H heads, D channels of a head, W
windows. Maps stay (B, C, S, S) in channels_last memory, where tokens are free views.
"""

from functools import cache
from math import isqrt
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.nets.kernels import add_scaled, trains_on_cpu
from hwnas.nets.mbconv import Axes, Depthwise, Pointwise
from hwnas.nets.norms import JointNorm, TokenNorm
from hwnas.nets.recompute import silu_pointwise
from hwnas.nets.regularise import DropPath
from hwnas.spaces import blocks


class TalkingHeads(nn.Module):
    """A linear layer across the heads, for every pair of tokens."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        linear = nn.Linear(heads, heads)
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, scores_BHNN: Tensor) -> Tensor:
        """Return mixed scores: one matrix product per image, without moving the heads."""
        batch, heads, rows, columns = scores_BHNN.shape
        mixed = torch.baddbmm(
            self.bias.view(1, heads, 1).expand(batch, heads, 1),
            self.weight.expand(batch, heads, heads),
            scores_BHNN.reshape(batch, heads, rows * columns),
        )
        return mixed.view(batch, heads, rows, columns)


class Attention(nn.Module):
    """Attention within windows, heads that talk before and after softmax, local V."""

    def __init__(self, block: blocks.Transformer) -> None:
        super().__init__()
        dim, value, heads = block.dim, block.value_dim, block.heads
        self.heads, self.windows = heads, block.windows
        self.q = Pointwise(dim, dim, bias=True)
        self.k = Pointwise(dim, dim, bias=True)
        self.v = Pointwise(dim, value, bias=True)
        self.local = Depthwise(value, 3)
        self.positions = nn.Parameter(torch.empty(block.offsets, block.offsets, heads))
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.before = TalkingHeads(heads)
        self.after = TalkingHeads(heads)
        self.project = Pointwise(value, dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the attended map."""
        q, k, v = (self._split(part) for part in (self.q(x), self.k(x), self.local(self.v(x))))
        scores = torch.matmul(q * q.shape[-1] ** -0.5, k.transpose(2, 3))
        scores += self._position_bias(isqrt(scores.shape[-1]))
        attention = self.after(self.before(scores).softmax(-1))
        joined = self._join(torch.matmul(attention, v), x.shape[-1])
        return _after_silu(self.project, joined)

    def _position_bias(self, side: int) -> Tensor:
        table = self.positions.flatten(0, 1).t()
        index = _offset_index(side, table.device).expand(self.heads, -1)
        return table.gather(1, index).view(1, self.heads, side * side, side * side)

    def _split(self, x_BCSS: Tensor) -> Tensor:
        """Return (B * W, H, N, D)."""
        batch, channels, side, _ = x_BCSS.shape
        width = channels // self.heads
        rows = x_BCSS.permute(0, 2, 3, 1)
        if self.windows == 1:
            return rows.reshape(batch, side * side, self.heads, width).transpose(1, 2)
        across = isqrt(self.windows)
        inner = side // across
        grid = rows.reshape(batch, across, inner, across, inner, self.heads, width)
        windows = grid.permute(0, 1, 3, 5, 2, 4, 6)
        return windows.reshape(batch * self.windows, self.heads, inner * inner, width)

    def _join(self, x_BHND: Tensor, side: int) -> Tensor:
        """Return (B, H * D, S, S): the inverse of `_split`."""
        batch, heads, _, width = x_BHND.shape
        if self.windows == 1:
            rows = x_BHND.transpose(1, 2).reshape(batch, side, side, heads * width)
            return rows.permute(0, 3, 1, 2)
        across = isqrt(self.windows)
        inner = side // across
        grid = x_BHND.reshape(-1, across, across, heads, inner, inner, width)
        rows = grid.permute(0, 1, 4, 2, 5, 3, 6).reshape(-1, side, side, heads * width)
        return rows.permute(0, 3, 1, 2)


def _offset_index(side: int, device: torch.device) -> Tensor:
    """Return, for each pair of tokens, the row of the flattened table of offsets."""
    if torch.compiler.is_compiling() or torch.compiler.is_exporting():
        return _new_offset_index(side, device)  # a traced tensor must not stay in the cache
    return _kept_offset_index(side, device)


def _new_offset_index(side: int, device: torch.device) -> Tensor:
    tokens = torch.cartesian_prod(torch.arange(side), torch.arange(side))
    offsets = tokens[:, None] - tokens[None] + side - 1
    return (offsets[..., 0] * (2 * side - 1) + offsets[..., 1]).flatten().to(device)


# A tensor made in inference mode could not be used in training afterwards.
_kept_offset_index = cache(torch.inference_mode(False)(_new_offset_index))


def _after_silu(layer: Pointwise, x: Tensor) -> Tensor:
    if layer.bias is not None and trains_on_cpu(x):
        return silu_pointwise(x, layer.weight.contiguous(), layer.bias)
    out: Tensor = layer(F.silu(x))
    return out


class MLP(nn.Module):
    """Two linears with SiLU between."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.first = Pointwise(dim, hidden, bias=True)
        self.second = Pointwise(hidden, dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return the mapped x."""
        return _after_silu(self.second, self.first(x))


class Transformer(nn.Module):
    """Attention and two MLPs, each behind a norm, a scaling vector and a residual."""

    AXES: ClassVar[Axes] = {
        "norm?.*": ("dim",),
        "scale_*": ("scale_row", "dim"),
        "attention.[qk].weight": ("dim", "dim", "-", "-"),
        "attention.[qk].bias": ("dim",),
        "attention.v.weight": ("value", "dim", "-", "-"),
        "attention.v.bias": ("value",),
        "attention.local.weight": ("value", "-", "-", "-"),
        "attention.positions": ("offset", "offset", "heads"),
        "attention.before.weight": ("heads", "heads"),
        "attention.before.bias": ("heads",),
        "attention.after.weight": ("heads", "heads"),
        "attention.after.bias": ("heads",),
        "attention.project.weight": ("dim", "value", "-", "-"),
        "attention.project.bias": ("dim",),
        "mlp?.first.weight": ("hidden", "dim", "-", "-"),
        "mlp?.first.bias": ("hidden",),
        "mlp?.second.weight": ("dim", "hidden", "-", "-"),
        "mlp?.second.bias": ("dim",),
    }

    def __init__(self, block: blocks.Transformer) -> None:
        super().__init__()
        norm = JointNorm if block.joint_norm else TokenNorm
        self.norm1, self.norm2, self.norm3 = (norm(block.dim) for _ in range(3))
        self.attention = Attention(block)
        self.mlp1, self.mlp2 = (MLP(block.dim, block.hidden) for _ in range(2))
        self.drop = DropPath()
        self.gain = block.scale_gain
        scaled = block.scale_rows > 0
        start = torch.full((1, block.dim), block.scale_init)
        self.scale_attention = nn.Parameter(start.clone()) if scaled else None
        self.scale_mlp = nn.Parameter(start.clone()) if scaled else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's map."""
        x = self._add(x, self.attention(self.norm1(x)), self.scale_attention)
        x = self._add(x, self.mlp2(self.norm3(x)), self.scale_mlp)
        return self._add(x, self.mlp1(self.norm2(x)), self.scale_mlp)

    def _add(self, x: Tensor, branch: Tensor, scale: Tensor | None) -> Tensor:
        branch = self.drop(branch)
        if scale is None:
            return x + branch
        return add_scaled(x, branch, scale, self.gain)
