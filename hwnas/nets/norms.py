"""Normalisations. Shapes: x_BCHW.

A batch norm without running statistics uses those of the batch in both modes: that is how it
behaves inside a supernet, where no stored statistics fit all subnets.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.errors import UsageError
from hwnas.nets.kernels import batch_norm, batch_norm_silu, trains_on_cpu
from hwnas.nets.synchronised import is_synchronised, synchronised_batch_norm

EPS = 1e-5


class BatchNorm(nn.BatchNorm2d):
    """Batch norm whose statistics may be absent."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised; explains itself where a batch has one value per channel."""
        if self.uses_batch:
            if is_synchronised() and not self.track_running_stats:
                return synchronised_batch_norm(x, self.weight, self.bias, self.eps)
            _check_enough_values(x)
            if not self.track_running_stats:
                return batch_norm(x, self.weight, self.bias, self.eps)
        return super().forward(x)

    @property
    def uses_batch(self) -> bool:
        """Whether the next forward pass normalises by the statistics of its batch."""
        return self.training or self.running_mean is None


class BatchNormSiLU(BatchNorm):
    """Batch norm, then SiLU."""

    def forward(self, x: Tensor) -> Tensor:
        """Return silu(normalised x)."""
        if self.uses_batch and not self.track_running_stats and not is_synchronised():
            _check_enough_values(x)
            return batch_norm_silu(x, self.weight, self.bias, self.eps)
        return F.silu(super().forward(x))

    def may_recompute(self, x: Tensor) -> bool:
        """Return whether a form of `hwnas.nets.recompute` may stand for this norm of x."""
        own_statistics = self.uses_batch and not self.track_running_stats
        if not own_statistics or is_synchronised() or not trains_on_cpu(x):
            return False
        _check_enough_values(x)
        return True


def _check_enough_values(x: Tensor) -> None:
    if x.shape[0] * x.shape[2] * x.shape[3] == 1:
        raise UsageError(
            "batch statistics of a single value: one image, and a map of one pixel",
            "use at least two images, or calibrate the subnet and evaluate that",
        )


class JointNorm(nn.Module):
    """Layer norm over tokens and channels together, with one scale and shift per channel."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised per image."""
        return F.group_norm(x, 1, self.weight, self.bias, EPS)


class TokenNorm(JointNorm):
    """Layer norm over the channels of each token."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x normalised per token."""
        tokens = x.permute(0, 2, 3, 1)
        normed = F.layer_norm(tokens, self.weight.shape, self.weight, self.bias, EPS)
        return normed.permute(0, 3, 1, 2)
