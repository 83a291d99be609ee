"""The optimiser's side of a step: learning rate, clipping, averaging of weights, loss scaling."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

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


# A loss that is made this small has gradients that overflow for another reason.
_SMALLEST_SCALE = 2.0**-16


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

    @property
    def is_exhausted(self) -> bool:
        """Whether it has halved so often that halving it further helps nobody."""
        return self.value < _SMALLEST_SCALE


class Optimiser(Protocol):
    """What turns the merged gradient into new weights.

    torch's own classes of this kind load its compiler when they are made: 140 MB and seconds.
    """

    def step(self, *, learning_rate: float) -> None:
        """Update the flat weights."""

    def states(self) -> Sequence[Mapping[str, Tensor]]:
        """Return what changes besides the weights, by name, of each part of the weights."""


class _Parts:
    """The parts of the flat weights that have weight decay, and that have not."""

    def __init__(self, flat: FlatParameters, *, weight_decay: float) -> None:
        self.weights, self.gradients, self.decays = [], [], []
        for entries, decays in flat.parts():
            self.weights.append(flat.weights[entries])
            self.gradients.append(flat.gradients[0][entries])
            self.decays.append(weight_decay if decays else 0.0)

    def zeros(self) -> list[Tensor]:
        return [torch.zeros_like(weights) for weights in self.weights]


class AdamW:
    """Loshchilov and Hutter, 2019."""

    def __init__(self, parts: _Parts, *, betas: tuple[float, float], eps: float) -> None:
        self._parts, self._betas, self._eps = parts, betas, eps
        self._means, self._squares = parts.zeros(), parts.zeros()
        self._steps = [torch.zeros((), device=weights.device) for weights in parts.weights]

    def step(self, *, learning_rate: float) -> None:
        """Update the flat weights."""
        parts = self._parts
        rows = zip(
            parts.weights, parts.gradients, parts.decays,
            self._means, self._squares, self._steps, strict=True,
        )  # fmt: skip
        for weights, gradient, decay, mean, square, step in rows:
            adamw(
                [weights], [gradient], [mean], [square], [], [step],
                fused=True, amsgrad=False, beta1=self._betas[0], beta2=self._betas[1],
                lr=learning_rate, weight_decay=decay, eps=self._eps, maximize=False,
            )  # fmt: skip

    def states(self) -> list[dict[str, Tensor]]:
        """Return moments and number of steps."""
        return [
            {"exp_avg": mean, "exp_avg_sq": square, "step": step}
            for mean, square, step in zip(self._means, self._squares, self._steps, strict=True)
        ]


class SGD:
    """Gradient descent with Nesterov's momentum, if any."""

    def __init__(self, parts: _Parts, *, momentum: float) -> None:
        self._parts, self._momentum = parts, momentum
        self._buffers = parts.zeros() if momentum else []

    def step(self, *, learning_rate: float) -> None:
        """Update the flat weights."""
        parts = self._parts
        for index, weights in enumerate(parts.weights):
            sgd(
                [weights], [parts.gradients[index]],
                [self._buffers[index] if self._buffers else None],
                fused=True, weight_decay=parts.decays[index], momentum=self._momentum,
                lr=learning_rate, dampening=0.0, nesterov=self._momentum > 0, maximize=False,
            )  # fmt: skip

    def states(self) -> list[dict[str, Tensor]]:
        """Return the buffers of the momentum."""
        return [{"momentum_buffer": buffer} for buffer in self._buffers]


def make_optimiser(
    name: str,
    flat: FlatParameters,
    *,
    weight_decay: float,
    betas: tuple[float, float],
    eps: float,
    momentum: float,
) -> Optimiser:
    """Return AdamW or SGD (Nesterov) over the flat weights."""
    parts = _Parts(flat, weight_decay=weight_decay)
    if name == "adamw":
        return AdamW(parts, betas=betas, eps=eps)
    return SGD(parts, momentum=momentum)


def clip_factor(gradient: Tensor, limit: float | None) -> float:
    """Return what a gradient is multiplied by so that its norm is at most `limit`."""
    if limit is None:
        return 1.0
    norm = float(torch.linalg.vector_norm(gradient))
    return min(1.0, limit / (norm + 1e-6))
