"""`front`: the best architectures of a space by what predictors say of them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import MissingPackageError, UsageError, unknown_name
from hwnas.search.constraints import Constraint
from hwnas.search.engine import Engine, Outcome, Report, search
from hwnas.search.evolution import Nsga2, Paper, Random, Uniform
from hwnas.search.front import Front, Interval, Point
from hwnas.search.problem import LEVEL, Estimate, Objective, Problem, Quantity
from hwnas.search.reachable import check_reachable, no_joint_solution
from hwnas.spaces import Space

Goal = str | Objective


def _pymoo() -> Engine:
    try:
        from hwnas.search.pymoo_adapter import PymooNsga2
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            f"engine 'pymoo' needs the package {error.name}", "pip install 'hwnas[all]'"
        ) from error
    return PymooNsga2()


ENGINES: Mapping[str, Callable[[], Engine]] = {
    "nsga2": Nsga2,
    "pymoo": _pymoo,
    "paper": Paper,
    "random": Random,
    "uniform": Uniform,
}


def engine_named(name: str) -> Engine:
    """Return the engine of that name with its usual settings."""
    if name not in ENGINES:
        raise unknown_name("engine", name, ENGINES)
    return ENGINES[name]()


def front(
    space: Space,
    objectives: Sequence[Goal],
    constraints: Sequence[Constraint] = (),
    *,
    quantities: Sequence[Quantity],
    engine: str | Engine = "nsga2",
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> Front:
    """Return the feasible architectures that no other found dominates, with provenance.

    `objectives`: quantities to minimise by name (`-name` maximises) or `Objective`s.
    `quantities`: what is known of architectures (`problem.predicted`, `problem.exact`); all of
    them are listed in the points. Raises InfeasibleError, before it searches, where a constraint
    cannot be met, naming the nearest that can.
    """
    problem = Problem(
        space=space,
        quantities=tuple(quantities),
        objectives=tuple(_objective(goal) for goal in objectives),
        constraints=tuple(constraints),
    )
    chosen = engine_named(engine) if isinstance(engine, str) else engine
    check_reachable(problem, seed=seed)
    outcome = explored(problem, chosen, seed=seed, report=report, checkpoint=checkpoint)
    about = {"engine": type(chosen).__name__, "seed": seed, "evaluations": outcome.evaluations}
    return front_of(problem, outcome, {**about, **(provenance or {})})


def explored(
    problem: Problem,
    engine: Engine,
    *,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
) -> Outcome:
    """Return what an engine finds. Raises InfeasibleError where it finds nothing feasible."""
    about = [repr(part) for part in (*problem.objectives, *problem.constraints)]
    outcome = search(
        problem.space, problem, engine=engine, seed=seed, report=report, checkpoint=checkpoint,
        about=about,
    )  # fmt: skip
    if not len(outcome.found.codes):
        nearest = outcome.last.codes[[int(np.argmin(outcome.last.violation))]]
        raise no_joint_solution(problem, nearest)
    return outcome


def front_of(problem: Problem, outcome: Outcome, provenance: Mapping[str, Any]) -> Front:
    """Return the front of what a search found, with all quantities of the problem."""
    codes = outcome.found.codes[np.lexsort(outcome.found.values.T[::-1])]
    estimates = {quantity.name: quantity.estimate(codes) for quantity in problem.quantities}
    probability = np.ones(len(codes))
    for constraint in problem.constraints:
        probability *= constraint.probability(*estimates[constraint.quantity], level=LEVEL)
    wanted = [objective.quantity for objective in problem.objectives]
    names = wanted + [name for name in estimates if name not in wanted]
    points = tuple(
        Point(
            arch=arch,
            quantities={name: _interval(estimates[name], row) for name in names},
            probability=float(probability[row]),
            origin=str(provenance.get("engine", "")),
        )
        for row, arch in enumerate(problem.space.decode(codes))
    )
    signs = np.array([objective.sign for objective in problem.objectives])
    return Front(
        space=problem.space.name,
        objectives=problem.objectives,
        constraints=problem.constraints,
        points=points,
        reference=tuple((outcome.reference * signs).tolist()),
        provenance=dict(provenance),
    )


def _objective(goal: Goal) -> Objective:
    if isinstance(goal, Objective):
        return goal
    if not goal.strip("-"):
        raise UsageError(f"objective {goal!r}; accepted: the name of a quantity, or -name")
    return Objective(quantity=goal.removeprefix("-"), maximise=goal.startswith("-"))


def _interval(estimate: Estimate, row: int) -> Interval:
    value, low, high = (float(part[row]) for part in estimate)
    return Interval(value=value, low=low, high=high)
