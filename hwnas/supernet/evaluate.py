"""Accuracy of a subnet: calibrate its batch norms, then count right answers."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hwnas.errors import UsageError
from hwnas.spaces import Arch
from hwnas.supernet.calibrate import calibrate
from hwnas.supernet.supernet import Supernet


def count_right(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> tuple[int, int]:
    """Return (images whose largest logit is that of their class, images)."""
    network.eval()
    right = seen = 0
    with torch.no_grad():
        for images, labels in batches:
            right += int((network(images).argmax(1) == labels).sum())
            seen += len(labels)
    return right, seen


def accuracy(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """Return the top-1 accuracy on `batches`."""
    right, seen = count_right(network, batches)
    if not seen:
        raise UsageError("evaluation got no images; accepted: at least one")
    return right / seen


def evaluate(
    supernet: Supernet,
    arch: Arch,
    *,
    calibration: Iterable[Tensor],
    batches: Iterable[tuple[Tensor, Tensor]],
) -> float:
    """Return the top-1 accuracy of `arch` on `batches`, its norms calibrated on `calibration`."""
    network = supernet.extract(arch)
    calibrate(network, calibration)
    return accuracy(network, batches)
