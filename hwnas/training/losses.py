"""Losses. Shapes: logits_BK, targets_B (classes) or targets_BK (probabilities)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

Distillation = Callable[[Tensor, Tensor], Tensor]


def label_loss(logits: Tensor, targets: Tensor, *, smoothing: float) -> Tensor:
    """Return the cross-entropy; soft targets are used as they are."""
    if targets.is_floating_point():
        return F.cross_entropy(logits, targets)
    return F.cross_entropy(logits, targets, label_smoothing=smoothing)


def kl(logits: Tensor, teacher: Tensor) -> Tensor:
    """Return KL(teacher || student) for teacher probabilities, up to the teacher's entropy."""
    return -(teacher * logits.log_softmax(-1)).sum(-1).mean()


def adaptive_alpha(*, alpha_min: float, alpha_max: float, clip: float) -> Distillation:
    """Return AlphaNet's loss: per sample, the larger of two alpha-divergences.

    Wang et al., ICML 2021, Eq. 9 to 11, as the released code computes it: the importance weights
    are clipped and not differentiated, and the returned value is a surrogate whose gradient is
    that of the divergence; it can be negative.
    """

    def loss(logits: Tensor, teacher: Tensor) -> Tensor:
        log_q = logits.log_softmax(-1)
        low = _alpha_divergence(log_q, teacher, alpha_min, clip)
        high = _alpha_divergence(log_q, teacher, alpha_max, clip)
        return torch.where(low[0] > high[0], low[1], high[1]).mean()

    return loss


def _alpha_divergence(
    log_q: Tensor, teacher: Tensor, alpha: float, clip: float
) -> tuple[Tensor, Tensor]:
    """Return per sample (value, surrogate)."""
    q = log_q.detach().exp()
    ratio = teacher.clamp_min(1e-10) / q.clamp_min(1e-10)
    if abs(alpha) < 1e-3:  # KL(q || p)
        weights = ratio.clamp_max(clip).log()
        value = -(q * weights).sum(-1)
        slope = weights - 1
    elif abs(alpha - 1) < 1e-3:  # KL(p || q): never clipped in the released code
        value = (q * ratio * ratio.log()).sum(-1)
        slope = ratio
    else:
        weights = ratio.pow(alpha).clamp(0, clip)
        constant = 1 / (alpha * (alpha - 1))
        value = (q * (weights * constant - constant)).sum(-1)
        slope = weights / alpha + constant
    return value, -(q * slope * log_q).sum(-1)


def distillation(name: str, *, alpha_min: float, alpha_max: float, clip: float) -> Distillation:
    """Return the distillation loss of that name."""
    return {"kl": kl, "alpha": adaptive_alpha(alpha_min=alpha_min, alpha_max=alpha_max, clip=clip)}[
        name
    ]
