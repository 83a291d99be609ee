"""The protocol against a machine whose clocks the test moves by hand."""

import dataclasses

import pytest

from hwnas.profiling.clocks import Clocks, thread_clock_step
from hwnas.profiling.clocks import _step as step
from hwnas.profiling.contention import Levels, MemoryProbe
from hwnas.profiling.grading import grade
from hwnas.profiling.measure import Plan, measure
from hwnas.profiling.records import Conditions, Settings


class Machine:
    """A simulated computer: running a model moves its clocks."""

    def __init__(self):
        self.wall = self.thread = self.process = 0.0
        self.slept = 0.0
        self.log = []

    def clocks(self):
        return Clocks(
            wall=lambda: self.wall,
            thread=lambda: self.thread,
            process=lambda: self.process,
            sleep=self.sleep,
        )

    def sleep(self, seconds):
        self.slept += seconds
        self.wall += seconds

    def model(self, name, ms, *, preempted=lambda run: 0.0, elsewhere=False):
        runs = 0

        def run():
            nonlocal runs
            time_ms = ms(runs) if callable(ms) else ms
            self.wall += (time_ms + preempted(runs)) / 1e3
            self.process += time_ms / 1e3
            if not elsewhere:
                self.thread += time_ms / 1e3
            self.log.append(name)
            runs += 1

        return run


@pytest.fixture
def machine():
    return Machine()


def jitter(ms, share=0.002):
    return lambda run: ms * (1 + share * ((run * 7919) % 11 - 5) / 5)


def test_the_median_of_a_steady_model(machine):
    result = measure(machine.model("m", jitter(5.0)), clock="wall", clocks=machine.clocks())
    assert result.median_ms == pytest.approx(5.0, rel=2e-3)
    assert result.clock == "wall"
    assert result.half_width <= 0.0075
    assert result.n == len(result.samples_ms) == 27


def test_warm_up_and_first_runs_of_blocks_are_dropped(machine):
    plan = Plan(warmup_runs=5, warmup_s=0.0, block_runs=10, min_runs=18)
    cold = [0, 1, 2, 3, 4, 5, 15]
    run = machine.model("m", lambda i: 9.0 if i in cold else 5.0)
    result = measure(run, clock="wall", plan=plan, clocks=machine.clocks())
    assert result.samples_ms == [5.0] * 18


def test_a_noisy_model_is_run_until_the_cap(machine):
    run = machine.model("m", jitter(1.0, share=0.9))
    result = measure(run, clock="wall", plan=Plan(max_runs=100), clocks=machine.clocks())
    assert 100 <= result.n < 110
    assert result.half_width > 0.005


def test_a_slow_model_is_stopped_by_the_clock(machine):
    run = machine.model("m", jitter(900.0, share=0.9))
    result = measure(run, clock="wall", plan=Plan(max_s=4.0), clocks=machine.clocks())
    assert 2 <= result.n <= 6


def test_preempted_runs_are_repeated(machine):
    run = machine.model("m", jitter(5.0), preempted=lambda i: 4.0 if i % 4 == 0 else 0.0)
    result = measure(run, clock="wall", plan=Plan(min_runs=54), clocks=machine.clocks())
    assert result.median_ms == pytest.approx(5.0, rel=2e-3)
    assert result.preempted >= 10
    assert result.n >= 54
    assert max(result.samples_ms) < 5.1


def test_processor_time_is_not_disturbed_by_others(machine):
    run = machine.model("m", jitter(5.0), preempted=lambda i: 30.0)
    result = measure(run, clock="thread_cpu", clocks=machine.clocks())
    assert result.clock == "thread_cpu"
    assert result.median_ms == pytest.approx(5.0, rel=2e-3)
    assert result.preempted == 0


def test_always_preempted_runs_are_better_than_none(machine):
    plan = Plan(max_runs=20)
    run = machine.model("m", 5.0, preempted=lambda i: 5.0)
    result = measure(run, clock="wall", plan=plan, clocks=machine.clocks())
    assert result.median_ms == pytest.approx(10.0)
    assert result.preempted == result.preempted_kept == result.n
    letter, reasons = grade(result, settings=Settings(), conditions=Conditions())
    assert letter == "D"
    assert f"{result.n} of {result.n} runs were preempted" in reasons[-1]


def test_work_of_another_thread_is_timed_by_the_wall(machine):
    run = machine.model("m", jitter(5.0), elsewhere=True)
    result = measure(run, clock="thread_cpu", clocks=machine.clocks())
    assert result.clock == "wall"
    assert result.median_ms == pytest.approx(5.0, rel=2e-3)
    assert result.preempted == 0


def test_a_coarse_processor_clock_is_not_used(machine):
    clocks = dataclasses.replace(machine.clocks(), thread_step_s=0.0156)
    result = measure(machine.model("m", jitter(5.0)), clock="thread_cpu", clocks=clocks)
    assert result.clock == "wall"


