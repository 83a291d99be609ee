"""Batch-norm statistics of one subnet, measured on images.

Statistics of a supernet fit none of its subnets, so each is calibrated before it is evaluated:
the mean over batches of the statistics of each batch, only batch norms in training mode.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hwnas.errors import UsageError
from hwnas.nets.norms import BatchNorm


def calibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of a plain network to their mean over `batches` of images."""
    norms = [module for module in network.modules() if isinstance(module, BatchNorm)]
    modes = {module: module.training for module in network.modules()}
    network.eval()
    for norm in norms:
        norm.track_running_stats = True
        norm.running_mean = torch.zeros_like(norm.weight, requires_grad=False).detach()
        norm.running_var = torch.ones_like(norm.weight, requires_grad=False).detach()
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=norm.weight.device)
        norm.train()
        norm.momentum = None
    seen = 0
    try:
        with torch.no_grad():
            for images in batches:
                network(images)
                seen += 1
    finally:
        for norm in norms:
            norm.momentum = 0.1
        for module, mode in modes.items():
            module.training = mode
    if norms and not seen:
        raise UsageError("calibration got no batches of images; accepted: at least one")


def statistics_of(network: nn.Module) -> dict[str, Tensor]:
    """Return the running statistics of a plain network by name."""
    return {
        f"{name}.{statistic}": getattr(module, statistic)
        for name, module in network.named_modules()
        if isinstance(module, BatchNorm)
        for statistic in ("running_mean", "running_var")
        if getattr(module, statistic) is not None
    }
