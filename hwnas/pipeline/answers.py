"""From what a search found to answers: which subnets keep a budget, and which to take."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from hwnas.pipeline.fronts import Answer, Choice, Estimate
from hwnas.pipeline.quantities import COSTS, Field
from hwnas.search import Constraint, Objective, knee
from hwnas.search import Estimate as Estimates
from hwnas.search.arrays import Codes, Floats
from hwnas.search.budgets import OF_DEVICES
from hwnas.search.constraints import upper_limits
from hwnas.search.problem import LEVEL
from hwnas.search.ranking import first_front

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """Distinct architectures with all that is known of them; `values` are minimised."""

    codes: Codes
    estimates: Mapping[str, Estimates]
    values: Floats

    @classmethod
    def of(cls, field: Field, objectives: Sequence[Objective], codes: Codes) -> Self:
        """Return the pool of these rows of value indices."""
        codes = np.unique(codes, axis=0)
        estimates = {quantity.name: quantity.estimate(codes) for quantity in field.quantities}
        values = [o.sign * estimates[o.quantity].mean for o in objectives]
        return cls(codes=codes, estimates=estimates, values=np.stack(values, axis=1))

    def keeping(self, constraints: Sequence[Constraint]) -> NDArray[np.bool_]:
        """Return which rows keep all constraints with the probability asked for."""
        kept = np.ones(len(self.codes), bool)
        for constraint in constraints:
            estimate = self.estimates[constraint.quantity]
            kept &= constraint.violation(*estimate, level=LEVEL) <= 0.0
        return kept

    def front(self, constraints: Sequence[Constraint] = ()) -> Rows:
        """Return the rows that keep the constraints and that none of those dominates.

        The best of the first objective comes first.
        """
        rows = np.flatnonzero(self.keeping(constraints))
        rows = rows[first_front(self.values[rows])]
        return rows[np.lexsort(self.values[rows].T[::-1])]


def answer_of(
    pool: Pool, label: str, constraints: Sequence[Constraint], kept: Rows, confidence: float
) -> Answer:
    """Return the answer to constraints; its indices are places in `kept`."""
    rows = pool.front(constraints)
    if not len(rows):  # by a rounding error: what was found kept them
        return no_answer(label, constraints, "what was found only just misses the budget")
    at = [int(place) for place in np.searchsorted(kept, rows)]
    bulge = knee(pool.values[rows])
    feasible = int(pool.keeping(constraints)[kept].sum())
    if not constraints:
        order = sorted(range(len(at)), key=lambda place: (abs(place - bulge), place))
        return Answer(
            budget="",
            recommended=at[bulge],
            knee=at[bulge],
            reason="without a budget: the knee, from where on each gain in accuracy costs more",
            feasible=feasible,
            listed=tuple(at[place] for place in order),
        )
    uncertain = any(c.quantity.partition(":")[0] in OF_DEVICES for c in constraints)
    surely = f" with probability {confidence:g}" if uncertain else ""
    return Answer(
        budget=label,
        recommended=at[0],
        knee=at[bulge],
        reason=f"the highest predicted accuracy of {feasible} that keep the budget{surely}",
        feasible=feasible,
        listed=tuple(at),
        limits=upper_limits(constraints),
    )


def no_answer(label: str, constraints: Sequence[Constraint], reason: str) -> Answer:
    """Return the answer to constraints that nothing meets."""
    return Answer(
        budget=label,
        recommended=None,
        knee=None,
        reason=reason,
        feasible=0,
        limits=upper_limits(constraints),
    )


def choices_of(field: Field, pool: Pool, kept: Rows) -> tuple[Choice, ...]:
    """Return the rows of a pool as a front holds them."""
    codes = pool.codes[kept]
    archs = field.base.decode(codes[:, : len(field.base.genes)])
    exactly = [name for name in pool.estimates if name in COSTS]
    inside = field.in_range(codes)
    return tuple(
        Choice(
            digest=arch.digest,
            genes=dict(arch),
            predicted={
                name: Estimate(**{
                    end: float(part[row])
                    for end, part in zip(("mean", "low", "high"), estimate, strict=True)
                })
                for name, estimate in pool.estimates.items()
                if name not in exactly
            },
            costs={name: float(pool.estimates[name].mean[row]) for name in exactly},
            settings=field.settings(ways),
            in_range=bool(inside[place]),
        )
        for place, (row, arch, ways) in enumerate(
            zip(kept.tolist(), archs, field.ways(codes), strict=True)
        )
    )  # fmt: skip
