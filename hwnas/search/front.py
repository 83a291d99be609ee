"""Fronts: the architectures that nothing known dominates, with where they come from.

Values in a front have their natural sign; whether a quantity is maximised is told by the
objective. A front is a value, written as JSON and read back unchanged.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from hwnas.errors import FormatError, UsageError
from hwnas.io import Schema
from hwnas.search.columns import Floats
from hwnas.search.constraints import Constraint
from hwnas.search.problem import Objective
from hwnas.search.volume import hypervolume
from hwnas.spaces import Arch, Space

FRONT_SCHEMA = Schema(name="hwnas/front", version=1)


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
        """The volume between the points and the reference."""
        signs = _signs(self.objectives)
        return hypervolume(self.values * signs, np.array(self.reference) * signs)

    @property
    def knee(self) -> int:
        """The index of the knee point."""
        if not self.points:
            raise UsageError("an empty front has no knee")
        return knee(self.values * _signs(self.objectives))

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document of the front."""
        return FRONT_SCHEMA.stamp(
            {
                "space": self.space,
                "objectives": [asdict(objective) for objective in self.objectives],
                "constraints": [_bounds(constraint) for constraint in self.constraints],
                "reference": list(self.reference),
                "provenance": dict(self.provenance),
                "points": [_point(point) for point in self.points],
            }
        )

    @classmethod
    def from_json(cls, document: Any, space: Space, origin: str = "front") -> "Front":  # noqa: ANN401
        """Return the front of a JSON document, whose architectures must be of `space`."""
        document = FRONT_SCHEMA.check(document, origin)
        if document.get("space") != space.name:
            raise UsageError(
                f"{origin}: is of space {document.get('space')!r}, expected {space.name!r}"
            )
        try:
            return cls(
                space=space.name,
                objectives=tuple(Objective(**entry) for entry in document["objectives"]),
                constraints=tuple(_constraint(entry) for entry in document["constraints"]),
                reference=tuple(map(float, document["reference"])),
                provenance=document["provenance"],
                points=tuple(_read(space, entry, origin) for entry in document["points"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{origin}: not a front ({error})") from error


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


def _point(point: Point) -> dict[str, Any]:
    return {
        "genes": dict(point.arch),
        "digest": point.arch.digest,
        "quantities": {name: asdict(interval) for name, interval in point.quantities.items()},
        "probability": point.probability,
        "origin": point.origin,
    }


def _read(space: Space, entry: Mapping[str, Any], origin: str) -> Point:
    arch = space.arch(entry["genes"])
    if arch.digest != entry["digest"]:
        raise FormatError(f"{origin}: the digest of an architecture is not that of its genes")
    quantities = {name: Interval(**values) for name, values in entry["quantities"].items()}
    return Point(
        arch=arch,
        quantities=quantities,
        probability=float(entry["probability"]),
        origin=str(entry["origin"]),
    )


def _bounds(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as JSON, where an open end is null: JSON has no infinity."""
    entry = asdict(constraint)
    return {key: None if value in (math.inf, -math.inf) else value for key, value in entry.items()}


def _constraint(entry: Mapping[str, Any]) -> Constraint:
    return Constraint(
        quantity=entry["quantity"],
        most=math.inf if entry["most"] is None else float(entry["most"]),
        least=-math.inf if entry["least"] is None else float(entry["least"]),
        confidence=float(entry["confidence"]),
    )
