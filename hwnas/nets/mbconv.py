"""Convolutional blocks: the stem, MBConv (Sandler et al., 2018) and the pooling classifier.

As in the released NASViT, an MBConv always has a residual: where it strides the shortcut is
pooled (padded zeros count in the mean), where widths differ a 1x1 convolution without bias.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.nets.kernels import depthwise
from hwnas.nets.norms import BatchNorm, BatchNormSiLU
from hwnas.nets.recompute import (
    expand_norm_silu_depthwise,
    is_too_wide_to_keep,
    norm_silu_depthwise,
    norm_silu_project,
)
from hwnas.nets.regularise import Dropout, DropPath
from hwnas.spaces import blocks

Axes = Mapping[str, tuple[str, ...]]
# By parameter name: what fills a tensor of any size with its first values.
Starts = Mapping[str, Callable[[Tensor], Tensor]]


class Pointwise(nn.Conv2d):
    """1x1 convolution: a linear layer on every pixel."""

    def __init__(self, cin: int, cout: int, *, bias: bool) -> None:
        super().__init__(cin, cout, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        # A borrowed weight is made contiguous once here, not in both passes by the kernels.
        return F.conv2d(x, self.weight.contiguous(), self.bias)


def _padded_identity(weight: Tensor) -> Tensor:
    """Let a 1x1 convolution pass channels on as they are, at first: cut off, or zeros added."""
    with torch.no_grad():
        weight.zero_().flatten(1).diagonal().fill_(1.0)
    return weight


class Depthwise(nn.Conv2d):
    """Same-padded depthwise convolution without bias."""

    def __init__(self, channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(
            channels, channels, kernel, stride, kernel // 2, groups=channels, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the convolution of x."""
        return depthwise(x, self.weight, self.stride[0])


class Stem(nn.Module):
    """Convolution 3x3, batch norm, SiLU."""

    AXES: ClassVar[Axes] = {"conv.weight": ("cout", "-", "-", "-"), "norm.*": ("cout",)}

    def __init__(self, block: blocks.Stem) -> None:
        super().__init__()
        self.conv = nn.Conv2d(block.cin, block.cout, 3, block.stride, 1, bias=False)
        self.norm = BatchNormSiLU(block.cout)

    def forward(self, x: Tensor) -> Tensor:
        """Return the first feature map of images x."""
        out: Tensor = self.norm(self.conv(x))
        return out


