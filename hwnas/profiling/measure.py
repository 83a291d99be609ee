"""The measuring protocol, for anything that can be run: facts in benchmarks/repeatability.py.

Warm-up; blocks of runs of which the first is dropped (it meets the caches of whatever ran before);
a fixed reference model between blocks, to see the machine drift; a run whose wall time exceeds its
processor time was preempted and is run again, and so are blocks beside which others slowed down the
memory or the core; stop when the median is known well enough.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from hwnas.profiling.clocks import Clocks, Timing
from hwnas.profiling.contention import CONTENTION_LIMIT, CORE_LIMIT, Levels, MemoryProbe
from hwnas.profiling.records import Clock, Latency, Privilege
from hwnas.profiling.statistics import Summary, summarise

DRIFT_LIMIT = 0.01
ROUND_MS = 5
FEWEST_USABLE = 3
_FEWEST_AT_REST = 18
_COARSE_S = 1e-5
# Of the time between two looks at the machine to that of a look: at most a fifth goes to looking.
_LOOK_PAUSE = 4
_REFERENCE_RUNS = 4  # of a look
# The kernel takes the core from a real-time thread that does not rest within a second.
_LONGEST_UNRESTED_S = 0.3


# One inference. Returns its time in ms if the device has a clock of its own, else None.
Run = Callable[[], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long to measure. `block_s` bounds a block of a slow model, at least 3 runs.

    `patience_s` bounds the time as `max_s` does while others disturb.
    """

    warmup_runs: int = 5
    warmup_s: float = 0.03
    block_runs: int = 10
    block_s: float = 0.5
    stretch_blocks: int = 5
    target: float = 0.0075
    min_runs: int = 27
    max_runs: int = 300
    max_s: float = 1.5
    patience_s: float = 4.0
    look_every_s: float = 0.05
    preempted_ratio: float = 1.05


@dataclass(frozen=True, slots=True)
class _Look:
    """By which share the memory and the core were slower than at rest."""

    memory: float = 0.0
    core: float = 0.0

    @property
    def disturbed(self) -> bool:
        """Whether others slow down what runs now."""
        return self.memory > CONTENTION_LIMIT or self.core > CORE_LIMIT

    def or_worse(self, other: "_Look") -> "_Look":
        """Return the worse of both, as it may have been in between."""
        return _Look(max(self.memory, other.memory), max(self.core, other.core))


@dataclass(slots=True)
class _Series:
    """Accepted, contended and preempted times of one model, and the looks beside its blocks."""

    clock: Clock
    preempted_ratio: float
    accepted: list[float] = field(default_factory=list)
    contended: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    looks: list[_Look] = field(default_factory=list)

    def take(self, timings: list[Timing], look: _Look) -> None:
        """Sort the timings of a block by what was seen beside it."""
        undisturbed = self.contended if look.disturbed else self.accepted
        self.looks.append(look)
        for timing in timings:
            preempted = was_preempted(timing, self.clock, self.preempted_ratio)
            times = self.preempted if preempted else undisturbed
            times.append(round(timing.by(self.clock), ROUND_MS))

    @property
    def at_rest(self) -> bool:
        """Whether there are enough times that nobody disturbed."""
        return len(self.accepted) >= _FEWEST_AT_REST or not self.contended

    @property
    def usable(self) -> list[float]:
        """The accepted times, or with them what there is next best."""
        return self._undisturbed + self.preempted[: self.preempted_kept]

    @property
    def preempted_kept(self) -> int:
        """How many preempted times count, as there are no others."""
        return len(self.preempted) if len(self._undisturbed) < FEWEST_USABLE else 0

    @property
    def _undisturbed(self) -> list[float]:
        return self.accepted if self.at_rest else self.accepted + self.contended

    @property
    def contention(self) -> float:
        """By which share the memory was slower than at rest beside the usable times."""
        counted = [look.memory for look in self.looks if not (look.disturbed and self.at_rest)]
        return float(np.median(counted)) if counted else 0.0

    def summary(self) -> Summary:
        """Return the figures of the usable times."""
        return summarise(np.array(self.usable))