def test_the_steps_of_a_clock_are_looked_at():
    now = [0.0]

    def wall():
        now[0] += 1e-4
        return now[0]

    assert step(lambda: int(wall() / 0.01) * 0.01, wall) == pytest.approx(0.01)
    assert step(lambda: 3.0, wall) > 0.01
    assert 0 < thread_clock_step() < 1.0


def test_a_device_with_its_own_clock_is_believed(machine):
    inner = machine.model("m", 5.0)

    def run():
        inner()
        return 3.25

    result = measure(run, clock="wall", clocks=machine.clocks())
    assert result.clock == "device"
    assert result.median_ms == 3.25


@pytest.mark.parametrize(("on_device", "scale"), [(False, 1.0), (True, 1.05)])
def test_the_state_of_the_host_is_none_of_the_device(machine, on_device, scale):
    def run():
        return 5.0

    def reference():
        machine.wall += 2e-3  # twice as slow as it was
        return 1.05 if on_device else None

    result = measure(
        run, clock="wall", reference=reference, baseline_ms=1.0,
        memory=Neighbour([0.9]), clocks=ticking(machine),
    )  # fmt: skip
    assert result.median_ms == pytest.approx(5.0 / scale)
    assert result.reference_ms == (1.05 if on_device else None)
    assert result.contention is None


def test_the_reference_is_run_before_between_and_after(machine):
    plan = Plan(warmup_runs=5, warmup_s=0.0, min_runs=54, stretch_blocks=5, look_every_s=0.14)
    model, reference = machine.model("m", jitter(5.0)), machine.model("r", 1.0)
    measure(model, clock="wall", reference=reference, plan=plan, clocks=machine.clocks())
    blocks = "".join(machine.log[5:]).replace("rrrr", "R").replace("m" * 10, "M")
    assert blocks == "RMMMRMMMR"


def ticking(machine):
    """Return clocks that go on by themselves."""

    def wall():
        machine.wall += 1e-3
        return machine.wall

    return dataclasses.replace(machine.clocks(), wall=wall)


def halved(machine, ms, *, until_s):
    """A time that others double for so long."""
    return lambda run: 2 * ms if machine.wall < until_s else ms


def test_runs_while_others_have_the_core_are_left_out_and_repeated(machine):
    core = Levels()
    for _ in range(20):
        core.add(1.0)
    result = measure(
        machine.model("m", halved(machine, 5.0, until_s=1.0)),
        clock="wall",
        reference=machine.model("r", halved(machine, 1.0, until_s=1.0)),
        baseline_ms=1.0,
        core=core,
        clocks=machine.clocks(),
    )
    assert set(result.samples_ms) == {5.0}
    assert result.contended > 50
    assert (result.reference_drift, result.scale) == (0.0, 1.0)
    assert 1.0 < machine.wall < 1.6


def test_a_core_that_others_keep_is_waited_for_and_then_admitted(machine):
    core = Levels()
    for _ in range(200):
        core.add(1.0)
    result = measure(
        machine.model("m", 10.0), clock="wall", reference=machine.model("r", 2.0),
        baseline_ms=1.0, core=core, clocks=machine.clocks(),
    )  # fmt: skip
    assert 4.0 <= machine.wall < 4.2
    assert set(result.samples_ms) == {10.0}
    assert (result.contended, result.reference_drift) == (0, 1.0)


def test_who_knows_an_earlier_session_sees_from_the_first_look_that_others_have_the_core(machine):
    core = Levels()
    core.expect(1.0)
    result = measure(
        machine.model("m", halved(machine, 5.0, until_s=1.0)), clock="wall",
        reference=machine.model("r", halved(machine, 1.0, until_s=1.0)),
        core=core, clocks=machine.clocks(),
    )  # fmt: skip
    assert set(result.samples_ms) == {5.0}
    core.expect(0.1)  # what is known already counts
    assert core.rest == 1.0


def test_a_machine_that_is_slower_for_good_is_not_waited_for_forever():
    core = Levels()
    core.expect(1.0)
    for _ in range(300):
        core.add(1.5)
    assert core.excess() == 0


def test_what_a_core_was_at_rest_is_learnt(machine):
    core = Levels()
    reference = machine.model("r", 1.0)
    for clock_share in (1.0, 1.08, 0.95):  # as a processor's clock drifts
        run = machine.model("m", 5.0 * clock_share)
        result = measure(run, clock="wall", reference=reference, core=core, clocks=machine.clocks())
        assert result.contended == 0
    assert core.rest == pytest.approx(1.0)


@pytest.mark.parametrize(("factor", "scale"), [(1.0, 1.0), (1.005, 1.0), (1.1, 1.1), (0.9, 0.9)])
def test_drift_beyond_a_hundredth_is_divided_out(machine, factor, scale):
    result = measure(
        machine.model("m", 5.0 * factor),
        clock="wall",
        reference=machine.model("r", 1.0 * factor),
        baseline_ms=1.0,
        clocks=machine.clocks(),
    )
    assert result.reference_drift == pytest.approx(factor - 1)
    assert result.scale == pytest.approx(scale)
    assert result.median_ms == pytest.approx(5.0 * factor / scale)
    assert result.samples_ms[0] == pytest.approx(5.0 * factor)


