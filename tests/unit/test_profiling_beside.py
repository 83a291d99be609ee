"""Models that are measured in turns with a companion, on a machine whose clocks the test moves."""

import re

import numpy as np
import pytest

from hwnas.profiling.beside import Companion, measure_beside
from hwnas.profiling.clocks import Clocks
from hwnas.profiling.measure import Plan
from hwnas.profiling.statistics import trimmed

ARCHS = [{"space": "toy", "genes": {"d": d}, "digest": str(d)} for d in range(10)]


class Machine:
    """Neighbours slow everything down by the same share, in stretches of a time."""

    def __init__(self, slower=1.0, *, stretch_s=0.1):
        self.wall = self.thread = 0.0
        self.stretch_s = stretch_s
        self.slower, self.log = slower, []

    def clocks(self):
        return Clocks(
            wall=lambda: self.wall,
            thread=lambda: self.thread,
            process=lambda: self.thread,
            sleep=lambda seconds: None,
        )

    def model(self, name, ms, cut=lambda run: 0.0):
        runs = 0

        def run():
            nonlocal runs
            slower = self.slower if int(self.wall / self.stretch_s) % 3 else 1.0
            self.thread += ms * slower / 1e3
            self.wall += (ms * slower + cut(runs)) / 1e3
            self.log.append(name)
            runs += 1

        return run


def told(machine, ms, *, beside=2.0, known=2.0, cut=lambda run: 0.0, clock="wall", plan=None):
    companion = Companion(run=machine.model("c", beside), latency_ms=known, network="small")
    model = machine.model("m", ms, cut)
    return measure_beside(model, companion, clock=clock, clocks=machine.clocks(), plan=plan)


@pytest.mark.parametrize(("ms", "stretch_s"), [(0.3, 0.1), (5.0, 0.1), (60.0, 0.5)])
@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_what_slows_both_down_cancels_out(ms, stretch_s, slower):
    machine = Machine(slower, stretch_s=stretch_s)
    latency = told(machine, ms, plan=Plan(min_runs=150, max_s=5.0, patience_s=20.0))
    assert latency.median_ms == pytest.approx(ms, rel=0.01)
    assert latency.companion == "small"
    assert latency.reference_ms == pytest.approx(2 * (1 + latency.reference_drift))
    assert 2 <= latency.reference_rest_ms <= 2.001 * slower
    kept = trimmed(np.array(latency.samples_ms))
    assert float(np.median(kept)) / latency.scale == pytest.approx(latency.median_ms)
    if slower > 1:
        assert np.mean(latency.samples_ms) > 1.1 * ms
        assert max(latency.samples_ms) == pytest.approx(slower * ms, rel=0.01)


def test_it_is_told_at_the_latency_by_which_the_companion_is_known():
    latency = told(Machine(), 5.0, known=4.0)
    assert latency.median_ms == pytest.approx(10.0)
    assert latency.reference_drift == pytest.approx(-0.5)


@pytest.mark.parametrize(
    ("ms", "turn", "kept"), [(5.0, 6, 2), (0.5, 20, 10), (60.0, 2, 1), (300.0, 1, 1)]
)
def test_runs_that_fill_the_caches_again_do_not_count(ms, turn, kept):
    machine = Machine(1.6, stretch_s=0.07)
    latency = told(machine, ms)
    turns = re.findall("m+", "".join(machine.log))[1:]
    assert {len(one) for one in turns[2:]} == {turn}  # those before are long
    assert latency.n == kept * len(turns[2:]) + sum(map(len, turns[:2])) - 2 * (turn - kept)


@pytest.mark.parametrize(
    ("ms", "long", "kept"), [(5.1, 29, 25), (0.5, 160, 150), (61.0, 4, 3), (300.0, 3, 3)]
)
@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_where_nobody_disturbs_two_long_turns_are_enough(ms, long, kept, slower):
    machine = Machine(slower, stretch_s=1e4)
    machine.wall = 1e4  # all of it in one stretch
    latency = told(machine, ms)
    if slower == 1:
        assert [len(one) for one in re.findall("m+", "".join(machine.log))[1:]] == [long, long]
        assert latency.n == 2 * kept
    assert len(re.findall("m+", "".join(machine.log))) == 3
    assert latency.median_ms == pytest.approx(ms)
    assert latency.half_width == pytest.approx(0)
    assert latency.reference_drift == pytest.approx(slower - 1)


