"""What the search has to beat: uniform scaling and random architectures, by the same predictors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwnas.errors import HwnasError
from hwnas.pipeline.deployments import PLAINEST, deployments
from hwnas.pipeline.fronts import Front, device_of, ways_of
from hwnas.pipeline.predictors import LATENCY, accuracy_predictor, predictors_of
from hwnas.pipeline.rundir import Run
from hwnas.search.arrays import Codes, Floats
from hwnas.search.evolution import scaled, spread
from hwnas.spaces import Space

UNIFORM, RANDOM = "uniform scaling", "random search"
DRAWN = 2000
_STEPS = 64
_MACS = "macs"
_Cost = Callable[[Codes], Floats]


@dataclass(frozen=True, kw_only=True, slots=True)
class Baseline:
    """The best (x, accuracy) of a simpler method, by x; `tried`: of how many architectures."""

    name: str
    points: tuple[tuple[float, float], ...]
    tried: int

    def best_within(self, x: float) -> float | None:
        """Return the best accuracy at no more than `x`, None if there is nothing so small."""
        inside = [accuracy for cost, accuracy in self.points if cost <= x]
        return max(inside, default=None)


def baselines_for(run: Run, space: Space, front: Front, x_name: str) -> tuple[Baseline, ...]:
    """Return uniform scaling and random search for a front, empty where predictors are missing."""
    if front.space != space.name or dict(front.options) != dict(space.options):
        return ()
    try:
        accuracy = accuracy_predictor(run)
        cost = _macs(space) if x_name == _MACS else _latency(run, front, x_name)
    except HwnasError:  # another state of the supernet, or none: nothing to compare with
        return ()
    if cost is None:
        return ()
    rng = np.random.default_rng(0)
    found = []
    for name, drawn in (
        (UNIFORM, scaled(space, _STEPS)),
        (RANDOM, spread(space, DRAWN, rng)),
    ):
        codes = np.unique(drawn, axis=0)
        points = best_of(cost(codes).tolist(), accuracy(codes).mean.tolist())
        found.append(Baseline(name=name, points=points, tried=len(codes)))
    return tuple(found)


def best_of(costs: list[float], accuracies: list[float]) -> tuple[tuple[float, float], ...]:
    """Return the pairs that no other beats in both, by cost."""
    found: list[tuple[float, float]] = []
    for cost, accuracy in sorted(zip(costs, accuracies, strict=True), key=lambda p: (p[0], -p[1])):
        if not found or accuracy > found[-1][1]:
            found.append((cost, accuracy))
    return tuple(found)


def _macs(space: Space) -> _Cost:
    return lambda codes: np.asarray(space.cost(codes).macs, np.float64)


def _latency(run: Run, front: Front, x_name: str) -> _Cost | None:
    """Return the latency in the fastest of the front's ways to run.

    None if it is not certain what predicts each of them.
    """
    device = device_of(front, x_name)
    known = [
        (_whole(deployment.described), deployment.predictors[LATENCY])
        for deployment in deployments(predictors_of(run))
        if LATENCY in deployment.predictors and device in (None, deployment.device)
    ]
    found = []
    for way in ways_of(front, device):
        fitting = [predictor for described, predictor in known if described == _whole(way)]
        if len(fitting) != 1:
            return None
        found.append(fitting[0])
    return lambda codes: np.min([predictor(codes).mean for predictor in found], axis=0)


def _whole(way: Mapping[str, Any]) -> dict[str, str]:
    return PLAINEST | {key: str(value) for key, value in way.items()}