def test_without_a_baseline_nothing_is_scaled(machine):
    reference = machine.model("r", 2.0)
    run = machine.model("m", 5.0)
    result = measure(run, clock="wall", reference=reference, clocks=machine.clocks())
    assert result.reference_ms == pytest.approx(2.0)
    assert result.reference_drift is None
    assert result.scale == 1.0


def test_real_time_threads_leave_the_core_for_a_while(machine):
    run = machine.model("m", 5.0)
    measure(run, clock="wall", rest_share=0.2, clocks=machine.clocks())
    busy = 5.0 * 10 / 1e3 * 3
    assert machine.slept == pytest.approx(busy * 0.25)


def test_no_real_time_thread_goes_on_for_a_second(machine):
    """The kernel would take the core from it, in the middle of a run."""
    model, longest, since = machine.model("m", 200.0), 0.0, 0.0

    def run():
        nonlocal longest, since
        since = 0.2 if machine.slept > run.slept else since + 0.2
        run.slept, longest = machine.slept, max(longest, since)
        model()

    run.slept = 0.0
    measure(run, clock="wall", rest_share=0.07, clocks=machine.clocks(), plan=Plan(warmup_runs=1))
    assert longest < 0.7


def test_samples_are_rounded_to_hundredths_of_microseconds(machine):
    result = measure(machine.model("m", 1 / 3), clock="wall", clocks=machine.clocks())
    assert set(result.samples_ms) == {0.33333}


class Neighbour(MemoryProbe):
    """A probe that says what the test wants, probe by probe; the last answer goes on."""

    def __init__(self, *excesses):
        super().__init__()
        self.excesses = list(excesses)

    @property
    def rest_ms(self):
        return 0.8

    def excess(self, seconds):
        return self.excesses.pop(0) if len(self.excesses) > 1 else self.excesses[0]


def test_runs_beside_a_busy_memory_are_left_out_and_repeated(machine):
    plan = Plan(warmup_runs=5, warmup_s=0.0, min_runs=54)
    run = machine.model("m", lambda i: 6.0 if i < 25 else 5.0)
    memory = Neighbour(0.0, 0.2, 0.2, 0.0)
    result = measure(run, clock="wall", memory=memory, plan=plan, clocks=machine.clocks())
    assert set(result.samples_ms) == {5.0}
    assert (result.n, result.contended, result.contention) == (54, 27, 0.0)
    assert result.memory_ms == 0.8


def test_a_memory_that_stays_busy_is_waited_for_and_then_admitted(machine):
    plan = Plan(patience_s=4.0, max_s=1.0)
    run = machine.model("m", jitter(6.0))
    memory = Neighbour(0.2)
    result = measure(run, clock="wall", memory=memory, plan=plan, clocks=machine.clocks())
    assert 4.0 <= machine.wall < 4.2
    assert result.contention == pytest.approx(0.2)
    assert result.memory_ms == pytest.approx(0.96)
    assert result.contended == 0
    assert result.n > 500
    assert result.median_ms == pytest.approx(6.0, rel=2e-3)


def test_a_short_model_does_not_wait_long_for_the_memory(machine):
    run = machine.model("m", jitter(0.1))
    result = measure(run, clock="wall", memory=Neighbour(0.2), clocks=machine.clocks())
    assert machine.wall < 0.5
    assert result.n >= 900


def test_slow_probes_are_far_between(machine):
    class Slow(Neighbour):
        def excess(self, seconds):
            machine.wall += 0.1
            machine.log.append("p")
            self.cost_s = 0.1
            return super().excess(seconds)

    run = machine.model("m", jitter(5.0))
    measure(run, clock="wall", memory=Slow(0.0), clocks=machine.clocks())
    runs = [len(part) for part in "".join(machine.log).split("p")[1:-1]]
    assert set(runs) == {50}  # five blocks between two probes, not one as beside a fast probe


def test_the_probe_compares_with_the_fastest_it_has_seen():
    clock = {"now": 0.0, "pass": 1e-3}

    def seconds():
        clock["now"] += clock["pass"] / 2
        return clock["now"]

    probe = MemoryProbe()
    assert probe.excess(seconds) == pytest.approx(0.0)
    clock["pass"] = 1.2e-3
    assert probe.excess(seconds) == pytest.approx(0.2)
    clock["pass"] = 0.9e-3
    assert probe.excess(seconds) == 0.0


@pytest.mark.parametrize(("privilege", "left_out"), [("none", False), ("fifo", True)])
def test_other_work_on_the_core_is_no_use_of_the_memory(machine, privilege, left_out):
    class Starved(Neighbour):
        def excess(self, seconds):
            start = seconds()
            machine.thread += 0.01
            machine.wall += 0.03  # others had the core for two thirds of it
            return (seconds() - start) / 0.01 - 1

    result = measure(
        machine.model("m", jitter(5.0)),
        clock="wall",
        privilege=privilege,
        memory=Starved(0.0),
        clocks=machine.clocks(),
    )
    assert (result.contention > 0.02) == left_out
