"""Dropout and stochastic depth, off unless a training recipe turns them on for a pass."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class DropPath(nn.Module):
    """A residual branch that is left out for some images (Huang et al., 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.0

    def forward(self, branch: Tensor) -> Tensor:
        """Return the branch, zeroed for a share `rate` of the images and scaled for the others."""
        if not self.training or self.rate == 0.0:
            return branch
        shape = (len(branch), *(1 for _ in branch.shape[1:]))
        keep = torch.rand(shape, device=branch.device) >= self.rate
        # In the branch's type: under autocast a wider one would make all that follows wider.
        return branch * (keep / (1 - self.rate)).to(branch.dtype)


class Dropout(nn.Module):
    """Dropout whose rate can be changed between passes."""

    def __init__(self) -> None:
        super().__init__()
        self.rate = 0.0

    def forward(self, x: Tensor) -> Tensor:
        """Return x with a share `rate` of its entries dropped."""
        return x if self.rate == 0.0 else F.dropout(x, self.rate, self.training)


def disturb(block: nn.Module, *, dropout: float, drop_path: float) -> None:
    """Set the rates of all dropouts and residual branches of a block."""
    for module in block.modules():
        if isinstance(module, Dropout):
            module.rate = dropout
        elif isinstance(module, DropPath):
            module.rate = drop_path
