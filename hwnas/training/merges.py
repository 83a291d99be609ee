"""Merges: how the gradients of supernet and subnets become the gradient of a step.

NASViT section 3, Eq. 1: where the two conflict (negative cosine), the supernet's gradient is
projected onto the normal of the subnets' gradient, so that subnets have priority. The other
priority projects the subnets' gradient instead (the paper's ablation in Table 7).

`released` reproduces the released code: the coefficient is limited to [0, 2], see
`docs/fidelity/nasvit.md`.
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
    `most`: the greatest coefficient of the projection (the released code has 2).
    """

    priority: str = "none"
    most: float = float("inf")

    def __call__(
        self, sup: Tensor, sub: Tensor, scopes: Sequence[Sequence[Segment]], *, sub_factor: float
    ) -> None:
        """Replace `sup` by the merged gradient of `sup` and `sub_factor * sub`."""
        if self.priority == "none":
            sup.add_(sub, alpha=sub_factor)
            return
        dots = inner_products(sup, sub, scopes)
        for scope, (dot, sup_square, sub_square) in zip(scopes, dots, strict=True):
            keep, alpha = 1.0, sub_factor
            if dot < 0 and self.priority == "subnets":
                alpha += self._limited(-dot / max(sub_square, _TINY), sub_factor)
            elif dot < 0:
                keep += min(-dot * sub_factor / max(sup_square, _TINY), self.most)
            for segment in scope:
                part = sup[segment.entries]
                if keep != 1.0:
                    part.mul_(keep)
                part.add_(sub[segment.entries], alpha=alpha)

    def _limited(self, coefficient: float, sub_factor: float) -> float:
        """Return the coefficient of the unscaled subnets' gradient under the limit."""
        if sub_factor <= 0:
            return 0.0
        return min(coefficient / sub_factor, self.most) * sub_factor


def inner_products(
    sup: Tensor, sub: Tensor, scopes: Sequence[Sequence[Segment]]
) -> list[tuple[float, float, float]]:
    """Return (sup . sub, sup . sup, sub . sub) for each scope, with one transfer from the device.

    One dot per tensor, added up in double precision: faster than foreach operators, and exact
    enough where gradients of very different size meet.
    """
    dots = []
    for scope in scopes:
        for segment in scope:
            s, u = sup[segment.entries], sub[segment.entries]
            dots += [torch.dot(s, u), torch.dot(s, s), torch.dot(u, u)]
    values = iter(torch.stack(dots).tolist())
    rows = []
    for scope in scopes:
        row = [0.0, 0.0, 0.0]
        for _segment in scope:
            for column in range(3):
                row[column] += next(values)
        rows.append((row[0], row[1], row[2]))
    return rows


def conflict_ratio(sup: Tensor, sub: Tensor, layers: Sequence[Sequence[Segment]]) -> float | None:
    """Return the share of layers whose two gradients have a negative cosine (Table 4).

    Layers that one of the two did not touch have no cosine and are not counted; None without any,
    as where no subnet of the plan is the supernet.
    """
    dots = [row for row in inner_products(sup, sub, layers) if row[1] > 0 and row[2] > 0]
    return sum(dot < 0 for dot, _, _ in dots) / len(dots) if dots else None
