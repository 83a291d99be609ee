"""What is searched for: quantities of architectures, objectives made of them, and their scores.

A quantity is a name and a function from rows of value indices to numbers: plain numbers where it
is known exactly (a cost), or an `Estimate` with an interval (a predictor). Engines see `Scores`
only: everything minimised, and by how much the constraints are violated.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError, unknown_name
from hwnas.io.units import COUNT, DURATION_MS, ENERGY_MJ, RATE_PER_S, SHARE, SIZE_BYTES, Kind
from hwnas.io.units import format_value as in_units
from hwnas.predictors import Predictor
from hwnas.predictors.features import Features, features
from hwnas.search.arrays import Codes, Floats
from hwnas.search.constraints import Constraint
from hwnas.spaces import Space

LEVEL = 0.9
EXACT = ("macs", "params", "activations")
# How values are printed, by the unit of their quantity.
KINDS: Mapping[str, Kind] = {
    "": COUNT, "%": SHARE, "B": SIZE_BYTES, "mJ": ENERGY_MJ, "ms": DURATION_MS, "/s": RATE_PER_S,
}  # fmt: skip
DIGITS = 4


class Estimate(NamedTuple):
    """Value of each architecture, and the ends of the interval that holds `LEVEL` of truths.

    As many of the other truths lie below as above: one end alone is met with (1 + LEVEL) / 2.
    """

    mean: Floats
    low: Floats
    high: Floats


class Predicts(Protocol):
    """What is asked of a predictor, such as `hwnas.predictors.Predictor`."""

    def predict(self, genes: Floats, costs: Floats, *, level: float = ...) -> Sequence[Floats]:
        """Return (mean, low, high) of each row; the interval holds `level` of the truths."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantity:
    """A named property of architectures.

    `unit` is for messages: "ms", "B", "mJ", "/s", "" for counts, "%" for shares of 1.
    """

    name: str
    of: Callable[[Codes], Estimate | Floats]
    unit: str = ""

    def estimate(self, codes: Codes) -> Estimate:
        """Return the estimate of each row; exact values have intervals of no width."""
        found = self.of(codes)
        if isinstance(found, tuple):
            return Estimate(*(np.asarray(part, np.float64) for part in found))
        exact = np.asarray(found, np.float64)
        return Estimate(exact, exact, exact)

    def text(self, value: float) -> str:
        """Return a value as a person would type it, in few digits."""
        return shown(value, self.unit)


def shown(value: float, unit: str, *, digits: int = DIGITS) -> str:
    """Return a value in this unit as a person would type it, in few digits."""
    short = float(f"{value:.{digits}g}")
    return in_units(short, KINDS[unit]) if unit in KINDS and short >= 0 else f"{short:g}{unit}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Objective:
    """A quantity to make small, or large."""

    quantity: str
    maximise: bool = False

    @property
    def sign(self) -> float:
        """What the quantity is multiplied by so that it is minimised."""
        return -1.0 if self.maximise else 1.0


class Scores(NamedTuple):
    """Values (n, objectives), all minimised, and violation (n,): 0 is feasible, more is worse."""

    values: Floats
    violation: Floats


Evaluate = Callable[[Codes], Scores]


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A space with objectives and constraints over named quantities."""

    space: Space
    quantities: tuple[Quantity, ...]
    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    def __post_init__(self) -> None:
        names = [quantity.name for quantity in self.quantities]
        if len(set(names)) < len(names):
            raise UsageError(f"two quantities have one name: {', '.join(names)}")
        if not self.objectives:
            raise UsageError("a search needs at least one objective")
        wanted = [objective.quantity for objective in self.objectives]
        for name in (*wanted, *(constraint.quantity for constraint in self.constraints)):
            if name not in names:
                raise unknown_name("quantity", name, names)
        if len(set(wanted)) < len(wanted):
            raise UsageError(f"an objective is named twice: {', '.join(wanted)}")

    def quantity(self, name: str) -> Quantity:
        """Return the quantity of that name."""
        return next(quantity for quantity in self.quantities if quantity.name == name)

    def estimates(self, codes: Codes) -> dict[str, Estimate]:
        """Return the estimate of every quantity that an objective or a constraint needs."""
        needed = {o.quantity: None for o in self.objectives}
        needed |= {c.quantity: None for c in self.constraints}
        return {name: self.quantity(name).estimate(codes) for name in needed}

    def __call__(self, codes: Codes) -> Scores:
        """Return the scores of canonical rows of value indices."""
        estimates = self.estimates(codes)
        values = [o.sign * estimates[o.quantity].mean for o in self.objectives]
        violation = np.zeros(len(codes))
        for constraint in self.constraints:
            violation += constraint.violation(*estimates[constraint.quantity], level=LEVEL)
        return Scores(np.stack(values, axis=1), violation)


def exact(space: Space, name: str) -> Quantity:
    """Return a closed-form cost of a space with networks as a quantity."""
    if name not in EXACT:
        raise unknown_name("cost", name, EXACT)
    return Quantity(name=name, of=lambda codes: getattr(space.cost(codes), name).astype(np.float64))


class LastFeatures:
    """Features of the rows asked for last: several predictors ask for those of the same rows.

    `genes`: how many columns of the rows the space reads, where there are more.
    """

    def __init__(self, space: Space, *, genes: int | None = None) -> None:
        self._space, self._genes = space, genes
        self._codes: Codes | None = None
        self._features: Features | None = None

    def __call__(self, codes: Codes) -> Features:
        """Return the features of rows that nobody changes afterwards."""
        if self._features is None or self._codes is not codes:
            self._features = features(self._space, codes[:, : self._genes])
            self._codes = codes
        return self._features


def predicted(
    space: Space, predictors: Mapping[str, Predicts], *, units: Mapping[str, str] | None = None
) -> tuple[Quantity, ...]:
    """Return what predictors, fitted on `hwnas.predictors.features`, say of a space."""
    last = LastFeatures(space)
    units = units or {}

    def of(predictor: Predicts) -> Callable[[Codes], Estimate]:
        return lambda codes: _said(predictor, last(codes))

    return tuple(
        Quantity(name=name, of=of(predictor), unit=units.get(name, ""))
        for name, predictor in predictors.items()
    )


def _said(predictor: Predicts, found: Features) -> Estimate:
    if isinstance(predictor, Predictor):
        return Estimate(*predictor.predict(found.genes, found.costs, level=LEVEL, tilt=0.5))
    return Estimate(*predictor.predict(found.genes, found.costs, level=LEVEL))


def tabulated(space: Space, name: str, codes: Codes, values: Floats) -> Quantity:
    """Return a quantity that is known exactly for every architecture of an enumerated space.

    Asked for an architecture that the table lacks, it raises UsageError.
    """
    weights = np.concatenate([[1], np.cumprod(space.cardinalities[::-1])])[-2::-1]
    order = np.argsort(codes @ weights)
    keys = (codes @ weights)[order]

    def of(rows: Codes) -> NDArray[np.float64]:
        wanted = rows @ weights
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        if len(missing := rows[keys[found] != wanted]):
            arch = space.decode(missing[:1])[0]
            raise UsageError(
                f"the table of {name} lacks {len(missing)} of {len(rows)} architectures, such as "
                f"{dict(arch)}",
                "give every architecture of the space a row",
            )
        return np.asarray(values[order[found]], np.float64)

    return Quantity(name=name, of=of)
