"""The measuring protocol, for anything that can be run: facts in benchmarks/repeatability.py.

Warm-up; blocks of runs of which the first is dropped (it meets the caches of whatever ran before);
a fixed reference model between blocks, to see the machine drift; a run whose wall time exceeds its
processor time was preempted and is run again; stop when the median is known well enough.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from hwnas.profiling.records import Clock, Latency, Privilege
from hwnas.profiling.statistics import Summary, summarise

DRIFT_LIMIT = 0.01
_ROUND_MS = 5
_COARSE_S = 1e-5


# One inference. Returns its time in ms if the device has a clock of its own, else None.
Run = Callable[[], float | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How long to measure. `block_s` bounds a block of a slow model, at least 3 runs."""

    warmup_runs: int = 5
    warmup_s: float = 0.03
    block_runs: int = 10
    block_s: float = 0.5
    reference_every: int = 5
    target: float = 0.005
    min_runs: int = 54
    max_runs: int = 300
    max_s: float = 3.0
    preempted_ratio: float = 1.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Clocks:
    """Sources of seconds: the wall, this thread's and this process's processor time.

    Some systems count processor time in steps of milliseconds; there it is of no use.
    """

    wall: Callable[[], float] = time.perf_counter
    thread: Callable[[], float] = time.thread_time
    process: Callable[[], float] = time.process_time
    sleep: Callable[[float], None] = time.sleep
    thread_step_s: float = time.get_clock_info("thread_time").resolution


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
    """Accepted and preempted times of one model."""

    clock: Clock
    accepted: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)

    def take(self, timings: list[Timing], preempted_ratio: float) -> None:
        """Sort the timings of a block."""
        for timing in timings:
            was_preempted = (
                self.clock == "wall"
                and timing.thread is not None
                and timing.wall > preempted_ratio * timing.thread
            )
            times = self.preempted if was_preempted else self.accepted
            times.append(round(timing.by(self.clock), _ROUND_MS))

    @property
    def usable(self) -> list[float]:
        """The accepted times, or the preempted ones where there is nothing better."""
        return self.accepted if len(self.accepted) >= 3 else self.accepted + self.preempted

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
    plan: Plan | None = None,
    clocks: Clocks | None = None,
    enough: Callable[[float], bool] | None = None,
) -> Latency:
    """Return the latency of `run`.

    `clock` is what to prefer: a device's own clock is always used, and "thread_cpu" falls back to
    the wall where the work is done by another thread. `baseline_ms` is what `reference` took when
    the session began; the result is divided by its drift where that exceeds a hundredth.
    `privilege` is only written down: the caller holds it. `enough` replaces the decision to stop;
    it is given the seconds spent.
    """
    plan, clocks = plan or Plan(), clocks or Clocks()
    with _no_garbage_collection():
        session = _Timer(clocks=clocks, plan=plan, rest_share=rest_share)
        warm = session.warm_up(run)
        used = _clock(clock, warm)
        model, drift = _Series(clock=used), _Series(clock="wall" if used == "device" else used)
        session.collect(
            run,
            reference=reference,
            model=model,
            drift=drift,
            typical=warm[-1],
            enough=enough,
        )
    return _concluded(model, drift, baseline_ms, privilege)


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
        if self.rest_share:
            busy = self.clocks.wall() - start
            self.clocks.sleep(busy * self.rest_share / (1 - self.rest_share))
        return timings[1:]

    def collect(
        self,
        run: Run,
        *,
        reference: Run | None,
        model: _Series,
        drift: _Series,
        typical: Timing,
        enough: Callable[[float], bool] | None,
    ) -> None:
        """Fill both series until the median is known well enough or the plan's caps are reached."""
        plan, start = self.plan, self.clocks.wall()
        works_here = typical.thread is not None
        runs = int(np.clip(plan.block_s * 1e3 / max(typical.wall, 1e-6), 3, plan.block_runs))
        blocks = 0
        while True:
            if reference is not None and blocks % plan.reference_every == 0:
                self._time_reference(reference, drift, works_here)
            model.take(self.block(run, runs=runs, works_here=works_here), plan.preempted_ratio)
            blocks += 1
            spent = self.clocks.wall() - start
            if enough(spent) if enough else self._enough(model, spent):
                break
        if reference is not None:
            self._time_reference(reference, drift, works_here)

    def _time_reference(self, reference: Run, drift: _Series, works_here: bool) -> None:
        block = self.block(reference, runs=self.plan.block_runs, works_here=works_here)
        drift.take(block, self.plan.preempted_ratio)

    def _enough(self, model: _Series, spent: float) -> bool:
        plan, n = self.plan, len(model.accepted)
        if n >= plan.max_runs or n + len(model.preempted) >= 3 * plan.max_runs:
            return True
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
