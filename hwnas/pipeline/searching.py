"""`hwnas search` as a library: budgets in, a front with answers out, kept in the run.

`prepare` finds out what a run can predict and what can be reached; `search` looks for the whole
front and for the best within each budget, and writes `RUN/search/front.json`. An interrupted
search goes on from its checkpoints and finds what it would have found.
"""

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import InfeasibleError, UsageError, unknown_name
from hwnas.io import digest, digest_file
from hwnas.pipeline.answers import Pool, Rows, answer_of, choices_of, no_answer
from hwnas.pipeline.deployments import (
    Deployment,
    deployments,
    device_of,
    nothing_fitted,
    ways_to_run,
)
from hwnas.pipeline.fronts import FOLDER, Answer, Front, write_front
from hwnas.pipeline.predictors import (
    ACCURACY,
    accuracy_predictor,
    predictor_folders,
    predictors_of,
)
from hwnas.pipeline.quantities import Field, targets_of
from hwnas.pipeline.rundir import (
    Run,
    latest_step,
    recorded_versions,
    space_of,
    supernet_file,
)
from hwnas.predictors.card import ARRAYS, CARD
from hwnas.profiling.machine import device as this_device
from hwnas.search import Constraint, Objective, Problem, Progress, Reach, reach
from hwnas.search.api import ENGINES, engine_named, explored
from hwnas.search.budgets import MORE_IS_BETTER, OF_DEVICES, Budget, joint_confidence, label
from hwnas.search.engine import Engine, Outcome
from hwnas.search.evolution import Paper
from hwnas.search.reachable import check_reachable

