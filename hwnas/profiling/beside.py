"""Measuring a model in turns with another one of its kind, whose latency is known.

Neighbours on a host slow everything down, for seconds or for hours, and by how much depends on what
is run: a model in the caches loses most when they get the other hardware thread of the core, a
larger one when they use the memory. Two models of one space lose nearly the same. So the quotient
of two turns that follow each other tells what the clock alone cannot, and nothing is waited for.
Where a few long turns of both agree, nobody disturbs, and they are enough. docs/adr/0009 says what
was measured.
"""

from dataclasses import dataclass, field, replace
from itertools import chain
from math import hypot
from statistics import median
from typing import Literal

import numpy as np

from hwnas.profiling.clocks import Clocks, Timing
from hwnas.profiling.measure import (
    FEWEST_USABLE,
    ROUND_MS,
    Plan,
    Run,
    Timer,
    chosen_clock,
    no_garbage_collection,
    was_preempted,
)
from hwnas.profiling.records import Clock, Latency, Privilege
from hwnas.profiling.statistics import Summary, summarise

# The other model has had the caches, the last-level one, too: it takes so long until they are full
# of this one again. Runs until then do not count; of a long one the refilling is a small part.
_REFILL_MS = 20.0
_SLOW_MS = 200.0
_MOST_DROPPED = 10
_TURN_MS = 10.0  # of runs that count
_TURN_RUNS = (1, 10)
_FEWEST = 9
_ALONE_MS, _ALONE_RUNS = 80.0, (4, 20)  # of the companion, before the turns
# Long turns, between looks at the companion that are as long as the one before them. With a single
# one, somebody who comes and goes with it would go unseen.
_LONG_TURNS = 2
_LONG_MS, _LONG_RUNS = 125.0, (3, 150)
_STEADY = 0.005  # by how much turns differ on a machine that nobody disturbs
_STEADY_SHARE = 0.9  # of the runs, which nobody cut into


@dataclass(frozen=True, kw_only=True, slots=True)
class Companion:
    """A model whose latency is known, and the name that its record has."""

    run: Run
    latency_ms: float
    network: str


@dataclass(slots=True)
class _Turns:
    """Times of the model and of the companion around it; apart, where somebody cut in."""

    clock: Clock
    preempted_ratio: float
    quotients: list[float] = field(default_factory=list)
    spoilt: list[float] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    beside_width: float = 0.0

    def middle(self, timings: list[Timing]) -> float:
        """Return the median of those that nobody cut into, or of all where there are none."""
        kept, cut = self._sorted(timings)
        return float(np.median(kept or cut))

    def take(self, own: list[Timing], before: list[Timing], after: list[Timing]) -> None:
        """Compare a turn with those of the companion before and after it."""
        clean, dropped = self._sorted(own)
        companions = (before, after)
        beside = float(np.mean([self.middle(turn) for turn in companions]))
        whole = bool(clean) and all(self._sorted(turn)[0] for turn in companions)
        (self.quotients if whole else self.spoilt).append(
            float(np.median(clean or dropped)) / beside
        )
        self.beside.append(beside)
        self.samples += clean
        self.preempted += dropped

    def take_if_steady(
        self, own: list[list[Timing]], beside: list[list[Timing]], *, target: float
    ) -> bool:
        """Return whether nobody disturbed long turns; they stand for all others then.

        Each run is compared with the middle of the companion's, which are fewer: so what that may
        be off by counts, too.
        """
        kept, others = ([self._sorted(turn)[0] for turn in turns] for turns in (own, beside))
        tried = sum(map(len, own + beside))
        if sum(map(len, kept + others)) < _STEADY_SHARE * tried or not all(kept + others):
            return False
        for middles in ([median(turn) for turn in turns] for turns in (kept, others)):
            if max(middles) / min(middles) - 1 > _STEADY:
                return False
        runs, besides = list(chain(*kept)), list(chain(*others))
        widths = [summarise(np.array(times)).half_width for times in (runs, besides)]
        if hypot(*widths) > target:
            return False
        self.beside, self.beside_width = [median(besides)], widths[1]
        self.quotients = [time / self.beside[0] for time in runs]
        self.samples = runs
        self.preempted = list(chain(*(self._sorted(turn)[1] for turn in own)))
        return True

    def _sorted(self, timings: list[Timing]) -> tuple[list[float], list[float]]:
        clean, dropped = list[float](), list[float]()
        for timing in timings:
            cut = was_preempted(timing, self.clock, self.preempted_ratio)
            (dropped if cut else clean).append(round(timing.by(self.clock), ROUND_MS))
        return clean, dropped

    @property
    def usable(self) -> list[float]:
        """The quotients of turns that nobody cut short, or all where these are too few."""
        enough = len(self.quotients) >= FEWEST_USABLE
        return self.quotients if enough else self.quotients + self.spoilt

    def summary(self) -> Summary:
        """Return the figures of the usable quotients."""
        summary = summarise(np.array(self.usable))
        return replace(summary, half_width=hypot(summary.half_width, self.beside_width))


