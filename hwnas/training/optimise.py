"""The optimiser's side of a step: learning rate, clipping, averaging of weights, loss scaling."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hwnas.training.flat import FlatParameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine:
    """Linear warm-up, then half a cosine, per step."""

    peak: float
    floor: float
    start: float
    warmup_steps: int
    steps: int

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        if step < self.warmup_steps:
            return self.start + (self.peak - self.start) * step / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        return self.floor + (self.peak - self.floor) * 0.5 * (1 + math.cos(math.pi * min(1, done)))


class Average:
    """Exponential moving average of the flat weights."""

    def __init__(self, weights: Tensor, decay: float) -> None:
        self.decay = decay
        self.weights = weights.clone()

    def update(self, weights: Tensor) -> None:
        """Move the average towards the present weights."""
        self.weights.lerp_(weights, 1 - self.decay)


class LossScale:
    """The factor that keeps half-precision gradients from vanishing; halves on overflow."""

    def __init__(self, *, enabled: bool, start: float = 2.0**16, patience: int = 2000) -> None:
        self.value = start if enabled else 1.0
        self.enabled = enabled
        self._patience, self.good_steps = patience, 0

    def unscale(self, *gradients: Tensor) -> bool:
        """Divide the gradients by the scale; return whether they are finite and may be used."""
        if not self.enabled:
            return True
        for gradient in gradients:
            gradient.mul_(1 / self.value)
        finite = all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
        if not finite:
            self.value, self.good_steps = self.value / 2, 0
        elif self.good_steps + 1 == self._patience:
            self.value, self.good_steps = self.value * 2, 0
        else:
            self.good_steps += 1
        return finite


def make_optimiser(
    name: str,
    flat: FlatParameters,
    *,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    momentum: float,
) -> torch.optim.Optimizer:
    """Return AdamW or SGD (Nesterov) over the flat weights."""
    groups: Any = flat.groups(weight_decay)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=eps, fused=True)
    return torch.optim.SGD(groups, lr=0.0, momentum=momentum, nesterov=momentum > 0, fused=True)


def clip_factor(gradient: Tensor, limit: float | None) -> float:
    """Return what a gradient is multiplied by so that its norm is at most `limit`."""
    if limit is None:
        return 1.0
    norm = float(torch.linalg.vector_norm(gradient))
    return min(1.0, limit / (norm + 1e-6))
