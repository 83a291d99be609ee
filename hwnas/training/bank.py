"""ElasticViT's memory of good subnets, from which a share of a step's subnets is drawn.

Each level of cost keeps architectures with the loss they last had. A subnet that was drawn
uniformly enters while there is room, or instead of the worst that it beats; all are measured
again a few times in an epoch, because weights move. Settings of the released code as defaults;
what is different: `docs/fidelity/elasticvit.md`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.spaces import Arch, Space

_REFRESHES = 4  # in an epoch
_STAGES = 6  # of a training, in each of which more subnets come from the bank than before


class Bank:
    """Good architectures by level, with their losses.

    The state is a function of what was offered and measured, all of which is the same on every
    rank, and goes into checkpoints.
    """

    def __init__(self, space: Space, *, levels: int, size: int) -> None:
        self._space, self._size = space, size
        self._kept: list[dict[Arch, float]] = [{} for _ in range(levels)]

    def draw(self, level: int, rng: np.random.Generator) -> Arch | None:
        """Return one of a level's architectures, better ones more often; None if half empty."""
        kept = self._kept[level]
        if not kept or len(kept) <= self._size // 2:
            return None
        losses = np.array(list(kept.values()))
        shares = np.exp(losses.min() - losses)
        return list(kept)[int(rng.choice(len(kept), p=shares / shares.sum()))]

    def offer(self, level: int, arch: Arch, loss: float) -> None:
        """Keep an architecture if there is room, or if it is better than the worst."""
        kept = self._kept[level]
        if arch not in kept and len(kept) >= self._size:
            worst = max(kept, key=lambda other: kept[other])
            if kept[worst] <= loss:
                return
            del kept[worst]
        kept[arch] = loss

    def is_due(self, step: int, steps_per_epoch: int) -> bool:
        """Return whether everything is to be measured again before this step of an epoch."""
        return step % max(1, steps_per_epoch // _REFRESHES) == 0

    def refresh(self, measure: Callable[[Arch], float]) -> None:
        """Measure every kept architecture again."""
        for kept in self._kept:
            for arch in kept:
                kept[arch] = measure(arch)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return what a checkpoint needs to keep."""
        archs = [arch for kept in self._kept for arch in kept]
        levels = [level for level, kept in enumerate(self._kept) for _ in kept]
        losses = [loss for kept in self._kept for loss in kept.values()]
        return {
            "codes": self._space.encode(archs).reshape(len(archs), len(self._space.genes)),
            "levels": np.array(levels, np.int64),
            "losses": np.array(losses, np.float64),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Become what `state` was returned by."""
        for kept in self._kept:
            kept.clear()
        archs = self._space.decode(state["codes"])
        for arch, level, loss in zip(archs, state["levels"], state["losses"], strict=True):
            self._kept[int(level)][arch] = float(loss)


def share_of_bank(epoch: int, *, epochs: float, start: float, growth: float) -> float:
    """Return the probability with which a subnet comes from the bank in an epoch."""
    return min(1.0, start + growth * (_STAGES * (epoch + 1) // epochs))
