"""Batch-norm statistics of one subnet, measured on images.

Statistics of a supernet fit none of its subnets, so each is calibrated before it is evaluated:
the mean over batches of the statistics of each batch, only batch norms in training mode.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hwnas.errors import UsageError
from hwnas.nets.norms import BatchNorm


def calibrate(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Set the running statistics of a network to their mean over `batches` of images.

    Any torch network will do, not only plain ones.
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    modes = {module: module.training for module in network.modules()}
    network.eval()
    for norm in norms:
        norm.track_running_stats = True
        like = norm.weight if norm.affine else next(network.parameters())
        norm.running_mean = torch.zeros(norm.num_features, device=like.device, dtype=like.dtype)
        norm.running_var = torch.ones(norm.num_features, device=like.device, dtype=like.dtype)
        norm.num_batches_tracked = torch.zeros((), dtype=torch.long, device=like.device)
        norm.train()
        norm.momentum = None
    seen = 0
    try:
        with torch.no_grad():
            for images in batches:
                network(images)
                seen += 1
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    if not seen:
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
