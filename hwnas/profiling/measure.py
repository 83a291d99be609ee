"""The measuring protocol, for anything that can be run: facts in benchmarks/repeatability.py.

Warm-up; blocks of runs of which the first is dropped (it meets the caches of whatever ran before);
a fixed reference model between blocks, to see the machine drift; a run whose wall time exceeds its
processor time was preempted and is run again, and so are blocks beside which the memory was
contended; stop when the median is known well enough.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

import numpy as np

from hwnas.profiling.contention import CONTENTION_LIMIT, MemoryProbe
from hwnas.profiling.records import Clock, Latency, Privilege
from hwnas.profiling.statistics import Summary, summarise

DRIFT_LIMIT = 0.01
_ROUND_MS = 5
_FEWEST_AT_REST = 18
_COARSE_S = 1e-5
_LOOKS, _LOOK_S = 5, 0.05
# Of the time between two probes of the memory to that of a probe: at most a fifth goes to probing.
_PROBE_PAUSE = 4


# One inference. Returns its time in ms if the device has a clock of its own, else None.
Run = Callable[[], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long to measure. `block_s` bounds a block of a slow model, at least 3 runs.

    `patience_s` bounds the time as `max_s` does while others use the memory.
    """

    warmup_runs: int = 5
    warmup_s: float = 0.03
    block_runs: int = 10
    block_s: float = 0.5
    reference_every: int = 5
    target: float = 0.0075
    min_runs: int = 27
    max_runs: int = 300
    max_s: float = 1.5
    patience_s: float = 4.0
    probe_every_s: float = 0.05
    preempted_ratio: float = 1.05


@cache
def thread_clock_step() -> float:
    """Return the steps in which this thread's processor time is counted, in seconds.

    They are looked at: some sandboxes promise nanoseconds and count ten milliseconds.
    """
    told = time.get_clock_info("thread_time").resolution
    return max(told, min(_step(time.thread_time, time.perf_counter) for _ in range(_LOOKS)))