STATE = "state"
Watch = Callable[[str, Progress], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What to search for.

    `budgets`: sets of budgets that hold together; each gets an answer. None at all: the whole
    front. `device`: for budgets that name none. `settings`: what the ways to run on a device must
    have, None for the plainest. `minimise`: what is traded for accuracy; by default the latency of
    every device. Throughput is maximised.
    """

    budgets: tuple[tuple[Budget, ...], ...] = ((),)
    device: str | None = None
    settings: Mapping[str, str] | None = None
    confidence: float = 0.95
    minimise: tuple[str, ...] = ()
    engine: str = "nsga2"
    seed: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A set of budgets with the constraints that they are; `label` is empty for none.

    `obstacle`: why nothing can meet it.
    """

    label: str
    constraints: tuple[Constraint, ...]
    obstacle: InfeasibleError | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A request that can be met: what is predicted, what can be reached, what is asked."""

    run: Run
    request: Request
    field: Field
    objectives: tuple[Objective, ...]
    ranges: Mapping[str, Reach]
    asked: tuple[Asked, ...]
    provenance: Mapping[str, Any]

    def problem(self, constraints: tuple[Constraint, ...] = ()) -> Problem:
        """Return the problem with these constraints."""
        return Problem(
            space=self.field.space,
            quantities=self.field.quantities,
            objectives=self.objectives,
            constraints=constraints,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a search found: the front, its file, and what was asked, an entry per answer."""

    prepared: Prepared
    front: Front
    path: Path


def prepare(run: Run, request: Request) -> Prepared:
    """Return the request made ready for searching.

    Raises InfeasibleError where no budget can be met, naming the nearest that can. Where only
    some of several cannot, these have an obstacle.
    """
    if request.engine not in ENGINES:
        raise unknown_name("engine", request.engine, ENGINES)
    field, budgets = _field(run, request)
    objectives = _objectives(run, field, request, budgets)
    prepared = Prepared(
        run=run,
        request=request,
        field=field,
        objectives=objectives,
        ranges={},
        asked=_asked(field, budgets, request.confidence),
        provenance=_provenance(run, request, field, objectives),
    )
    ranges = reach(prepared.problem(), seed=request.seed)
    return replace(prepared, ranges=ranges, asked=_reachable(prepared))


def _reachable(prepared: Prepared) -> tuple[Asked, ...]:
    """Return what is asked, with what stands in the way of what cannot be met."""
    found = []
    for asked in prepared.asked:
        try:
            check_reachable(prepared.problem(asked.constraints), seed=prepared.request.seed)
        except InfeasibleError as error:
            found.append(replace(asked, obstacle=error))
        else:
            found.append(asked)
    _check_some_can_be_met(found)
    return tuple(found)


def _check_some_can_be_met(every: Sequence[Asked]) -> None:
    obstacles = [asked.obstacle for asked in every if asked.obstacle is not None]
    if len(obstacles) < len(every):
        return
    nearest = obstacles[0]
    raise InfeasibleError("; ".join(dict.fromkeys(o.message for o in obstacles)), nearest.hint)


def _asked(
    field: Field, budgets: tuple[tuple[Budget, ...], ...], confidence: float
) -> tuple[Asked, ...]:
    largest = _largest(field)
    found = []
    for together in budgets:
        for budget in together:
            if budget.name not in largest:
                raise unknown_name("quantity", budget.name, largest)
        constraints = [
            budget.constraint(largest=largest[budget.name], confidence=confidence)
            for budget in together
        ]
        found.append(Asked(label=label(together), constraints=joint_confidence(constraints)))
    return tuple(found)


def search(prepared: Prepared, *, watch: Watch | None = None) -> Found:
    """Return the front of a prepared request, and write it to the run."""
    run = prepared.run
    prepared, outcomes = _outcomes(prepared, watch)
    codes = np.concatenate([outcome.found.codes for outcome in outcomes])
    pool = Pool.of(prepared.field, prepared.objectives, codes)
    answers, kept = _answers(prepared, pool)
    front = Front(
        space=run.space,
        options=dict(run.options),
        choices=choices_of(prepared.field, pool, kept),
        answers=answers,
        provenance={
            **prepared.provenance,
            "ranges": {name: [r.low, r.high] for name, r in prepared.ranges.items()},
            "evaluations": sum(outcome.evaluations for outcome in outcomes),
        },
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    path = write_front(run, front)
    shutil.rmtree(run.folder / FOLDER / STATE, ignore_errors=True)
    return Found(prepared=prepared, front=front, path=path)


def _outcomes(prepared: Prepared, watch: Watch | None) -> tuple[Prepared, list[Outcome]]:
    """Return what was found; budgets for which nothing was have an obstacle then."""
    whole = Asked(label="the whole front", constraints=())
    found = {whole.constraints: _explored(prepared, whole, watch)}
    every = []
    for asked in prepared.asked:
        obstacle = asked.obstacle
        if obstacle is None and asked.constraints not in found:
            try:
                found[asked.constraints] = _explored(prepared, asked, watch)
            except InfeasibleError as error:
                obstacle = error
        every.append(replace(asked, obstacle=obstacle))
    _check_some_can_be_met(every)
    return replace(prepared, asked=tuple(every)), list(found.values())


def _explored(prepared: Prepared, asked: Asked, watch: Watch | None) -> Outcome:
    return explored(
        prepared.problem(asked.constraints),
        _engine(prepared.request),
        seed=prepared.request.seed,
        report=_report(watch, asked.label),
        checkpoint=_checkpoint(prepared, asked.constraints),
    )


def _engine(request: Request) -> Engine:
    engine = engine_named(request.engine)
    # The first objective is the accuracy, whose range is not what is cut into bins.
    return replace(engine, cost=1) if isinstance(engine, Paper) else engine


def search_run(run: Run, request: Request, *, watch: Watch | None = None) -> Found:
    """Return what a search of a run finds; it is kept in the run."""
    return search(prepare(run, request), watch=watch)


def _field(run: Run, request: Request) -> tuple[Field, tuple[tuple[Budget, ...], ...]]:
    """Return what is searched, and the budgets with devices named as they are known."""
    accuracy = accuracy_predictor(run)
    known = deployments(predictors_of(run))
    every = [budget for together in request.budgets for budget in together]
    names = _devices(run, request, [b for b in every if b.quantity in OF_DEVICES], known)
    devices = tuple(dict.fromkeys(names.values()))
    wanted = tuple(
        name
        for name in OF_DEVICES
        if devices and (name == "latency" or name in _named(request, every))
    )
    ways = {
        device: ways_to_run(known, device, request.settings, targets=targets_of(wanted))
        for device in devices
    }
    field = Field(base=space_of(run), accuracy=accuracy, devices=ways, wanted=wanted)
    return field, _with_devices(request.budgets, names)


def _devices(
    run: Run, request: Request, budgets: list[Budget], known: list[Deployment]
) -> dict[str | None, str]:
    """Return the devices that budgets name, as they are known; None is for those that name none.

    Nothing where nothing is known of devices and nothing needs to be.
    """
    if not known:
        if budgets or request.device or not any(request.budgets):
            raise nothing_fitted(run)
        return {}
    this = this_device().fingerprint
    named: dict[str | None, None] = dict.fromkeys(budget.device for budget in budgets)
    if request.device or not named:
        named[None] = None
    return {name: device_of(known, name or request.device, this=this, run=run) for name in named}


def _named(request: Request, budgets: list[Budget]) -> set[str]:
    minimised = {name.partition(":")[0] for name in request.minimise}
    return {budget.quantity for budget in budgets} | minimised


def _with_devices(
    budgets: tuple[tuple[Budget, ...], ...], names: Mapping[str | None, str]
) -> tuple[tuple[Budget, ...], ...]:
    """Return budgets named as the quantities are: with a device where there are several."""
    several = len(set(names.values())) > 1

    def named(budget: Budget) -> Budget:
        device = names.get(budget.device) if budget.quantity in OF_DEVICES and several else None
        return Budget(
            quantity=budget.quantity,
            device=device,
            most=budget.most,
            least=budget.least,
            is_share=budget.is_share,
        )

    return tuple(tuple(named(budget) for budget in together) for together in budgets)


def _objectives(
    run: Run, field: Field, request: Request, budgets: tuple[tuple[Budget, ...], ...]
) -> tuple[Objective, ...]:
    if ACCURACY in request.minimise:
        raise UsageError("the accuracy is maximised, it cannot be minimised", "leave it out")
    known = [quantity.name for quantity in field.quantities if quantity.name != ACCURACY]
    names: list[str] = []
    for asked in request.minimise:
        several = [name for name in known if name.partition(":")[0] == asked]
        if asked not in known and not several:
            raise unknown_name("quantity in --minimise", asked, known)
        names += [asked] if asked in known else several
    if not names:
        names = [name for name in known if name.partition(":")[0] == "latency"]
    if not names:  # costs alone were asked for, and nothing is known of any device
        names = list(dict.fromkeys(budget.name for together in budgets for budget in together))
    if not names:
        raise nothing_fitted(run)
    traded = tuple(
        Objective(quantity=name, maximise=_more_is_better(name)) for name in dict.fromkeys(names)
    )
    return (Objective(quantity=ACCURACY, maximise=True), *traded)


def _more_is_better(name: str) -> bool:
    return name.partition(":")[0] in MORE_IS_BETTER


def _largest(field: Field) -> dict[str, float]:
    """Return what the largest architecture has of each quantity, run in its best way."""
    every = field.in_every_way(field.base.encode([field.base.largest()]))
    found = {quantity.name: quantity.estimate(every).mean for quantity in field.quantities}
    return {
        name: float(values.max() if _more_is_better(name) else values.min())
        for name, values in found.items()
    }


def _report(watch: Watch | None, name: str) -> Callable[[Progress], None] | None:
    return None if watch is None else lambda progress: watch(name, progress)


def _checkpoint(prepared: Prepared, constraints: tuple[Constraint, ...]) -> Path:
    """Return the file for the state of one search; another request has another file."""
    asked = {
        "provenance": dict(prepared.provenance),
        "objectives": [repr(objective) for objective in prepared.objectives],
        "constraints": [repr(constraint) for constraint in constraints],
    }
    return prepared.run.folder / FOLDER / STATE / f"{digest(asked)[:16]}.safetensors"


def _answers(prepared: Prepared, pool: Pool) -> tuple[tuple[Answer, ...], Rows]:
    """Return the answers, and which rows of the pool the front keeps."""
    met = [asked.constraints for asked in prepared.asked if asked.obstacle is None]
    kept = np.unique(np.concatenate([pool.front(), *map(pool.front, met)]))
    confidence = prepared.request.confidence
    answers = tuple(
        answer_of(pool, asked.label, asked.constraints, kept, confidence)
        if asked.obstacle is None
        else no_answer(asked.label, asked.constraints, asked.obstacle.message)
        for asked in prepared.asked
    )
    return answers, kept


def _provenance(
    run: Run, request: Request, field: Field, objectives: tuple[Objective, ...]
) -> dict[str, Any]:
    """Return what a front depends on."""
    predictors = {
        folder.name: {"card": digest_file(folder / CARD), "arrays": digest_file(folder / ARRAYS)}
        for folder in predictor_folders(run)
    }
    profiles = {path.name: digest_file(path) for path in run.profiles}
    weights = supernet_file(run)
    return {
        "engine": request.engine,
        "engine_settings": repr(_engine(request)),
        "seed": request.seed,
        "confidence": request.confidence,
        "objectives": [("-" if o.maximise else "") + o.quantity for o in objectives],
        "devices": {
            device: [way.described for way in ways] for device, ways in field.devices.items()
        },
        "fingerprints": {device: ways[0].fingerprint for device, ways in field.devices.items()},
        "predictors": predictors,
        "profiles": profiles,
        "supernet": {"step": latest_step(run), "sha256": digest_file(weights)},
        "versions": recorded_versions(),
    }