class SqueezeExcite(nn.Module):
    """Channels gated by a small network on their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.reduce = Pointwise(channels, squeezed, bias=True)
        self.expand = Pointwise(squeezed, channels, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return x times its gates."""
        means = x.mean((2, 3), keepdim=True)
        gates: Tensor = self.expand(F.relu(self.reduce(means)))
        return x * F.hardsigmoid(gates)

    def weights(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return weight and bias of the network's two layers."""
        reduce, expand = self.reduce, self.expand
        assert reduce.bias is not None
        assert expand.bias is not None
        return (
            reduce.weight.contiguous(), reduce.bias, expand.weight.contiguous(), expand.bias
        )  # fmt: skip


class MBConv(nn.Module):
    """Widen, depthwise convolution, gate, narrow, add the shortcut."""

    AXES: ClassVar[Axes] = {
        "expand.weight": ("mid", "cin", "-", "-"),
        "expand_norm.*": ("mid",),
        "depth.weight": ("mid", "-", "kernel", "kernel"),
        "depth_norm.*": ("mid",),
        "squeeze.reduce.weight": ("squeezed", "mid", "-", "-"),
        "squeeze.reduce.bias": ("squeezed",),
        "squeeze.expand.weight": ("mid", "squeezed", "-", "-"),
        "squeeze.expand.bias": ("mid",),
        "project.weight": ("cout", "mid", "-", "-"),
        "project_norm.*": ("cout",),
        "shortcut.weight": ("cout", "cin", "-", "-"),
    }

    def __init__(self, block: blocks.MBConv) -> None:
        super().__init__()
        cin, mid, cout = block.cin, block.mid, block.cout
        self.expand = Pointwise(cin, mid, bias=False) if block.expands else None
        self.expand_norm = BatchNormSiLU(mid) if block.expands else None
        self.depth = Depthwise(mid, block.kernel, block.stride)
        self.depth_norm = BatchNormSiLU(mid)
        self.squeeze = SqueezeExcite(mid, block.squeezed) if block.squeezes else None
        self.project = Pointwise(mid, cout, bias=False)
        self.project_norm = BatchNorm(cout)
        nn.init.zeros_(self.project_norm.weight)  # the block starts as its shortcut
        self.shortcut = Pointwise(cin, cout, bias=False) if cin != cout else None
        if self.shortcut is not None and not block.random_shortcut:
            _padded_identity(self.shortcut.weight)
        self.drop = DropPath()
        self.stride = block.stride

    @classmethod
    def starts(cls, block: blocks.MBConv) -> Starts:
        """Return what fills a shared tensor that is larger than that of any block.

        In a supernet the same maps pass with and without a convolution, as widths differ or not:
        what follows cannot fit both if the convolution mixes channels at random.
        """
        return {} if block.random_shortcut else {"shortcut.weight": _padded_identity}

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map."""
        y = x
        if self.expand is not None and self.expand_norm is not None:
            y = self._deep(self.expand, self.expand_norm, y)
        else:
            y = self.depth(y)
        y = self.drop(self.project_norm(self._projected(y)))
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride, self.stride, padding=x.shape[-1] % 2)
        if self.shortcut is not None:
            x = self.shortcut(x)
        out: Tensor = y + x
        return out

    def _deep(self, expand: Pointwise, norm: BatchNormSiLU, x: Tensor) -> Tensor:
        kernel, stride = self.depth.weight, self.stride
        if norm.may_recompute(x) and is_too_wide_to_keep(x, expand.out_channels):
            widen = expand.weight.contiguous()
            return expand_norm_silu_depthwise(
                x, widen, norm.weight, norm.bias, norm.eps, kernel, stride
            )
        wide = expand(x)
        if norm.may_recompute(wide):
            return norm_silu_depthwise(wide, norm.weight, norm.bias, norm.eps, kernel, stride)
        out: Tensor = self.depth(norm(wide))
        return out

    def _projected(self, x: Tensor) -> Tensor:
        norm = self.depth_norm
        if norm.may_recompute(x):
            gates = None if self.squeeze is None else self.squeeze.weights()
            kernel = self.project.weight.contiguous()
            return norm_silu_project(x, norm.weight, norm.bias, norm.eps, kernel, gates)
        y = norm(x)
        if self.squeeze is not None:
            y = self.squeeze(y)
        out: Tensor = self.project(y)
        return out


class Classifier(nn.Module):
    """Widen, pool, widen again, classify."""

    AXES: ClassVar[Axes] = {
        "expand.weight": ("mid", "cin", "-", "-"),
        "expand_norm.*": ("mid",),
        "mix.weight": ("features", "mid"),
        "classify.weight": ("-", "features"),
        "classify.bias": ("-",),
    }

    def __init__(self, block: blocks.Classifier) -> None:
        super().__init__()
        self.expand = Pointwise(block.cin, block.mid, bias=False)
        self.expand_norm = BatchNormSiLU(block.mid)
        self.mix = nn.Linear(block.mid, block.features, bias=False)
        self.drop = Dropout()
        self.classify = nn.Linear(block.features, block.classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits_BK."""
        logits: Tensor = self.classify(self.drop(self.embed(x)))
        return logits

    def embed(self, x: Tensor) -> Tensor:
        """Return what is classified: features_BC of the last map."""
        pooled = self.expand_norm(self.expand(x)).mean((2, 3))
        return F.silu(self.mix(pooled))


__all__ = ["Axes", "Classifier", "Depthwise", "MBConv", "Pointwise", "Starts", "Stem"]