@pytest.mark.parametrize("from_s", [0.2, 0.3, 0.4, 0.5])
def test_where_one_turn_differs_others_follow(from_s):
    """Whether from within the first or the second turn of the model on, or after one."""
    machine = Machine()
    model = machine.model

    def changing(name, ms, cut=lambda run: 0.0):
        slow, fast = model(name, 1.02 * ms, cut), model(name, ms, cut)
        return lambda: slow() if machine.wall > from_s else fast()

    machine.model = changing
    latency = told(machine, 5.0)
    assert len(re.findall("m+", "".join(machine.log))) > 9
    assert latency.median_ms == pytest.approx(5.0, rel=2e-3)


@pytest.mark.parametrize("first", [1, 2])
def test_somebody_who_comes_and_goes_with_a_long_turn_is_seen(first):
    machine = Machine()
    model = machine.model

    def disturbed(name, ms, cut=lambda run: 0.0):
        slow, fast = model(name, 1.2 * ms, cut), model(name, ms, cut)

        def run():
            turn = len(re.findall("m+", "".join(machine.log))) - 1
            (slow if name == "m" and turn == first else fast)()

        return run

    machine.model = disturbed
    latency = told(machine, 5.0)
    assert len(re.findall("m+", "".join(machine.log))) > 9
    assert latency.median_ms == pytest.approx(5.0, rel=1e-6)


def test_a_few_quotients_are_not_enough_however_many_runs_they_are_of():
    machine = Machine(1.6, stretch_s=0.04)  # never steady for as long as a long turn
    latency = told(machine, 0.6)
    assert len(re.findall("m+", "".join(machine.log))) > 9
    assert latency.half_width <= 2 * Plan().target or latency.n >= 3 * Plan().max_runs


def test_what_the_companion_may_be_off_by_counts_in_a_long_turn():
    machine, noise = Machine(), np.random.default_rng(0).normal(2.0, 0.01, 10_000)
    runs = iter(noise)

    def noisy():
        machine.model("c", next(runs))()

    latencies = [
        measure_beside(
            machine.model("m", 5.1),
            Companion(run=noisy, latency_ms=2.0, network="c"),
            clock="wall",
            clocks=machine.clocks(),
        )
        for _ in range(20)
    ]
    assert sum(latency.n == 50 for latency in latencies) > 15
    off = [abs(latency.median_ms / 5.1 - 1) for latency in latencies]
    widths = [latency.half_width for latency in latencies]
    assert all(0 < width <= Plan().target for width in widths)
    assert sum(one < width for one, width in zip(off, widths, strict=True)) >= 17


class Caches(Machine):
    """The first runs of a model after another one take longer."""

    def model(self, name, ms, cut=lambda run: 0.0):
        run = super().model(name, ms, cut)

        def cold():
            since = self.log[::-1].index(other) if (other := "mc"[name == "m"]) in self.log else 9
            self.thread += 1e-3 / (1 + since) if since < 4 else 0.0
            self.wall += 1e-3 / (1 + since) if since < 4 else 0.0
            run()

        return cold


def test_what_refilling_the_caches_costs_is_in_no_latency():
    assert told(Caches(), 5.0).median_ms == pytest.approx(5.0)


def test_runs_that_somebody_cut_into_do_not_count():
    latency = told(Machine(), 5.0, cut=lambda run: 40.0 if run % 7 == 0 else 0.0)
    assert latency.median_ms == pytest.approx(5.0)
    assert latency.preempted > 0
    assert max(latency.samples_ms) == pytest.approx(5.0)


def test_where_all_are_cut_into_it_ends_and_tells_what_there_is():
    machine = Machine()
    latency = told(machine, 5.0, cut=lambda run: 5.0)
    assert latency.median_ms == pytest.approx(10.0)
    assert latency.preempted == latency.n
    assert machine.wall < 10


def test_what_does_not_settle_is_ended_by_patience():
    machine = Machine()
    noise = np.random.default_rng(0).uniform(0, 20, 10_000)
    latency = told(
        machine, 1.0, cut=lambda run: noise[run], clock="wall", plan=Plan(preempted_ratio=1e9)
    )
    assert latency.half_width > Plan().target
    assert machine.wall < Plan().patience_s + 1
