"""Models that are measured in turns with a companion, on a machine whose clocks the test moves."""

import dataclasses
import re

import numpy as np
import pytest

from hwnas.profiling.beside import Companion, measure_beside
from hwnas.profiling.clocks import Clocks
from hwnas.profiling.companions import Companions, told_anew
from hwnas.profiling.grading import grade
from hwnas.profiling.jobs import Job
from hwnas.profiling.measure import Plan
from hwnas.profiling.profiles import Profile, best_records, check_profile
from hwnas.profiling.records import (
    Conditions,
    Device,
    Failure,
    Header,
    Latency,
    Record,
    Settings,
    record_problems,
)
from hwnas.profiling.statistics import trimmed

ARCHS = [{"space": "toy", "genes": {"d": d}, "digest": str(d)} for d in range(4)]


class Machine:
    """Neighbours slow everything down by the same share, in stretches of a tenth of a second."""

    def __init__(self, slower=1.0):
        self.wall = self.thread = 0.0
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
            slower = self.slower if int(self.wall / 0.1) % 3 else 1.0
            self.thread += ms * slower / 1e3
            self.wall += (ms * slower + cut(runs)) / 1e3
            self.log.append(name)
            runs += 1

        return run


def told(machine, ms, *, beside=2.0, known=2.0, cut=lambda run: 0.0, clock="wall", plan=None):
    companion = Companion(run=machine.model("c", beside), latency_ms=known, network="small")
    model = machine.model("m", ms, cut)
    return measure_beside(model, companion, clock=clock, clocks=machine.clocks(), plan=plan)


@pytest.mark.parametrize("ms", [0.3, 5.0, 60.0])
@pytest.mark.parametrize("slower", [1.0, 1.6])
def test_what_slows_both_down_cancels_out(ms, slower):
    latency = told(Machine(slower), ms, plan=Plan(min_runs=150, max_s=5.0, patience_s=20.0))
    assert latency.median_ms == pytest.approx(ms, rel=0.01)
    assert latency.companion == "small"
    assert latency.reference_ms == pytest.approx(2 * (1 + latency.reference_drift))
    assert latency.reference_rest_ms == pytest.approx(2, rel=0.01)
    kept = trimmed(np.array(latency.samples_ms))
    assert float(np.median(kept)) / latency.scale == pytest.approx(latency.median_ms)
    if slower > 1:
        assert latency.scale > 1.3
        assert max(latency.samples_ms) == pytest.approx(slower * ms, rel=0.01)


def test_it_is_told_at_the_latency_by_which_the_companion_is_known():
    latency = told(Machine(), 5.0, known=4.0)
    assert latency.median_ms == pytest.approx(10.0)
    assert latency.reference_drift == pytest.approx(-0.5)


@pytest.mark.parametrize(("ms", "turn", "kept"), [(5.0, 2, 1), (0.5, 10, 9), (60.0, 1, 1)])
def test_the_first_run_of_a_turn_counts_for_long_models_only(ms, turn, kept):
    machine = Machine()
    latency = told(machine, ms)
    turns = re.findall("m+", "".join(machine.log))[1:]
    assert {len(one) for one in turns} <= {turn, turn - 1}  # a hair over 10 ms
    assert latency.n in {kept * len(turns), (kept - 1) * len(turns)}


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


def record(number, median_ms, *, grade="A", **changes):
    latency = Latency(
        samples_ms=[median_ms] * 3, median_ms=median_ms, p90_ms=median_ms, p99_ms=median_ms, n=3,
        kept_share=1.0, preempted=0, half_width=0.001, clock="wall", privilege="fifo",
    )  # fmt: skip
    return Record(
        arch=ARCHS[number], backend="onnxruntime", backend_version="1", settings=Settings(),
        measured_at=float(number), throughput_per_s=1e3 / median_ms, grade=grade,
        latency=dataclasses.replace(latency, **changes),
    )  # fmt: skip


def beside(number, median_ms, *, known, took, rest=None):
    """Return a measurement that was told at what the first is known by."""
    quotient = took / known
    return record(
        number, median_ms, samples_ms=[median_ms * quotient] * 3, scale=quotient, companion="0",
        reference_ms=took, reference_drift=quotient - 1, reference_rest_ms=rest or took,
    )  # fmt: skip


def profile_of(*records):
    device = Device(
        name="n", fingerprint="f", cpu="c", cores=1, memory_mb=1, architecture="a", os="o"
    )
    header = Header(device=device, runtimes={}, created_at=0.0)
    return Profile(header=header, records=best_records(records))


def job(number, **settings):
    return Job(arch=ARCHS[number], backend="onnxruntime", settings=Settings(**settings))


