"""What the search has to beat: uniform scaling and random architectures, by the same predictors."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwnas.errors import HwnasError
from hwnas.pipeline.fronts import Front
from hwnas.pipeline.predictors import (
    LATENCY,
    SpacePredictor,
    accuracy_predictor,
    predictors_of,
)
from hwnas.pipeline.rundir import Run
from hwnas.search.evolution import scaled, spread
from hwnas.spaces import Space

UNIFORM, RANDOM = "uniform scaling", "random search"
DRAWN = 2000
_STEPS = 64
_SAME = ("device", "backend", "threads", "batch", "precision", "workers")


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
        every = predictors_of(run)
    except HwnasError:  # another state of the supernet, or none: nothing to compare with
        return ()
    latency = _latency(every, front, x_name)
    if latency is None:
        return ()
    rng = np.random.default_rng(0)
    found = []
    for name, drawn in (
        (UNIFORM, scaled(space, _STEPS)),
        (RANDOM, spread(space, DRAWN, rng)),
    ):
        codes = np.unique(drawn, axis=0)
        points = best_of(latency(codes).mean.tolist(), accuracy(codes).mean.tolist())
        found.append(Baseline(name=name, points=points, tried=len(codes)))
    return tuple(found)


def best_of(costs: list[float], accuracies: list[float]) -> tuple[tuple[float, float], ...]:
    """Return the pairs that no other beats in both, by cost."""
    found: list[tuple[float, float]] = []
    for cost, accuracy in sorted(zip(costs, accuracies, strict=True), key=lambda p: (p[0], -p[1])):
        if not found or accuracy > found[-1][1]:
            found.append((cost, accuracy))
    return tuple(found)


def _latency(
    every: Mapping[str, SpacePredictor], front: Front, x_name: str
) -> SpacePredictor | None:
    """Return the predictor of the front's latency, None if that is not certain."""
    device = x_name.partition(":")[2]
    settings: Mapping[str, Any] = front.choices[0].settings or {}
    if device and isinstance(settings.get(device), Mapping):
        settings = settings[device]
    wanted = {key: str(settings[key]) for key in _SAME if settings.get(key) is not None}
    if device:
        wanted["device"] = device
    fitting = [
        predictor
        for predictor in every.values()
        if predictor.target == LATENCY
        and all(predictor.about.get(key) == value for key, value in wanted.items())
    ]
    return fitting[0] if len(fitting) == 1 else None
