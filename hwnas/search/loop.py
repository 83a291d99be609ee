"""The measured loop: measure, fit, choose the batch with the largest expected gain, again.

The hypervolume that a batch is expected to add comes from one surrogate per objective
(`surrogate`, `outlook`); docs/search.md has what else was tried. What is measured is written to a
journal before anything else happens, and random numbers come from (seed, number of measurements),
so that a loop that was interrupted continues as if it had not been.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError, MissingPackageError, UsageError
from hwnas.io import Journal, Schema, digest, read_journal
from hwnas.search.arrays import Codes, Floats
from hwnas.search.encoder import Encoder, Features, Table
from hwnas.search.engine import Progress, Report, Seen, hashed
from hwnas.search.front import Front, Interval, Point
from hwnas.search.outlook import Belief, Frontier, Model, choose, model, optimistic
from hwnas.search.pool import Pool, initial_design
from hwnas.search.problem import Objective
from hwnas.search.ranking import first_front
from hwnas.search.surrogate import Kernel
from hwnas.search.volume import gains, hypervolume
from hwnas.spaces import Arch, Space

Measure = Callable[[list[Arch]], Any]
Fit = Callable[[Table, Floats], Model]
JOURNAL = Schema(name="hwnas/measured-loop", version=1)
DESIGN = (20, 40)  # least and most architectures of the initial design
SHORTLIST = 2000
OPTIMISM = 1.5
TOLD = 60  # characters of a wrong answer that are repeated


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """All that was measured, in that order; values are minimised and may be NaN (failed)."""

    space: Space
    minimised: tuple[str, ...]
    codes: Codes
    values: Floats
    seed: int

    @property
    def evaluated(self) -> list[tuple[Arch, Floats]]:
        """(architecture, values) in the order measured."""
        return list(zip(self.space.decode(self.codes), self.values, strict=True))

    @property
    def front(self) -> Front:
        """The measured architectures that no other dominates, sorted by the first objective."""
        rows = np.flatnonzero(np.isfinite(self.values).all(axis=1))
        rows = rows[first_front(self.values[rows])]
        rows = rows[np.lexsort(self.values[rows].T[::-1])]
        points = [
            Point(
                arch=arch,
                quantities={
                    name: Interval(value=value, low=value, high=value)
                    for name, value in zip(self.minimised, values, strict=True)
                },
                origin=f"measured {row + 1}",
            )
            for row, arch, values in zip(
                rows.tolist(),
                self.space.decode(self.codes[rows]),
                self.values[rows].tolist(),
                strict=True,
            )
        ]
        return Front(
            space=self.space.name,
            objectives=tuple(Objective(quantity=name) for name in self.minimised),
            points=tuple(points),
            reference=tuple(Frontier.of(self.values).reference.tolist()) if points else (),
            provenance={
                "engine": "measured loop",
                "seed": self.seed,
                "evaluations": len(self.codes),
            },
        )


def loop(
    space: Space,
    measure: Measure,
    *,
    minimise: Sequence[str] = ("latency", "error"),
    budget: int = 200,
    batch: int = 10,
    seed: int = 0,
    journal: Path | None = None,
    features: Features | None = None,
    report: Report | None = None,
) -> Measured:
    """Return what was measured after `budget` measurements, `batch` at a time.

    `measure` gets a list of architectures and returns one row per architecture, one column per
    name in `minimise`; what could not be measured is NaN. No architecture is measured twice.
    `journal`: a file that holds every measurement; an existing one is continued. `features`:
    columns for the surrogates beside genes and costs, one row per architecture.
    """
    minimise = _checked_request(space, minimise, budget=budget, batch=batch, seed=seed)
    budget, batch, seed = int(budget), int(batch), int(seed)  # numpy's are no JSON
    _needs_scipy()
    about = {"space": _declared(space), "minimise": list(minimise), "seed": seed, "batch": batch}
    state = _State(space, len(minimise), features)
    if journal is not None and Path(journal).is_file():
        state.replay(read_journal(Path(journal)), about, str(journal))
    book = Journal(Path(journal)) if journal is not None else None
    try:
        if book is not None and not state.begun:
            book.append(JOURNAL.stamp(about))
        _run(state, measure, budget=budget, batch=batch, seed=seed, book=book, report=report)
    finally:
        if book is not None:
            book.close()
    return Measured(
        space=space, minimised=minimise, codes=state.codes, values=state.values, seed=seed
    )


def _checked_request(
    space: Space, minimise: Sequence[str], *, budget: int, batch: int, seed: int
) -> tuple[str, ...]:
    """Return the names of the objectives of a request that makes sense."""
    if not isinstance(space, Space):
        raise UsageError(f"space {space!r}; accepted: a Space", "hwnas.space(NAME), or Space(...)")
    names = () if isinstance(minimise, str) else tuple(minimise)
    if not names or len(set(names)) < len(names):
        hint = f"minimise=({minimise!r},)" if isinstance(minimise, str) else ""
        raise UsageError(f"minimise {minimise!r}; accepted: names of objectives, each once", hint)
    for name, value, least in (("budget", budget, 1), ("batch", batch, 1), ("seed", seed, 0)):
        if not isinstance(value, Integral) or value < least:
            raise UsageError(f"{name} {value!r}; accepted: a whole number of at least {least}")
    return names


def _needs_scipy() -> None:
    if find_spec("scipy") is None:
        raise MissingPackageError("the measured loop needs scipy", "pip install 'hwnas[all]'")


def _declared(space: Space) -> str:
    return digest({"name": space.name, "genes": {g: list(v) for g, v in space.genes.items()}})


class _State:
    """What is measured so far, and what is derived from the space alone."""

    def __init__(self, space: Space, objectives: int, features: Features | None) -> None:
        self.space = space
        self.codes: Codes = np.zeros((0, len(space.genes)), np.int64)
        self.values: Floats = np.zeros((0, objectives))
        self.begun = False
        self.encoder = Encoder(space, features=features)
        self.pool = Pool(space, self.encoder)

    def add(self, codes: Codes, values: Floats) -> None:
        self.codes = np.concatenate([self.codes, codes])
        self.values = np.concatenate([self.values, values])

    def replay(self, records: list[dict[str, Any]], about: dict[str, Any], origin: str) -> None:
        """Take over what a journal holds."""
        if not records:
            return
        first = JOURNAL.check(records[0], origin)
        for key, value in about.items():
            if first.get(key) != value:
                raise UsageError(
                    f"{origin}: belongs to a loop with {key} {first.get(key)!r}, not {value!r}",
                    "give another journal, or the same space, objectives, seed and batch",
                )
        self.begun = True
        for number, record in enumerate(records[1:], start=2):
            self.add(*self._kept(record, f"{origin}, line {number}"))
        if len(Seen().unseen(hashed(self.codes), len(self.codes))) < len(self.codes):
            raise FormatError(
                f"{origin}: holds architectures twice, as if two loops had written it at once",
                "give another journal",
            )

    def _kept(self, record: dict[str, Any], origin: str) -> tuple[Codes, Floats]:
        """Return the codes and values of a record."""
        wrong = FormatError(f"{origin}: is damaged: no codes and values of this loop")
        try:
            codes = np.array(record["codes"])
            rows = [[np.nan if v is None else v for v in row] for row in record["values"]]
            values = np.array(rows, np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise wrong from error
        sizes = self.space.cardinalities
        if codes.dtype.kind != "i" or codes.shape != (len(values), len(sizes)):
            raise wrong
        if values.shape != (len(codes), self.values.shape[1]):
            raise wrong
        if (codes < 0).any() or (codes >= sizes).any():
            raise wrong
        return codes.astype(np.int64), values


def _run(
    state: _State,
    measure: Measure,
    *,
    budget: int,
    batch: int,
    seed: int,
    book: Journal | None,
    report: Report | None,
) -> None:
    space = state.space
    budget = min(budget, space.count())
    size = min(max(DESIGN[0], len(space.genes)), DESIGN[1], max(budget // 2, 2), budget)
    design = initial_design(space, size, np.random.default_rng([seed, 0]))
    while len(state.codes) < budget:
        done = len(state.codes)
        if done < len(design):
            # Of a loop that had a smaller budget, other rows than these may be measured.
            left = Seen(hashed(state.codes)).unseen(hashed(design), len(design) - done)
            codes = design[left[:batch]]
        else:
            rng = np.random.default_rng([seed, done])
            codes = propose(state, min(batch, budget - done), rng)
        values = _measured(measure, space.decode(codes), state.values.shape[1])
        if book is not None:
            rows = [[v if np.isfinite(v) else None for v in row] for row in values.tolist()]
            book.append({"codes": codes.tolist(), "values": rows})
        state.add(codes, values)
        if report is not None:
            report(_progress(state))


def _measured(measure: Measure, archs: list[Arch], objectives: int) -> Floats:
    found = measure(archs)
    accepted = f"{(len(archs), objectives)}, one row per architecture"
    try:
        if np.iscomplexobj(found):
            raise TypeError
        values = np.asarray(found, np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"measure returned {_told(found)}, which is no array of numbers; accepted: {accepted}",
            "NaN stands for what could not be measured",
        ) from error
    if values.shape != (len(archs), objectives):
        raise UsageError(f"measure returned an array of shape {values.shape}; accepted: {accepted}")
    return np.where(np.isfinite(values), values, np.nan)


def _told(found: object) -> str:
    text = repr(found)
    return f"{type(found).__name__} {text if len(text) <= TOLD else text[:TOLD] + '...'}"


def _progress(state: _State) -> Progress:
    frontier = Frontier.of(state.values)
    feasible = int(np.isfinite(state.values).all(axis=1).sum())
    volume = hypervolume(frontier.values, frontier.reference) if feasible else 0.0
    return Progress(len(state.codes), len(state.codes), volume, feasible)


def propose(state: _State, count: int, rng: np.random.Generator) -> Codes:
    """Return the architectures to measure next."""
    kernel_table = state.encoder(state.codes)
    kernel = Kernel.of(state.encoder.gene, state.encoder.letter, blocks=len(kernel_table.blocks))
    models = [model(kernel, kernel_table, values) for values in state.values.T]
    codes, table = state.pool.candidates(models, state.codes, state.values, rng)
    if len(codes) <= count:
        return _topped_up(state, codes, count, rng)
    frontier = Frontier.of(state.values)
    if not len(frontier.values):
        return codes[rng.permutation(len(codes))[:count]]
    hopes = np.stack([optimistic(m, table, deviations=OPTIMISM) for m in models], axis=1)
    promising = gains(hopes, frontier.values, frontier.reference)
    short = np.argsort(-promising, kind="stable")[: max(SHORTLIST, count)]
    beliefs = [Belief(m, table.rows(short)) for m in models]
    return codes[short[choose(beliefs, frontier, count=count)]]


def _topped_up(state: _State, codes: Codes, count: int, rng: np.random.Generator) -> Codes:
    """Return `codes` and random ones that are not measured either."""
    seen = Seen(hashed(np.concatenate([state.codes, codes])))
    drawn = state.space.sample_codes(64 * count, rng)
    fresh: NDArray[np.int64] = seen.unseen(hashed(drawn), count - len(codes))
    return np.concatenate([codes, drawn[fresh]])