def test_the_first_that_is_measured_accompanies_the_others():
    companions = Companions()
    assert companions.of(job(0)) is None
    failed = dataclasses.replace(
        record(1, 1.0), latency=None, grade=None, failure=Failure(kind="crash", reason="x")
    )
    companions.learn(failed)
    companions.learn(record(0, 2.0))
    companions.learn(record(1, 7.0))
    assert companions.of(job(0)) is None
    assert companions.of(job(1)).latency_ms == companions.of(job(2)).latency_ms == 2.0
    assert companions.of(job(1)).job == job(0)
    companions.learn(record(0, 2.5))
    assert companions.of(job(1)).latency_ms == 2.5
    for other in (job(1, threads=2), job(1, workers=2), job(1, batch=2), job(1, precision="int8")):
        assert companions.of(other) is None
    elsewhere = dataclasses.replace(job(1), arch={**ARCHS[1], "space": "other"})
    assert companions.of(elsewhere) is None  # not of its kind
    companions.forget(companions.of(job(1)))
    assert companions.of(job(1)) is None


def test_a_session_that_goes_on_takes_the_companion_of_the_one_before():
    earlier = [record(3, 1.0), record(0, 2.0), beside(1, 5.0, known=2.0, took=2.0)]
    same, other = {"onnxruntime": "1"}, {"onnxruntime": "2"}
    known = profile_of(*earlier)
    assert Companions(known, versions=same).of(job(2)).job == job(0)
    assert Companions(known, versions=other).of(job(2)) is None
    fastest = Companions(profile_of(*earlier[:2]), versions=same)
    assert fastest.of(job(2)).job == job(3)


def test_what_is_compared_with_another_profile_is_measured_beside_its_companion():
    same = {"onnxruntime": "1"}
    promised, verified = profile_of(record(3, 1.0, grade="C")), profile_of(record(0, 2.0))
    companions = Companions(verified, [promised], same, in_proportion=False)
    companions.learn(record(3, 1.7))
    for number in (2, 3):  # itself, too
        known = companions.of(job(number))
        assert (known.job, known.latency_ms) == (job(3), 1.0)


def test_what_is_not_kept_in_proportion_is_measured_beside_sound_ones_only():
    same = {"onnxruntime": "1"}
    known = profile_of(record(0, 2.0), record(3, 1.0, grade="C"))
    assert Companions(known, versions=same, in_proportion=False).of(job(2)).job == job(0)
    companions = Companions(versions=same, in_proportion=False)
    companions.learn(record(3, 1.0, grade="C"))
    assert companions.of(job(2)) is None
    companions.learn(record(0, 2.0, grade="B"))
    assert companions.of(job(2)).job == job(0)


def test_all_are_told_anew_when_the_companion_turns_out_to_be_faster():
    before = [
        record(0, 2.0),
        beside(1, 5.0, known=2.0, took=1.9, rest=1.6),
        beside(2, 8.0, known=2.0, took=2.4),
    ]
    again = told_anew(profile_of(*before))
    found = profile_of(*before, *again)
    medians = [one.latency.median_ms for one in found.records.values()]
    # The fastest tenth of 1.6 and 2.4 ms.
    assert medians == pytest.approx([1.68, 5.0 * 0.84, 8.0 * 0.84])
    assert not [problem for one in again for problem in record_problems(one)]
    assert check_profile(found) == []
    for one in again:
        assert one.throughput_per_s == pytest.approx(1e3 / one.latency.median_ms)
    assert told_anew(found) == []


def test_nothing_is_told_anew_for_what_varies_anyway():
    assert told_anew(profile_of(record(0, 2.0), beside(1, 5.0, known=2.0, took=1.95))) == []


def test_all_are_told_at_a_companion_that_was_measured_again():
    known = profile_of(
        dataclasses.replace(record(0, 1.0), measured_at=9.0), beside(1, 5.0, known=2.0, took=2.0)
    )
    (again,) = told_anew(known)
    assert again.latency.median_ms == pytest.approx(2.5)
    assert again.latency.reference_drift == pytest.approx(1.0)


@pytest.mark.parametrize(("took", "expected"), [(2.1, "A"), (2.6, "B"), (3.6, "C"), (4.2, "D")])
def test_what_cancels_out_costs_less_of_the_grade(took, expected):
    latency = beside(1, 5.0, known=2.0, took=took).latency
    letter, reasons = grade(latency, settings=Settings(), conditions=Conditions())
    assert letter == expected
    assert (letter == "A") == (reasons == [])


@pytest.mark.parametrize(
    ("companion", "expected"), [("A", "A"), ("B", "B"), ("C", "C"), ("D", "C"), (None, "A")]
)
def test_in_proportion_to_a_badly_known_companion_others_can_still_be_ranked(companion, expected):
    latency = beside(1, 5.0, known=2.0, took=2.0).latency
    letter, reasons = grade(
        latency, settings=Settings(), conditions=Conditions(), companion=companion
    )
    assert letter == expected
    assert reasons == ([] if expected == "A" else [f"its companion has grade {companion}"])