def measure(
    run: Run,
    *,
    clock: Literal["wall", "thread_cpu"],
    privilege: Privilege = "none",
    rest_share: float = 0.0,
    reference: Run | None = None,
    baseline_ms: float | None = None,
    memory: MemoryProbe | None = None,
    core: Levels | None = None,
    plan: Plan | None = None,
    clocks: Clocks | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Latency:
    """Return the latency of `run`.

    `clock` is what to prefer: a device's own clock is always used, and "thread_cpu" falls back to
    the wall where the work is done by another thread. `baseline_ms` is what `reference` took when
    the session began; the result is divided by its drift where that exceeds a hundredth. Blocks
    beside which `memory` was contended, or `reference` slower than the levels of the `core`, are
    left out as long as there are enough others. `privilege` is what the caller holds: without one
    the memory is judged by processor time, since other work that takes the core says nothing of
    the memory. `enough` replaces the decision to stop; it is given the seconds spent.
    """
    plan, clocks = plan or Plan(), clocks or Clocks()
    with no_garbage_collection():
        session = Timer(
            clocks=clocks, plan=plan, rest_share=rest_share, preemptible=privilege == "none"
        )
        warm = session.warm_up(run)
        used = chosen_clock(clock, warm)
        ratio = plan.preempted_ratio
        model = _Series(clock=used, preempted_ratio=ratio)
        drift = _Series(clock=used, preempted_ratio=ratio)
        if used == "device":  # the state of the host says nothing of it
            memory = None
            reference = _if_on_device(reference)
        watch = _Watch(timer=session, reference=reference, memory=memory, core=core, drift=drift)
        session.collect(run, watch=watch, model=model, typical=warm[-1], enough=enough)
    concluded = _concluded(model, drift, baseline_ms, privilege)
    if memory is None:
        return concluded
    return replace(
        concluded,
        contention=round(model.contention, ROUND_MS),
        memory_ms=round(memory.rest_ms * (1 + model.contention), ROUND_MS),
    )


def _concluded(
    model: _Series, drift: _Series, baseline_ms: float | None, privilege: Privilege
) -> Latency:
    summary = model.summary()
    # Where the model's times are of a machine at rest, so are the reference's.
    times = drift.accepted if model.at_rest and drift.accepted else drift.usable
    reference_ms = summarise(np.array(times)).median if times else None
    moved = None if not (reference_ms and baseline_ms) else reference_ms / baseline_ms - 1
    scale = 1.0 if moved is None or abs(moved) <= DRIFT_LIMIT else 1 + moved
    return Latency(
        samples_ms=model.usable,
        median_ms=summary.median / scale,
        p90_ms=summary.p90 / scale,
        p99_ms=summary.p99 / scale,
        n=len(model.usable),
        kept_share=summary.kept_share,
        preempted=len(model.preempted),
        preempted_kept=model.preempted_kept,
        contended=len(model.contended) if model.at_rest else 0,
        half_width=summary.half_width,
        clock=model.clock,
        privilege=privilege,
        reference_ms=reference_ms,
        reference_drift=moved,
        scale=scale,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Timer:
    """Runs models in blocks and reads the clocks."""

    clocks: Clocks
    plan: Plan
    rest_share: float
    preemptible: bool

    def warm_up(self, run: Run) -> list[Timing]:
        """Run until the time per run is steady; the last timings are typical."""
        start, timings = self.clocks.wall(), list[Timing]()
        works_here = True
        while len(timings) < self.plan.warmup_runs or (
            self.clocks.wall() - start < self.plan.warmup_s and len(timings) < 50
        ):
            process = self.clocks.process()
            timing = self.once(run, works_here=True)
            elsewhere = (self.clocks.process() - process) * 1e3 - (timing.thread or 0.0)
            works_here = elsewhere < 0.25 * max(timing.wall, 1e-6)
            works_here = works_here and self.clocks.thread_step_s <= _COARSE_S
            timings.append(timing)
        last = timings[-1]
        if not works_here:
            timings.append(Timing(wall=last.wall, thread=None, device=last.device))
        return timings

    def once(self, run: Run, *, works_here: bool) -> Timing:
        """Run once."""
        thread, wall = self.clocks.thread(), self.clocks.wall()
        on_device = run()
        wall_ms = (self.clocks.wall() - wall) * 1e3
        thread_ms = (self.clocks.thread() - thread) * 1e3
        own = works_here and on_device is None
        return Timing(wall=wall_ms, thread=thread_ms if own else None, device=on_device)

    def block(self, run: Run, *, runs: int, works_here: bool, dropped: int = 1) -> list[Timing]:
        """Run a block, drop its first runs, and leave the core to others for a moment."""
        start, timings = self.clocks.wall(), list[Timing]()
        for _ in range(runs):
            if self.clocks.wall() - start > _LONGEST_UNRESTED_S:
                self._rest_since(start)
                start = self.clocks.wall()
            timings.append(self.once(run, works_here=works_here))
        self._rest_since(start)
        return timings[dropped:]

    def _rest_since(self, start: float) -> None:
        if self.rest_share:
            busy = self.clocks.wall() - start
            self.clocks.sleep(busy * self.rest_share / (1 - self.rest_share))

    def collect(
        self,
        run: Run,
        *,
        watch: "_Watch",
        model: _Series,
        typical: Timing,
        enough: Callable[[float], bool] | None,
    ) -> None:
        """Fill the series until the median is known well enough or the plan's caps are reached."""
        plan, start = self.plan, self.clocks.wall()
        works_here = typical.thread is not None
        runs = int(np.clip(plan.block_s * 1e3 / max(typical.wall, 1e-6), 3, plan.block_runs))
        before = watch.look(works_here)
        while True:
            many = plan.stretch_blocks if watch.sees else 1
            pause = max(plan.look_every_s, _LOOK_PAUSE * watch.cost_s)
            blocks = self._stretch(run, many, pause=pause, runs=runs, works_here=works_here)
            after = watch.look(works_here)
            for timings in blocks:
                model.take(timings, before.or_worse(after))
            before = after
            spent = self.clocks.wall() - start
            if enough(spent) if enough else self._enough(model, spent):
                break

    def _stretch(
        self, run: Run, blocks: int, *, pause: float, runs: int, works_here: bool
    ) -> list[list[Timing]]:
        """Run up to so many blocks, fewer where they take long: between looks at the machine."""
        start, done = self.clocks.wall(), list[list[Timing]]()
        while len(done) < blocks and self.clocks.wall() - start < pause:
            done.append(self.block(run, runs=runs, works_here=works_here))
        return done

    def memory_excess(self, memory: MemoryProbe) -> float:
        """Return by which share the memory is slower now than at rest."""
        start = self.clocks.wall()
        by_processor = self.preemptible and self.clocks.thread_step_s <= _COARSE_S
        excess = memory.excess(self.clocks.thread if by_processor else self.clocks.wall)
        self._rest_since(start)
        return excess

    def _enough(self, model: _Series, spent: float) -> bool:
        plan, n = self.plan, len(model.accepted)
        if n >= plan.max_runs or n + len(model.preempted) >= 3 * plan.max_runs:
            return True
        if not model.at_rest:
            return spent >= plan.patience_s or len(model.contended) >= 3 * plan.max_runs
        if spent >= plan.max_s:
            return True
        return n >= plan.min_runs and model.summary().half_width <= plan.target


@dataclass(slots=True)
class _Watch:
    """Looks at the machine between blocks; `drift` gets the times of the reference model.

    `cost_s` is how long the last look took.
    """

    timer: Timer
    reference: Run | None
    memory: MemoryProbe | None
    core: Levels | None
    drift: _Series
    cost_s: float = 0.0

    @property
    def sees(self) -> bool:
        """Whether there is anything to look at."""
        return self.reference is not None or self.memory is not None

    def look(self, works_here: bool) -> _Look:
        """Return how slow the machine is now."""
        clock, memory = self.timer.clocks.wall, 0.0
        start = clock()
        if self.memory is not None:
            memory = self.timer.memory_excess(self.memory)
        look = _Look(memory=memory)
        if self.reference is not None:
            timings = self.timer.block(self.reference, runs=_REFERENCE_RUNS, works_here=works_here)
            look = replace(look, core=self._core_excess(timings))
            self.drift.take(timings, look)
        self.cost_s = clock() - start
        return look

    def _core_excess(self, timings: list[Timing]) -> float:
        drift = self.drift
        times = [
            t.by(drift.clock)
            for t in timings
            if not was_preempted(t, drift.clock, drift.preempted_ratio)
        ]
        if self.core is None or not times:
            return 0.0
        self.core.add(float(np.median(times)))
        return self.core.excess()


def was_preempted(timing: Timing, clock: Clock, ratio: float) -> bool:
    """Return whether others had the core for a part of that time."""
    return clock == "wall" and timing.thread is not None and timing.wall > ratio * timing.thread


def chosen_clock(wanted: Literal["wall", "thread_cpu"], warm: list[Timing]) -> Clock:
    """Return the clock that the work of a warm model shows in."""
    if warm[-1].device is not None:
        return "device"
    return wanted if warm[-1].thread is not None else "wall"


def _if_on_device(reference: Run | None) -> Run | None:
    """Return a reference that runs on a device with a clock of its own, None for any other."""
    return None if reference is None or reference() is None else reference


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keep the garbage collector from running in the middle of a run."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
