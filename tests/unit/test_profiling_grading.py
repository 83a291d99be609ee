import dataclasses

import pytest

from hwnas.profiling.grading import grade
from hwnas.profiling.records import Conditions, Latency, Settings

GOOD = Latency(
    samples_ms=[1.0] * 60,
    median_ms=1.0,
    p90_ms=1.0,
    p99_ms=1.0,
    n=60,
    kept_share=1.0,
    preempted=0,
    half_width=0.003,
    clock="wall",
    privilege="fifo",
    reference_ms=1.0,
    reference_drift=0.0,
)
QUIET = Conditions(load=0.1, busy_share=0.02, steal_share=0.0)
BUSY = Conditions(load=3.0, busy_share=0.6, steal_share=0.0)


def graded(*, conditions=QUIET, threads=1, refusals=(), **changes):
    latency = dataclasses.replace(GOOD, **changes)
    settings = Settings(threads=threads)
    return grade(latency, settings=settings, conditions=conditions, refusals=refusals)


def test_a_quiet_privileged_measurement_is_an_a_without_reasons():
    assert graded() == ("A", [])


@pytest.mark.parametrize(
    ("letter", "word", "changes"),
    [
        ("B", "no scheduling privilege", {"privilege": "none", "clock": "thread_cpu"}),
        ("B", "wall clock", {"privilege": "none"}),
        ("C", "5 to 25 %", {"privilege": "none", "clock": "thread_cpu", "conditions": BUSY}),
        ("D", "wall clock while", {"privilege": "none", "conditions": BUSY}),
        ("B", "held off", {"conditions": BUSY}),
        ("C", "held off", {"conditions": BUSY, "threads": 2}),
        ("B", "+-1.0%", {"half_width": 0.01}),
        ("C", "+-4.0%", {"half_width": 0.04}),
        ("D", "+-20.0%", {"half_width": 0.2}),
        ("B", "outliers", {"kept_share": 0.6}),
        ("C", "preempted", {"preempted": 60}),
        ("D", "preempted", {"preempted": 600}),
        ("B", "+3.0%", {"reference_drift": 0.03}),
        ("C", "-10.0%", {"reference_drift": -0.1}),
        ("D", "+90.0%", {"reference_drift": 0.9}),
        ("B", "memory down by 5%", {"contention": 0.05}),
        ("C", "memory down by 20%", {"contention": 0.2}),
        ("C", "stolen", {"conditions": dataclasses.replace(QUIET, steal_share=0.05)}),
        ("C", "forced although it rains", {"refusals": ("it rains",)}),
    ],
)
def test_what_lowers_the_grade_is_said(letter, word, changes):
    got, reasons = graded(**changes)
    assert got == letter
    assert any(word in reason for reason in reasons), reasons


def test_the_worst_reason_decides():
    letter, reasons = graded(half_width=0.01, reference_drift=0.9)
    assert letter == "D"
    assert len(reasons) == 2


def test_a_device_clock_needs_no_privilege():
    assert graded(clock="device", privilege="none", conditions=BUSY)[0] == "A"


def test_an_unreadable_machine_is_not_held_against_it():
    assert graded(conditions=Conditions()) == ("A", [])