def _step(clock: Callable[[], float], wall: Callable[[], float]) -> float:
    """Return by how much a clock moves at once, at least; a long time if it stands still."""
    until, before = wall() + _LOOK_S, clock()
    while (now := clock()) == before:
        if wall() > until:
            return _LOOK_S
    return now - before


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Sources of seconds: the wall, this thread's and this process's processor time.

    Some systems count processor time in steps of milliseconds; there it is of no use.
    """

    wall: Callable[[], float] = time.perf_counter
    thread: Callable[[], float] = time.thread_time
    process: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    thread_step_s: float = field(default_factory=thread_clock_step)


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """One run, in ms; `thread` is None where this thread did not do the work."""

    wall: float
    thread: float | None
    device: float | None

    def by(self, clock: Clock) -> float:
        """Return the time on one of the clocks."""
        value = {"wall": self.wall, "thread_cpu": self.thread, "device": self.device}[clock]
        return self.wall if value is None else value


@dataclass(slots=True)
class _Series:
    """Accepted, contended and preempted times of one model, and how contended the memory was."""

    clock: Clock
    accepted: list[float] = field(default_factory=list)
    contended: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    excesses: list[float] = field(default_factory=list)

    def take(self, timings: list[Timing], preempted_ratio: float, excess: float = 0.0) -> None:
        """Sort the timings of a block, beside which the memory was so much slower than at rest."""
        undisturbed = self.accepted if excess <= CONTENTION_LIMIT else self.contended
        self.excesses.append(excess)
        for timing in timings:
            was_preempted = (
                self.clock == "wall"
                and timing.thread is not None
                and timing.wall > preempted_ratio * timing.thread
            )
            times = self.preempted if was_preempted else undisturbed
            times.append(round(timing.by(self.clock), _ROUND_MS))

    @property
    def at_rest(self) -> bool:
        """Whether there are enough times that nobody disturbed."""
        return len(self.accepted) >= _FEWEST_AT_REST or not self.contended

    @property
    def usable(self) -> list[float]:
        """The accepted times, or with them what there is next best."""
        undisturbed = self.accepted if self.at_rest else self.accepted + self.contended
        return undisturbed if len(undisturbed) >= 3 else undisturbed + self.preempted

    @property
    def contention(self) -> float:
        """By which share the memory was slower than at rest beside the usable times."""
        counted = [e for e in self.excesses if e <= CONTENTION_LIMIT or not self.at_rest]
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
    plan: Plan | None = None,
    clocks: Clocks | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Latency:
    """Return the latency of `run`.

    `clock` is what to prefer: a device's own clock is always used, and "thread_cpu" falls back to
    the wall where the work is done by another thread. `baseline_ms` is what `reference` took when
    the session began; the result is divided by its drift where that exceeds a hundredth. Blocks
    beside which `memory` was contended are left out as long as there are enough others.
    `privilege` is what the caller holds: without one the memory is judged by processor time, since
    other work that takes the core says nothing of the memory. `enough` replaces the decision to
    stop; it is given the seconds spent.
    """
    plan, clocks = plan or Plan(), clocks or Clocks()
    with _no_garbage_collection():
        session = _Timer(
            clocks=clocks, plan=plan, rest_share=rest_share, preemptible=privilege == "none"
        )
        warm = session.warm_up(run)
        used = _clock(clock, warm)
        model, drift = _Series(clock=used), _Series(clock="wall" if used == "device" else used)
        session.collect(
            run,
            reference=reference,
            memory=memory,
            model=model,
            drift=drift,
            typical=warm[-1],
            enough=enough,
        )
    concluded = _concluded(model, drift, baseline_ms, privilege)
    if memory is None:
        return concluded
    left_out = len(model.contended) if model.at_rest else 0
    return replace(
        concluded,
        contended=left_out,
        contention=round(model.contention, _ROUND_MS),
        memory_ms=round(memory.rest_ms * (1 + model.contention), _ROUND_MS),
    )


def _concluded(
    model: _Series, drift: _Series, baseline_ms: float | None, privilege: Privilege
) -> Latency:
    summary = model.summary()
    reference_ms = drift.summary().median if drift.usable else None
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
        half_width=summary.half_width,
        clock=model.clock,
        privilege=privilege,
        reference_ms=reference_ms,
        reference_drift=moved,
        scale=scale,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Timer:
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

    def block(self, run: Run, *, runs: int, works_here: bool) -> list[Timing]:
        """Run a block, drop its first run, and leave the core to others for a moment."""
        start = self.clocks.wall()
        timings = [self.once(run, works_here=works_here) for _ in range(runs)]
        self._rest_since(start)
        return timings[1:]

    def _rest_since(self, start: float) -> None:
        if self.rest_share:
            busy = self.clocks.wall() - start
            self.clocks.sleep(busy * self.rest_share / (1 - self.rest_share))

    def collect(
        self,
        run: Run,
        *,
        reference: Run | None,
        memory: MemoryProbe | None,
        model: _Series,
        drift: _Series,
        typical: Timing,
        enough: Callable[[float], bool] | None,
    ) -> None:
        """Fill both series until the median is known well enough or the plan's caps are reached."""
        plan, start = self.plan, self.clocks.wall()
        works_here = typical.thread is not None
        runs = int(np.clip(plan.block_s * 1e3 / max(typical.wall, 1e-6), 3, plan.block_runs))
        since_reference, before = plan.reference_every, self._excess(memory)
        while True:
            if reference is not None and since_reference >= plan.reference_every:
                self._time_reference(reference, drift, works_here)
                since_reference = 0
            many = 1 if memory is None else plan.reference_every
            pause = max(plan.probe_every_s, _PROBE_PAUSE * memory.cost_s if memory else 0.0)
            blocks = self._stretch(run, many, pause=pause, runs=runs, works_here=works_here)
            since_reference += len(blocks)
            after = self._excess(memory)
            for timings in blocks:
                model.take(timings, plan.preempted_ratio, max(before, after))
            before = after
            spent = self.clocks.wall() - start
            if enough(spent) if enough else self._enough(model, spent):
                break
        if reference is not None:
            self._time_reference(reference, drift, works_here)

    def _stretch(
        self, run: Run, blocks: int, *, pause: float, runs: int, works_here: bool
    ) -> list[list[Timing]]:
        """Run up to so many blocks, fewer where they take long: between probes of the memory."""
        start, done = self.clocks.wall(), list[list[Timing]]()
        while len(done) < blocks and self.clocks.wall() - start < pause:
            done.append(self.block(run, runs=runs, works_here=works_here))
        return done

    def _excess(self, memory: MemoryProbe | None) -> float:
        if memory is None:
            return 0.0
        start = self.clocks.wall()
        by_processor = self.preemptible and self.clocks.thread_step_s <= _COARSE_S
        excess = memory.excess(self.clocks.thread if by_processor else self.clocks.wall)
        self._rest_since(start)
        return excess

    def _time_reference(self, reference: Run, drift: _Series, works_here: bool) -> None:
        block = self.block(reference, runs=self.plan.block_runs, works_here=works_here)
        drift.take(block, self.plan.preempted_ratio)

    def _enough(self, model: _Series, spent: float) -> bool:
        plan, n = self.plan, len(model.accepted)
        if n >= plan.max_runs or n + len(model.preempted) >= 3 * plan.max_runs:
            return True
        if not model.at_rest:
            return spent >= plan.patience_s or len(model.contended) >= 3 * plan.max_runs
        if spent >= plan.max_s:
            return True
        return n >= plan.min_runs and model.summary().half_width <= plan.target


def _clock(wanted: Literal["wall", "thread_cpu"], warm: list[Timing]) -> Clock:
    if warm[-1].device is not None:
        return "device"
    return wanted if warm[-1].thread is not None else "wall"


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
