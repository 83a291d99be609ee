"""Fronts: the architectures that nothing known dominates, with where they come from.

Values in a front have their natural sign; whether a quantity is maximised is told by the
objective. What `hwnas search` writes of it: `hwnas.pipeline.fronts`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hwnas.errors import UsageError
from hwnas.search.arrays import Floats
from hwnas.search.constraints import Constraint
from hwnas.search.problem import Objective
from hwnas.search.volume import hypervolume
from hwnas.spaces import Arch


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A value and the ends of its interval; the ends are the value where it is exact."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """An architecture of a front with its quantities, objectives first.

    `origin`: how it was found, such as "nsga2" or "measured 37".
    """

    arch: Arch
    quantities: Mapping[str, Interval]
    probability: float = 1.0
    origin: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """Points sorted by the first objective, what was asked, and how they were found.

    `reference` bounds the hypervolume, in natural signs. `provenance`: engine, seed,
    evaluations, and what the caller adds (predictors, run, device), JSON values only.
    """

    space: str
    objectives: tuple[Objective, ...]
    points: tuple[Point, ...]
    reference: tuple[float, ...]
    constraints: tuple[Constraint, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> Floats:
        """The objectives of the points, (points, objectives), natural signs."""
        rows = [[p.quantities[o.quantity].value for o in self.objectives] for p in self.points]
        return np.array(rows, np.float64).reshape(-1, len(self.objectives))

    @property
    def hypervolume(self) -> float:
        """The volume between the points and the reference; none without points."""
        if not self.points:
            return 0.0
        signs = _signs(self.objectives)
        return hypervolume(self.values * signs, np.array(self.reference) * signs)

    @property
    def knee(self) -> int:
        """The index of the knee point."""
        if not self.points:
            raise UsageError("an empty front has no knee")
        return knee(self.values * _signs(self.objectives))


def knee(values: Floats) -> int:
    """Return the row that bulges farthest towards the ideal corner; all values are minimised.

    Objectives are scaled to the range of the rows; the distance is that from the plane through
    the worst ends of the axes, along the diagonal.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    span = np.where(high > low, high - low, 1.0)
    return int(np.argmin(((values - low) / span).sum(axis=1)))


def _signs(objectives: tuple[Objective, ...]) -> Floats:
    return np.array([objective.sign for objective in objectives])
