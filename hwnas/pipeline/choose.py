"""Which architectures to measure on a device: few well-chosen ones, or until it is known enough.

`few` is for a device like others that are known: architectures spread over what the predictors of
the old devices say. `measure_actively` is for a device of its own: batches of what its predictor
is least sure of, until the error that was asked for is reached.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.fit import LEAST_JUDGED, fold_count
from hwnas.pipeline.predictors import Codes, SpacePredictor, said_by
from hwnas.predictors import CurvePoint, Measured, Predictor, evaluate, most_uncertain, stratified
from hwnas.predictors.columns import FloatArray
from hwnas.predictors.evaluate import fitted_law
from hwnas.predictors.features import features
from hwnas.predictors.predictor import LEAST_ROWS
from hwnas.spaces import Arch, Space

CANDIDATES = 2000
FIRST, BATCH, MOST = 20, 10, 300
_FEW, _ACTIVE = 31, 32  # purposes of random numbers

Measure = Callable[[Sequence[Arch]], Mapping[Arch, float | None]]


def few(
    space: Space,
    old: Sequence[SpacePredictor],
    n: int,
    *,
    seed: int = 0,
    among: Sequence[Arch] | None = None,
    without: Collection[Arch] = (),
) -> list[Arch]:
    """Return `n` architectures, one from each of `n` equally filled ranges of the prediction.

    The prediction is the geometric mean of those of the old devices' predictors. The order is
    random, so that any beginning of the list is a sample of the range, too. `among`: choose of
    these instead of the whole space.
    """
    if not old:
        raise UsageError("no old devices whose predictions could be spread over")
    rng = np.random.default_rng([seed, _FEW])
    pool = candidates(space, rng, among=among, without=without)
    if not 1 <= n <= len(pool):
        raise UsageError(f"{n} architectures asked for, {space.name} has {len(pool)} to choose of")
    picks = stratified(np.log(said_by(tuple(old), pool)).mean(axis=1), n, rng)
    return space.decode(pool[rng.permutation(picks)])


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """What is known after a round: rows that count, and the predictor's error in percent.

    `left_out`: how many were measured too unreliably to count. `confirmed`: the error is that of a
    nested cross-validation, not of the fit's own left-out rows. `gain`: by how many percentage
    points another batch would lower it, by the law that the rounds so far follow.
    """

    rows: int
    failed: int
    left_out: int
    mape: float
    confirmed: bool
    gain: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Active:
    """Everything measured, the predictor fitted on it, and how the error went down.

    `left_out`: what was measured too unreliably to count, and is not in `measured`. `used_up`:
    nothing was left to measure.
    """

    measured: Mapping[Arch, float]
    failed: tuple[Arch, ...]
    left_out: tuple[Arch, ...]
    predictor: Predictor
    rounds: tuple[Round, ...]
    reached: bool
    used_up: bool


def measure_actively(
    space: Space,
    measure: Measure,
    *,
    wanted_mape: float,
    most: int = MOST,
    batch: int = BATCH,
    known: Mapping[Arch, float | None] | None = None,
    unreliable: Callable[[], Collection[Arch]] = tuple,
    among: Sequence[Arch] | None = None,
    seed: int = 0,
    watch: Callable[[Round], None] | None = None,
) -> Active:
    """Measure until the predictor's error is at most `wanted_mape` percent.

    `measure` measures architectures and returns all that is known then, in order: a value, None
    where it failed; what was known before may be told anew. `known` is what there is already.
    `unreliable` tells of which of it the values are poor: they do not count where enough others
    are there. Rounds end at 20, 30, 40, ... architectures, and a round depends on what was known
    when it began alone: a session that was interrupted anywhere goes on with exactly what it would
    have measured next. It stops after `most` architectures at the latest. `among`: measure none but
    these; the first ones should be a sample of them all.
    """
    if not wanted_mape > 0.0 or batch < 1 or most < LEAST_JUDGED:
        raise UsageError(
            f"error {wanted_mape:g} %, batches of {batch}, at most {most}; accepted: an error "
            f"above 0 %, batches from 1, at least {LEAST_JUDGED} architectures"
        )
    session = _Session(
        space=space, measure=measure, unreliable=unreliable, tried=dict(known or {}),
        poor=frozenset(unreliable()), among=among, seed=seed,
    )  # fmt: skip
    aim = _Aim(mape=wanted_mape, batch=batch, watch=watch)
    start = session.begin(most)
    while True:
        there = len(session.tried)
        end = there if there >= most else start + (there - start) // batch * batch
        found, reached = session.judge(end, aim)
        until = min(end + batch, most)
        if reached or until <= there:
            break
        if not session.take(session.next(found, until - end, end=end), until=until):
            break
    if end < len(session.tried):  # what is left of an unfinished round, or of a space
        found, at_last = session.judge(len(session.tried), aim)
        reached = reached or at_last
    return session.outcome(found, reached)


def candidates(
    space: Space,
    rng: np.random.Generator,
    *,
    among: Sequence[Arch] | None = None,
    without: Collection[Arch] = (),
) -> Codes:
    """Return distinct architectures, half of them spread over the MACs where there are any."""
    if among is not None:
        codes = space.encode(among)
    else:
        codes = space.sample_codes(CANDIDATES // 2, rng)
        bounds = (0.0, math.inf) if space.parts else None
        codes = np.concatenate([codes, space.sample_codes(CANDIDATES // 2, rng, macs=bounds)])
    taken = {tuple(row) for row in space.encode(without).tolist()}
    fresh = [row for row in dict.fromkeys(map(tuple, codes.tolist())) if row not in taken]
    return np.array(fresh, np.int64).reshape(-1, len(space.genes))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Aim:
    """The error that is asked for, how many architectures a round has, and who watches."""

    mape: float
    batch: int
    watch: Callable[[Round], None] | None


@dataclass(kw_only=True, slots=True)
class _Session:
    """What was measured (None: failed) so far, in order; `end` cuts off what came later.

    `poor`: those of it that `unreliable` told of.
    """

    space: Space
    measure: Measure
    unreliable: Callable[[], Collection[Arch]]
    tried: dict[Arch, float | None]
    poor: frozenset[Arch]
    among: Sequence[Arch] | None
    seed: int
    rounds: list[Round] = field(default_factory=list)
    curve: list[CurvePoint] = field(default_factory=list)

    def begin(self, most: int) -> int:
        """Measure what every session begins with; return how many architectures that are."""
        there = self.among
        choices = self.space.count() if there is None else len(there)
        if choices < LEAST_JUDGED:
            raise UsageError(
                f"{choices} architectures to choose of; accepted: from {LEAST_JUDGED}, with fewer "
                "a predictor's error cannot be known",
                "measure all of them instead",
            )
        start = min(FIRST, most, choices)
        if len(self.tried) < start:
            first = spread(self.space, start, seed=self.seed) if there is None else there[:start]
            self.take(first, until=start)
        return start

    def measured(self, end: int) -> dict[Arch, float]:
        """Return what counts of the first `end` architectures."""
        first = islice(self.tried.items(), end)
        measured = {arch: value for arch, value in first if value is not None}
        reliable = {arch: value for arch, value in measured.items() if arch not in self.poor}
        return reliable if len(reliable) >= LEAST_JUDGED else measured

    def outcome(self, found: Predictor, reached: bool) -> Active:
        """Return everything that was measured, with the predictor of it."""
        measured = self.measured(len(self.tried))
        failed = [arch for arch, value in self.tried.items() if value is None]
        rest = [arch for arch in self.tried if arch not in measured and arch not in failed]
        used_up = len(self.tried) >= self.space.count()
        if self.among is not None:
            used_up = all(arch in self.tried for arch in self.among)
        return Active(measured=measured, failed=tuple(failed), left_out=tuple(rest),
                      predictor=found, rounds=tuple(self.rounds), reached=reached,
                      used_up=used_up)  # fmt: skip

    def take(self, archs: Sequence[Arch], *, until: int) -> bool:
        """Measure those that are new until so many are tried; return whether there was any."""
        new = [arch for arch in archs if arch not in self.tried][: until - len(self.tried)]
        if not new:
            return False
        self.tried = {
            arch: value if value is not None and math.isfinite(value) else None
            for arch, value in self.measure(new).items()
        }
        self.poor = frozenset(self.unreliable())
        return True

    def judge(self, end: int, aim: _Aim) -> tuple[Predictor, bool]:
        """Return the predictor and whether it is good enough, confirmed where it seems so."""
        genes, costs, values = self.table(end)
        rows = len(values)
        if rows < LEAST_ROWS:
            raise HwnasError(
                f"only {rows} of {end} architectures could be measured, "
                f"at least {LEAST_ROWS} are needed"
            )
        found = Predictor.fit(genes, costs, values, seed=self.seed)
        mape = 100.0 * float(found.stack.errors.mape[0])
        self.curve.append(CurvePoint(rows=rows, mape=mape))
        _, factor, power = fitted_law(tuple(self.curve))
        gain = max(0.0, factor * (rows**-power - (rows + aim.batch) ** -power))
        folds = fold_count(rows)
        sure = mape <= aim.mape and folds > 0
        if sure:
            nested = evaluate(genes, costs, values, folds=folds, shares=(), seed=self.seed)
            mape = nested.scores.mape
        failed = list(islice(self.tried.values(), end)).count(None)
        now = Round(rows=rows, failed=failed, left_out=end - rows - failed, mape=mape,
                    confirmed=sure, gain=gain)  # fmt: skip
        self.rounds.append(now)
        if aim.watch is not None:
            aim.watch(now)
        return found, sure and mape <= aim.mape

    def next(self, found: Predictor, n: int, *, end: int) -> list[Arch]:
        """Return what to measure next; fewer than `n` where the space is used up."""
        rng = np.random.default_rng([self.seed, _ACTIVE, end])
        before = list(islice(self.tried, end))
        pool = candidates(self.space, rng, among=self.among, without=before)
        if not len(pool):
            return []
        there = features(self.space, pool)
        genes, costs, _ = self.table(end)
        picks: NDArray[np.int64] = most_uncertain(
            found, there.genes, there.costs, min(n, len(pool)),
            measured=Measured(genes=genes, costs=costs), rng=rng,
        )  # fmt: skip
        return self.space.decode(pool[picks])

    def table(self, end: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return genes, costs and values of what was measured."""
        measured = self.measured(end)
        found = features(self.space, list(measured))
        return found.genes, found.costs, np.array(list(measured.values()))
