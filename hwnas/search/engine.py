"""The driver that every engine shares: what is new is scored, kept, reported and checkpointed.

An engine only says how to begin, how to breed and who survives. Random numbers come from (seed,
generation), so that a search resumed from its checkpoint is the search that was not interrupted.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import comb
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.io import digest, read_tensors, write_tensors
from hwnas.search.arrays import Codes, Floats
from hwnas.search.problem import Evaluate, Scores
from hwnas.search.ranking import crowding, first_front
from hwnas.search.volume import hypervolume
from hwnas.spaces import Space

Keys = NDArray[np.uint64]
TRIES = 6
WORST = 1e300  # stands for what is no number
MERGED_AT = 1 << 16
ARCHIVED = 1024
ALIKE = 1e-5  # scores vary by 1e-8 of their size with the rows that are scored together
# how many least crowded rows the reported hypervolume counts, by number of objectives
COUNTED = {1: 1024, 2: 1024, 3: 96}
SLICES = 1200  # fronts of two objectives into which the volume of more than three is cut at most
CHECKPOINT = "hwnas/search-state"
VERSION = "1"


class Progress(NamedTuple):
    """How far a search is."""

    generation: int
    evaluations: int
    hypervolume: float
    feasible: int


Report = Callable[[Progress], None]


class Population(NamedTuple):
    """Rows of value indices with their scores."""

    codes: Codes
    values: Floats
    violation: Floats

    def rows(self, chosen: NDArray[np.int64] | NDArray[np.bool_] | slice) -> "Population":
        """Return some of the rows."""
        return Population(self.codes[chosen], self.values[chosen], self.violation[chosen])

    def joined(self, other: "Population") -> "Population":
        """Return the rows of both."""
        return Population(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))


class Engine(Protocol):
    """How a search begins, breeds and selects."""

    @property
    def generations(self) -> int:
        """The number of generations after the first."""

    @property
    def offspring(self) -> int:
        """The number of architectures scored in a generation."""

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return the architectures to begin with; equal ones are scored once."""

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return canonical candidates for the next generation."""

    def survive(self, everyone: Population) -> Population:
        """Return those of the last generation and its parents that go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a search found: the feasible rows that nothing it scored dominates or equals.

    `reference` is the worst of each objective in the first generation; hypervolumes in `history`
    refer to it.
    """

    found: Population
    last: Population
    evaluations: int
    reference: Floats
    history: tuple[Progress, ...]


class Seen:
    """A set of keys, held as sorted arrays so that whole generations are looked up at once."""

    def __init__(self, keys: Keys | None = None) -> None:
        self._old = np.empty(0, np.uint64) if keys is None else np.sort(keys)
        self._new = np.empty(0, np.uint64)

    def __len__(self) -> int:
        return len(self._old) + len(self._new)

    def unseen(self, keys: Keys, most: int | None = None) -> NDArray[np.int64]:
        """Return the first `most` rows whose keys are new, and add those keys to the set."""
        unique, first = np.unique(keys, return_index=True)
        fresh = ~(_among(unique, self._old) | _among(unique, self._new))
        rows = np.sort(first[fresh])[:most]
        self._new = _inserted(self._new, np.sort(keys[rows]))
        if len(self._new) > MERGED_AT:
            self._old, self._new = _inserted(self._old, self._new), self._new[:0]
        return rows

    def keys(self) -> Keys:
        """Return all keys."""
        return np.concatenate([self._old, self._new])


def _inserted(known: Keys, new: Keys) -> Keys:
    """Return two sorted arrays as one."""
    return np.insert(known, np.searchsorted(known, new), new)


def _among(keys: Keys, known: Keys) -> NDArray[np.bool_]:
    if not len(known):
        return np.zeros(len(keys), bool)
    at = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.asarray(known[at] == keys)


def hashed(codes: Codes) -> Keys:
    """Return a 64-bit key of each row; a collision among a million rows has chance 3e-8."""
    multipliers = np.random.default_rng(0).integers(0, 2**64, codes.shape[1], np.uint64)
    mixed = (codes.astype(np.uint64) + np.uint64(1)) @ (multipliers | np.uint64(1))
    mixed ^= mixed >> np.uint64(31)
    return np.asarray(mixed * np.uint64(0x9E3779B97F4A7C15))


class _State(NamedTuple):
    generation: int
    parents: Population
    archive: Population
    seen: Seen
    evaluations: int
    reference: Floats
    history: tuple[Progress, ...]


def search(
    space: Space,
    evaluate: Evaluate,
    *,
    engine: Engine,
    seed: int = 0,
    report: Report | None = None,
    checkpoint: Path | None = None,
    every: int = 10,
    about: Sequence[str] = (),
) -> Outcome:
    """Return what the engine finds; resumed from `checkpoint` where that file exists.

    The checkpoint is written every so many generations and after the last one. It is only of use
    to a search of the same space, engine, seed, scores, and what `about` says of it.
    """
    state = None
    parts = {"engine": repr(engine), "seed": seed, "space": _declared(space), "about": [*about]}
    label = digest(parts)
    if checkpoint is not None and Path(checkpoint).exists():
        state = _restored(Path(checkpoint), label)
        if not _scored_alike(evaluate, state.parents):
            raise _of_another_search(Path(checkpoint))
    if state is None:
        state = _begun(space, evaluate, engine, seed)
        _tell(report, state)
    while state.generation < engine.generations:
        advanced = _advanced(space, evaluate, engine, seed, state)
        if advanced is None:  # every architecture has been scored
            break
        state = advanced
        _tell(report, state)
        if checkpoint is not None and state.generation % every == 0:
            _save(Path(checkpoint), label, state)
    if checkpoint is not None:
        _save(Path(checkpoint), label, state)
    return Outcome(
        found=state.archive,
        last=state.parents,
        evaluations=state.evaluations,
        reference=state.reference,
        history=state.history,
    )


def _tell(report: Report | None, state: _State) -> None:
    if report is not None:
        report(state.history[-1])


def _declared(space: Space) -> list[object]:
    genes = [[gene, list(values)] for gene, values in space.genes.items()]
    return [genes, sorted((gene, repr(of)) for gene, of in space.requires.items())]


def _scored_alike(evaluate: Evaluate, kept: Population) -> bool:
    """Return whether rows have the scores they had, but for what depends on their company."""
    values, violation = checked(evaluate(kept.codes), kept.codes)
    scale = np.abs(kept.values) + np.median(np.abs(kept.values), axis=0)
    same = values.shape == kept.values.shape and bool(
        (np.abs(values - kept.values) <= ALIKE * scale).all()
    )
    return same and np.allclose(violation, kept.violation, rtol=ALIKE, atol=ALIKE)


def _begun(space: Space, evaluate: Evaluate, engine: Engine, seed: int) -> _State:
    rng = np.random.default_rng([seed, 0])
    seen = Seen()
    codes = space.canonical(engine.start(space, rng))
    codes = codes[seen.unseen(hashed(codes))]
    first = Population(codes, *checked(evaluate(codes), codes))
    state = _State(
        generation=0,
        parents=engine.survive(first),
        archive=_archived(first),
        seen=seen,
        evaluations=len(codes),
        reference=_reference(first),
        history=(),
    )
    return _recorded(state)


def _reference(first: Population) -> Floats:
    numbers = first.values[np.isfinite(first.violation)]
    return numbers.max(axis=0) if len(numbers) else np.zeros(first.values.shape[1])


def _advanced(
    space: Space, evaluate: Evaluate, engine: Engine, seed: int, state: _State
) -> _State | None:
    rng = np.random.default_rng([seed, state.generation + 1])
    codes = _fresh(space, engine, state, rng)
    if not len(codes):
        return None
    born = Population(codes, *checked(evaluate(codes), codes))
    return _recorded(
        state._replace(
            generation=state.generation + 1,
            parents=engine.survive(state.parents.joined(born)),
            archive=_archived(state.archive.joined(born)),
            evaluations=state.evaluations + len(codes),
        )
    )


def _fresh(space: Space, engine: Engine, state: _State, rng: np.random.Generator) -> Codes:
    """Return new offspring; random architectures where breeding only repeats what was seen."""
    found = [state.parents.codes[:0]]
    missing = min(engine.offspring, space.count() - len(state.seen))
    for attempt in range(2 * TRIES):
        if not missing:
            break
        if attempt < TRIES and len(state.parents.codes):
            codes = engine.breed(space, state.parents, rng)
        else:
            codes = space.sample_codes(max(4 * missing, 64), rng)
        found.append(codes[state.seen.unseen(hashed(codes), missing)])
        missing -= len(found[-1])
    return np.concatenate(found)


def checked(scores: Scores, codes: Codes) -> Scores:
    """Return scores whose values are all numbers; others are infinitely bad."""
    values = np.asarray(scores.values, np.float64)
    violation = np.asarray(scores.violation, np.float64)
    if values.ndim != 2 or len(values) != len(codes) or violation.shape != (len(codes),):
        raise UsageError(
            f"the evaluation returned values of shape {values.shape} and violations of shape "
            f"{violation.shape} for {len(codes)} architectures"
        )
    bad = np.asarray(~np.isfinite(values).all(axis=1))
    if bad.any():
        violation = np.where(bad, np.inf, violation)
        values = np.where(bad[:, None], WORST, values)
    return Scores(values, violation)


def _archived(everyone: Population) -> Population:
    """Return the feasible rows that none dominates, the first found of those with equal values.

    If they are too many, the least crowded ones.
    """
    feasible = everyone.rows(everyone.violation <= 0)
    if not len(feasible.codes):
        return feasible
    front = feasible.rows(first_front(feasible.values))
    _, first = np.unique(front.values, axis=0, return_index=True)
    return _least_crowded(front.rows(np.sort(first)), ARCHIVED)


def _least_crowded(front: Population, most: int) -> Population:
    if len(front.codes) <= most:
        return front
    distance = crowding(front.values, np.zeros(len(front.codes), np.int64))
    return front.rows(np.sort(np.argsort(-distance, kind="stable")[:most]))


def counted_rows(objectives: int) -> int:
    """Return how many rows the reported hypervolume of so many objectives counts."""
    if objectives in COUNTED:
        return COUNTED[objectives]
    return max(n for n in range(1, SLICES) if comb(n + objectives - 3, objectives - 2) <= SLICES)


def _recorded(state: _State) -> _State:
    counted = _least_crowded(state.archive, counted_rows(len(state.reference)))
    volume = hypervolume(counted.values, state.reference)
    feasible = int((state.parents.violation <= 0).sum())
    progress = Progress(state.generation, state.evaluations, volume, feasible)
    return state._replace(history=(*state.history, progress))


def _save(path: Path, label: str, state: _State) -> None:
    tensors: dict[str, NDArray[Any]] = {
        "counters": np.array([state.generation, state.evaluations], np.int64),
        "seen": state.seen.keys(),
        "reference": state.reference,
        "history": np.array(state.history, np.float64),
    }
    for name, population in (("parents", state.parents), ("archive", state.archive)):
        tensors |= {f"{name}.{field}": a for field, a in population._asdict().items()}
    write_tensors(path, tensors, {"schema": CHECKPOINT, "version": VERSION, "label": label})


def _restored(path: Path, label: str) -> _State:
    tensors, about = read_tensors(path)
    if about.get("schema") != CHECKPOINT or about.get("version") != VERSION:
        raise UsageError(f"{path}: is no checkpoint of a search of this version of hwnas")
    if about.get("label") != label:
        raise _of_another_search(path)
    generation, evaluations = tensors["counters"].tolist()
    return _State(
        generation=generation,
        parents=_population(tensors, "parents"),
        archive=_population(tensors, "archive"),
        seen=Seen(tensors["seen"]),
        evaluations=evaluations,
        reference=tensors["reference"],
        history=tuple(Progress(int(g), int(e), h, int(f)) for g, e, h, f in tensors["history"]),
    )


def _of_another_search(path: Path) -> UsageError:
    return UsageError(
        f"{path}: belongs to a search with another space, engine, seed, objectives or constraints",
        "give another file, or the same settings and predictors",
    )


def _population(tensors: Mapping[str, NDArray[Any]], name: str) -> Population:
    return Population(*(tensors[f"{name}.{field}"] for field in Population._fields))
