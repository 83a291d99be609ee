"""Which architectures to measure on a device: few well-chosen ones, or until it is known enough.

`few` is for a device like others that are known: architectures spread over what the predictors of
the old devices say. `measure_actively` is for a device of its own: batches of what its predictor
is least sure of, until the error that was asked for is reached.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.fit import fold_count
from hwnas.pipeline.predictors import Codes, SpacePredictor, said_by
from hwnas.predictors import Measured, Predictor, evaluate, most_uncertain, stratified
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.features import features
from hwnas.predictors.predictor import LEAST_ROWS
from hwnas.spaces import Arch, Space

CANDIDATES = 2000
FIRST, BATCH, MOST = 20, 10, 300
_FEW, _ACTIVE = 31, 32  # purposes of random numbers

Measure = Callable[[Sequence[Arch]], Sequence[float | None]]


def few(
    space: Space,
    old: Sequence[SpacePredictor],
    n: int,
    *,
    seed: int = 0,
    without: Collection[Arch] = (),
) -> list[Arch]:
    """Return `n` architectures, one from each of `n` equally filled ranges of the prediction.

    The prediction is the geometric mean of those of the old devices' predictors. The order is
    random, so that any beginning of the list is a sample of the range, too.
    """
    if not old:
        raise UsageError("no old devices whose predictions could be spread over")
    rng = np.random.default_rng([seed, _FEW])
    pool = candidates(space, rng, without=without)
    if n > len(pool):
        raise UsageError(f"{n} architectures asked for, {space.name} has {len(pool)} to choose of")
    picks = stratified(np.log(said_by(tuple(old), pool)).mean(axis=1), n, rng)
    return space.decode(pool[rng.permutation(picks)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What is known after a round: rows measured, and the predictor's error in percent.

    `confirmed`: the error is that of a nested cross-validation, not of the fit's own left-out
    rows.
    """

    rows: int
    mape: float
    confirmed: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Active:
    """Everything measured, the predictor fitted on it, and how the error went down."""

    measured: Mapping[Arch, float]
    predictor: Predictor
    rounds: tuple[Round, ...]
    reached: bool


def measure_actively(
    space: Space,
    measure: Measure,
    *,
    wanted_mape: float,
    most: int = MOST,
    batch: int = BATCH,
    known: Mapping[Arch, float] | None = None,
    seed: int = 0,
    watch: Callable[[Round], None] | None = None,
) -> Active:
    """Measure until the predictor's error is at most `wanted_mape` percent.

    `measure` returns the value of each architecture, None where it failed. It starts with what
    is `known` (so an interrupted session goes on) and stops after `most` architectures at the
    latest.
    """
    if not wanted_mape > 0.0 or batch < 1 or most < LEAST_ROWS:
        raise UsageError(
            f"error {wanted_mape} %, batches of {batch}, at most {most}; accepted: an error above "
            f"0 %, batches from 1, at least {LEAST_ROWS} architectures"
        )
    session = _Session(space, measure, known or {})
    start = min(FIRST, most, space.count())
    if session.tried < start:
        session.take(spread(space, start, seed=seed))
    if len(session.measured) < LEAST_ROWS:
        raise HwnasError(
            f"only {len(session.measured)} of {session.tried} architectures could be measured, "
            f"at least {LEAST_ROWS} are needed"
        )
    rounds: list[Round] = []
    while True:
        found = session.fit(seed=seed)
        now = session.round(found, wanted_mape=wanted_mape, seed=seed)
        rounds.append(now)
        if watch is not None:
            watch(now)
        reached = now.confirmed and now.mape <= wanted_mape
        left = min(batch, most - session.tried)
        if reached or left < 1 or not session.take(session.next(found, left, seed=seed)):
            return Active(
                measured=dict(session.measured),
                predictor=found,
                rounds=tuple(rounds),
                reached=reached,
            )


def next_batch(
    space: Space, measured: Mapping[Arch, float], n: int, *, seed: int = 0
) -> list[Arch]:
    """Return `n` architectures that a predictor fitted on `measured` is least sure of."""
    session = _Session(space, _nothing, measured)
    return session.next(session.fit(seed=seed), n, seed=seed)


def candidates(space: Space, rng: np.random.Generator, *, without: Collection[Arch] = ()) -> Codes:
    """Return distinct architectures, half of them spread over the MACs where there are any."""
    codes = space.sample_codes(CANDIDATES // 2, rng)
    bounds = (0.0, math.inf) if space.parts else None
    codes = np.concatenate([codes, space.sample_codes(CANDIDATES // 2, rng, macs=bounds)])
    taken = {tuple(row) for row in space.encode(without).tolist()}
    fresh = [row for row in dict.fromkeys(map(tuple, codes.tolist())) if row not in taken]
    return np.array(fresh, np.int64).reshape(-1, len(space.genes))


class _Session:
    """What was measured and tried so far."""

    def __init__(self, space: Space, measure: Measure, known: Mapping[Arch, float]) -> None:
        self._space, self._measure = space, measure
        self.measured = dict(known)
        self._failed: set[Arch] = set()

    @property
    def tried(self) -> int:
        """How many architectures were measured or failed."""
        return len(self.measured) + len(self._failed)

    def take(self, archs: Sequence[Arch]) -> bool:
        """Measure those that are new; return whether there was any."""
        new = [arch for arch in archs if arch not in self.measured and arch not in self._failed]
        if not new:
            return False
        for arch, value in zip(new, self._measure(new), strict=True):
            if value is None or not math.isfinite(value):
                self._failed.add(arch)
            else:
                self.measured[arch] = value
        return True

    def fit(self, *, seed: int) -> Predictor:
        """Return a predictor of what was measured."""
        genes, costs, values = self._table()
        return Predictor.fit(genes, costs, values, seed=seed)

    def round(self, found: Predictor, *, wanted_mape: float, seed: int) -> Round:
        """Return how sure the predictor is, confirmed where it seems sure enough."""
        rows, mape = len(self.measured), 100.0 * float(found.stack.errors.mape[0])
        folds = fold_count(rows)
        if mape > wanted_mape or not folds:
            return Round(rows=rows, mape=mape, confirmed=False)
        mape = evaluate(*self._table(), folds=folds, seed=seed).scores.mape
        return Round(rows=rows, mape=mape, confirmed=True)

    def next(self, found: Predictor, n: int, *, seed: int) -> list[Arch]:
        """Return what to measure next; fewer than `n` where the space is used up."""
        rng = np.random.default_rng([seed, _ACTIVE, self.tried])
        pool = candidates(self._space, rng, without=[*self.measured, *self._failed])
        if not len(pool):
            return []
        there = features(self._space, pool)
        genes, costs, _ = self._table()
        picks: NDArray[np.int64] = most_uncertain(
            found, there.genes, there.costs, min(n, len(pool)),
            measured=Measured(genes=genes, costs=costs), rng=rng,
        )  # fmt: skip
        return self._space.decode(pool[picks])

    def _table(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        found = features(self._space, list(self.measured))
        return found.genes, found.costs, np.array(list(self.measured.values()))


def _nothing(archs: Sequence[Arch]) -> Sequence[float | None]:
    return [None] * len(archs)