def measure_beside(
    run: Run,
    companion: Companion,
    *,
    clock: Literal["wall", "thread_cpu"],
    privilege: Privilege = "none",
    rest_share: float = 0.0,
    plan: Plan | None = None,
    clocks: Clocks | None = None,
) -> Latency:
    """Return the latency of `run` on a machine where the companion has the latency it is known by.

    `clock` and `privilege` are those of `hwnas.profiling.measure.measure`.
    """
    plan, clocks = plan or Plan(), clocks or Clocks()
    timer = Timer(clocks=clocks, plan=plan, rest_share=rest_share, preemptible=privilege == "none")
    with no_garbage_collection():
        warm = timer.warm_up(run)
        works_here = warm[-1].thread is not None
        model = _Player(timer, run, warm[-1].wall, works_here)
        other = _Player(timer, companion.run, timer.warm_up(companion.run)[-1].wall, works_here)
        turns = _Turns(clock=chosen_clock(clock, warm), preempted_ratio=plan.preempted_ratio)
        alone = other.turn(_ALONE_MS, _ALONE_RUNS)
        start = clocks.wall()
        own, beside = list[list[Timing]](), [alone]
        for _ in range(_LONG_TURNS):
            own.append(model.turn(_LONG_MS, _LONG_RUNS))
            beside.append(other.turn(_ALONE_MS, _ALONE_RUNS))
        if not turns.take_if_steady(own, beside, target=plan.target):
            for one, before, after in zip(own, beside, beside[1:], strict=False):
                turns.take(one, before, after)
            before = other.turn(_TURN_MS, _TURN_RUNS)
            while not _enough(turns, plan, clocks.wall() - start):
                one, after = model.turn(_TURN_MS, _TURN_RUNS), other.turn(_TURN_MS, _TURN_RUNS)
                turns.take(one, before, after)
                before = after
    return _told(turns, companion, turns.middle(alone), privilege)


@dataclass(frozen=True, slots=True)
class _Player:
    """A model that takes turns, and how long one of its runs takes."""

    timer: Timer
    run: Run
    run_ms: float
    works_here: bool

    def turn(self, ms: float, bounds: tuple[int, int]) -> list[Timing]:
        """Run for a turn; return the runs that count, of so many ms in all, within bounds."""
        refilling = self.run_ms < _SLOW_MS
        dropped = _runs(_REFILL_MS, self.run_ms, 1, _MOST_DROPPED) if refilling else 0
        runs = dropped + _runs(ms, self.run_ms, *bounds)
        return self.timer.block(self.run, runs=runs, works_here=self.works_here, dropped=dropped)


def _runs(ms: float, run_ms: float, least: int, most: int) -> int:
    """Return how many runs take so long, within bounds."""
    return int(np.clip(np.ceil(ms / max(run_ms, 1e-6)), least, most))


def _enough(turns: _Turns, plan: Plan, spent: float) -> bool:
    if len(turns.usable) < FEWEST_USABLE:
        return False
    if len(turns.samples) + len(turns.preempted) >= 3 * plan.max_runs or spent >= plan.patience_s:
        return True
    accepted = plan.target if spent < plan.max_s else 2 * plan.target
    return len(turns.quotients) >= _FEWEST and turns.summary().half_width <= accepted


def _told(turns: _Turns, companion: Companion, alone_ms: float, privilege: Privilege) -> Latency:
    quotient = turns.summary()
    kept = 0 if len(turns.samples) >= FEWEST_USABLE else len(turns.preempted)
    samples = turns.samples + turns.preempted[:kept]
    raw = summarise(np.array(samples))
    median_ms = quotient.median * companion.latency_ms
    scale = raw.median / median_ms
    beside_ms = float(np.median(turns.beside))
    return Latency(
        samples_ms=samples,
        median_ms=median_ms,
        p90_ms=raw.p90 / scale,
        p99_ms=raw.p99 / scale,
        n=len(samples),
        kept_share=quotient.kept_share,
        preempted=len(turns.preempted),
        preempted_kept=kept,
        half_width=quotient.half_width,
        clock=turns.clock,
        privilege=privilege,
        reference_ms=beside_ms,
        reference_drift=beside_ms / companion.latency_ms - 1,
        scale=scale,
        companion=companion.network,
        reference_rest_ms=alone_ms,
    )
