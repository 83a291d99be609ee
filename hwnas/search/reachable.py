"""What can be reached: the range of each quantity, and whether constraints can be met.

Ranges are what a short search of one quantity finds, so they are exact in small spaces and
nearly so in large ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hwnas.errors import InfeasibleError
from hwnas.search.arrays import Codes, Floats
from hwnas.search.constraints import Constraint
from hwnas.search.engine import search
from hwnas.search.evolution import Nsga2
from hwnas.search.problem import DIGITS, LEVEL, Problem, Quantity, Scores, shown
from hwnas.spaces import Space

QUICK = Nsga2(population=96, generations=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """The least and the most of a quantity that architectures of the space have."""

    low: float
    high: float


def reach(problem: Problem, *, seed: int = 0) -> dict[str, Reach]:
    """Return the range of every quantity of the problem."""
    return {q.name: _range(problem.space, q, seed) for q in problem.quantities}


def _range(space: Space, quantity: Quantity, seed: int) -> Reach:
    def value(codes: Codes) -> Floats:
        return quantity.estimate(codes).mean

    def negative(codes: Codes) -> Floats:
        return -quantity.estimate(codes).mean

    low = value(_lowest(space, value, seed)).min()
    high = value(_lowest(space, negative, seed)).max()
    return Reach(low=float(low), high=float(high))


def check_reachable(problem: Problem, *, seed: int = 0) -> None:
    """Raise InfeasibleError for a constraint that no architecture meets, naming the nearest."""
    for constraint in problem.constraints:
        for upper, bound in ((True, constraint.most), (False, constraint.least)):
            if math.isfinite(bound):
                _check_bound(problem, constraint, upper=upper, seed=seed)


def _check_bound(problem: Problem, constraint: Constraint, *, upper: bool, seed: int) -> None:
    quantity = problem.quantity(constraint.quantity)

    def excess(codes: Codes) -> Floats:
        """Return the promised end of the interval, with the sign that makes it minimised."""
        low, high = constraint.ends(*quantity.estimate(codes), level=LEVEL)
        return high if upper else -low

    codes = _lowest(problem.space, excess, seed)
    ends = excess(codes)
    best = int(np.argmin(ends))
    bound = constraint.most if upper else -constraint.least
    if ends[best] <= bound:
        return
    nearest = quantity.text(_outwards(abs(float(ends[best])), upper=upper))
    relation = "at most" if upper else "at least"
    typed = _unlike(nearest, abs(bound), quantity.unit)
    asked = f"{constraint.quantity} {relation} {typed}"
    raise InfeasibleError(
        f"no architecture of {problem.space.name} has {asked} with probability "
        f"{constraint.confidence:.4g}; the nearest that can be met is {nearest}",
        f"ask for {constraint.quantity} {relation} {nearest}, or for a lower confidence",
    )


def _outwards(value: float, *, upper: bool) -> float:
    """Return `value` in few digits, rounded to the side on which it can still be met."""
    if value == 0.0:
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - DIGITS + 1)
    rounded = math.ceil(value / step) if upper else math.floor(value / step)
    return float(f"{rounded * step:.{DIGITS}g}")


def _unlike(other: str, value: float, unit: str) -> str:
    """Return `value` in as few digits as tell it from another text."""
    texts = (shown(value, unit, digits=digits) for digits in range(DIGITS, 18))
    return next((text for text in texts if text != other), other)


def _lowest(space: Space, of: Callable[[Codes], Floats], seed: int) -> Codes:
    """Return the architectures with the lowest values that a short search finds."""

    def evaluate(codes: Codes) -> Scores:
        return Scores(of(codes)[:, None], np.zeros(len(codes)))

    return search(space, evaluate, engine=QUICK, seed=seed).found.codes


def no_joint_solution(problem: Problem, codes: Codes) -> InfeasibleError:
    """Return the error for constraints that can be met alone but, it seems, not together.

    `codes` holds the architecture that comes nearest.
    """
    arch = problem.space.decode(codes)[0]
    estimates = problem.estimates(codes)
    parts = []
    for constraint in problem.constraints:
        low, high = constraint.ends(*estimates[constraint.quantity], level=LEVEL)
        text = problem.quantity(constraint.quantity).text
        for relation, end, bound in (
            ("at most", high, constraint.most),
            ("at least", low, constraint.least),
        ):
            if math.isfinite(bound):
                parts.append(
                    f"{constraint.quantity} {relation} {text(float(end[0]))} (asked: {text(bound)})"
                )
    return InfeasibleError(
        f"no architecture of {problem.space.name} was found that meets all constraints; the "
        f"nearest, {arch.digest[:12]}, promises {', '.join(parts)}",
        "relax one of them, or lower the confidence",
    )
