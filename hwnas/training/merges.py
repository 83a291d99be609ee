"""Merges: how the gradients of supernet and subnets become the gradient of a step.

NASViT section 3, Eq. 1: where the two conflict (negative cosine), the supernet's gradient is
projected onto the normal of the subnets' gradient, so that subnets have priority. The other
priority projects the subnets' gradient instead (the paper's ablation in Table 7).

The released code limits the coefficient to [0, 2] and adds 1e-6 to the square that it is divided
by (`most`, `damping`), see `docs/fidelity/nasvit.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hwnas.training.flat import Segment

_TINY = 1e-30


@dataclass(frozen=True, kw_only=True, slots=True)
class Merge:
    """How two gradient vectors are merged.

    `priority`: none (sum), or whose gradient stays as it is where they conflict.
    `most`: the greatest coefficient of the projection (the released code has 2). `damping` is added
    to the square of what is projected onto (the released code: 1e-6), the clipped gradient if it
    is clipped: where that is small nothing much is projected.
    """

    priority: str = "none"
    most: float = float("inf")
    damping: float = 0.0

    def __call__(
        self, sup: Tensor, sub: Tensor, scopes: Sequence[Sequence[Segment]], *, sub_factor: float
    ) -> None:
        """Replace `sup` by the merged gradient of `sup` and `sub_factor * sub`."""
        conflicts = [] if self.priority == "none" else _conflicts(sup, sub, scopes)
        if conflicts and self.priority == "supernet":
            squares = inner_products(sup, sup, [scope for scope, _ in conflicts])
            for (scope, dot), square in zip(conflicts, squares, strict=True):
                coefficient = min(-dot * sub_factor / max(square + self.damping, _TINY), self.most)
                for segment in scope:
                    sup[segment.entries].mul_(1.0 + coefficient)
        sup.add_(sub, alpha=sub_factor)
        if conflicts and self.priority == "subnets":
            squares = inner_products(sub, sub, [scope for scope, _ in conflicts])
            for (scope, dot), square in zip(conflicts, squares, strict=True):
                coefficient = self._coefficient(dot, square, sub_factor)
                for segment in scope:
                    sup[segment.entries].add_(sub[segment.entries], alpha=coefficient)

    def _coefficient(self, dot: float, square: float, sub_factor: float) -> float:
        """Return the coefficient of the subnets' gradient that is not yet times `sub_factor`."""
        if sub_factor <= 0:
            return 0.0
        # As the coefficient of the product: dot is linear in the factor, the square is not.
        whole = -dot / max(square + self.damping / sub_factor**2, _TINY)
        return min(whole / sub_factor, self.most) * sub_factor


def _conflicts(
    sup: Tensor, sub: Tensor, scopes: Sequence[Sequence[Segment]]
) -> list[tuple[Sequence[Segment], float]]:
    """Return the scopes in which the two point apart, and their inner products there."""
    dots = inner_products(sup, sub, scopes)
    return [(scope, dot) for scope, dot in zip(scopes, dots, strict=True) if dot < 0]


def inner_products(a: Tensor, b: Tensor, scopes: Sequence[Sequence[Segment]]) -> list[float]:
    """Return a . b for each scope, with one transfer from the device.

    One dot per tensor, added up in double precision: faster than foreach operators, and exact
    enough where gradients of very different size meet.
    """
    dots = [
        torch.dot(a[segment.entries], b[segment.entries]) for scope in scopes for segment in scope
    ]
    values = iter(torch.stack(dots).tolist()) if dots else iter(())
    return [sum(next(values) for _segment in scope) for scope in scopes]


def conflict_ratio(sup: Tensor, sub: Tensor, layers: Sequence[Sequence[Segment]]) -> float | None:
    """Return the share of layers whose two gradients have a negative cosine (Table 4).

    Layers that one of the two did not touch have no cosine and are not counted; None without any,
    as where no subnet of the plan is the supernet.
    """
    pairs = ((sup, sub), (sup, sup), (sub, sub))
    rows = zip(*(inner_products(a, b, layers) for a, b in pairs), strict=True)
    dots = [dot for dot, sup_square, sub_square in rows if sup_square > 0 and sub_square > 0]
    return sum(dot < 0 for dot in dots) / len(dots) if dots else None
