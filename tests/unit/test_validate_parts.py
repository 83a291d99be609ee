"""Pieces of the examination: intervals, times on noisy machines, JUnit, promises."""

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import UsageError
from hwnas.export.artifact import ModelEntry
from hwnas.export.validate_accuracy import Counted, wilson
from hwnas.export.validate_junit import junit
from hwnas.export.validate_promises import exported_pace, promised_accuracy, promised_latency
from hwnas.export.validate_run import Feeding, Flags, Port, feeding_from
from hwnas.export.validate_speed import compared, speed_gates, unsure_gates
from hwnas.export.validate_types import Gate, Limits, Verdict
from hwnas.io.preprocessing import Preprocessing
from hwnas.profiling.records import Device, Failure, Latency, Memory, Record, Settings

HERE = Device(name="here", fingerprint="f", cpu="", cores=1, memory_mb=1, architecture="", os="")


def record(median=10.0, *, grade="A", scale=1.0, p99=12.0, peak_mb=80.0, failure=None):
    latency = Latency(
        samples_ms=[median * scale], median_ms=median, p90_ms=p99, p99_ms=p99, n=1,
        kept_share=1.0, preempted=0, half_width=0.001, clock="wall", privilege="fifo", scale=scale,
    )  # fmt: skip
    return Record(
        arch={"space": "file"}, backend="onnxruntime", backend_version="1", settings=Settings(),
        measured_at=0.0, latency=None if failure else latency, grade=None if failure else grade,
        memory=Memory(peak_mb=peak_mb, before_mb=40.0), reasons=["cores busy"], failure=failure,
    )  # fmt: skip


def entry(**changes):
    known = {"file": "model.onnx", "precision": "fp32", "opset": 17, "batch": None,
             "difference": 0.0, "agreement": 1.0, "accuracy": 0.9, "images": 1000}  # fmt: skip
    return ModelEntry(**{**known, **changes})


# --- accuracy


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_the_share_within_0_and_1(counts):
    right, seen = counts
    low, high = wilson(right, seen)
    assert 0 <= low <= right / seen <= high <= 1
    assert high - low > 0


def test_wilson_has_the_published_values():
    # Newcombe 1998, table I: 81 of 263 and 0 of 20, method 3.
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=1e-4)


# --- times


@pytest.mark.parametrize(
    ("found", "limit", "grade", "state"),
    [
        (10, 11, "A", "passed"),
        (10, 9.9, "A", "failed"),
        (10, 9.9, "B", "failed"),
        # Noise only adds: what is met on a busy machine is met.
        (10, 11, "D", "passed"),
        (10, 9.9, "C", "unsure"),
        (10, 6.0, "C", "failed"),
        (10, 1.0, "D", "unsure"),
    ],
)
def test_what_a_time_proves_depends_on_its_grade(found, limit, grade, state):
    assert compared(found, limit, record(grade=grade)) == state


def test_undone_drift_is_no_proof_on_a_noisy_machine():
    assert compared(10, 11, record(grade="A", scale=1.5)) == "passed"
    assert compared(10, 11, record(grade="D", scale=1.5)) == "unsure"


def test_gates_of_speed():
    limits = Limits(max_latency_ms=11, max_p99_ms=11, max_memory_bytes=90e6)
    p50, p99, memory = speed_gates(record(), limits)
    assert (p50.state, p99.state, memory.state) == ("passed", "failed", "passed")
    assert p99.reason == "12.000 ms, 9% above the limit"
    assert speed_gates(record(peak_mb=100), limits)[2].state == "failed"
    several = replace(record(), settings=Settings(batch=8))
    assert speed_gates(several, limits)[0].found == "10.000 ms a batch of 8, grade A"
    assert {gate.state for gate in speed_gates(record(), Limits())} == {"told"}
    broken = record(failure=Failure(kind="crash", reason="it died"))
    assert {gate.reason for gate in speed_gates(broken, limits)} == {"it died"}
    unsure = unsure_gates("busy", Limits(max_p99_ms=3, max_memory_bytes=1e6))
    assert {gate.name: (gate.state, gate.wanted) for gate in unsure} == {
        "p50": ("skipped", ""), "p99": ("unsure", "<= 3ms"), "memory": ("unsure", "<= 1MB"),
    }  # fmt: skip


# --- promises


def test_only_a_difference_beyond_chance_breaks_a_promised_accuracy():
    promised = {"accuracy": {"mean": 0.95, "low": 0.94, "high": 0.96}}
    good = [
        gate.state for gate in promised_accuracy(promised, entry(), Counted(right=93, seen=100))
    ]
    assert good == ["passed", "passed"]
    bad = list(promised_accuracy(promised, entry(), Counted(right=890, seen=1000)))
    assert [gate.state for gate in bad] == ["failed", "passed"]
    assert "89.00%" in bad[0].reason


def test_a_latency_is_compared_on_the_device_it_was_promised_for():
    measured = {"median_ms": 9.5, "threads": 1, "batch": 1, "device": "here"}
    promised = {"latency": {"mean": 8.0, "low": 7.0, "high": 9.0}}
    known = entry(latency=measured)
    gates = promised_latency(promised, known, record(10.0), device=HERE)
    assert {gate.name: gate.state for gate in gates} == {
        "promised latency": "failed", "exported latency": "passed",
    }  # fmt: skip
    failed = next(iter(promised_latency(promised, known, record(10.0), device=HERE)))
    assert "hwnas doctor" in failed.hint
    gates = promised_latency(promised, known, record(10.0), device=replace(HERE, name="there"))
    assert [gate.state for gate in gates] == ["skipped", "skipped"]
    (_, gate) = promised_latency(promised, known, record(11.0, grade="D"), device=HERE)
    assert gate.state == "unsure"


@pytest.mark.parametrize(
    ("devices", "exported_on", "states"),
    [
        ({"pi": "p"}, "here", {"promised latency": "skipped", "exported latency": "passed"}),
        ({"my name for it": "f"}, "build machine",
         {"promised latency": "failed", "exported latency": "skipped"}),
        ({"my name for it": "f"}, None, {"promised latency": "failed"}),
    ],
)  # fmt: skip
def test_what_was_foretold_is_for_the_devices_of_the_search(devices, exported_on, states):
    """Wherever the file was exported, and whatever the device was called when it was measured."""
    promised = {"latency": {"mean": 8.0, "low": 7.0, "high": 9.0}, "devices": devices}
    measured = {"median_ms": 9.5, "threads": 1, "batch": 1, "device": exported_on}
    known = entry(latency=None if exported_on is None else measured)
    gates = list(promised_latency(promised, known, record(10.0), device=HERE))
    assert {gate.name: gate.state for gate in gates} == states
    if states["promised latency"] == "skipped":
        assert gates[0].reason == "foretold for pi; this is here"


@pytest.mark.parametrize(("seen_ms", "state"), [(9.5, "passed"), (9.0, "failed"), (2.0, "failed")])
def test_what_the_search_measured_counts_where_it_is_longer(seen_ms, state):
    measured = {"median_ms": 9.5, "threads": 1, "batch": 1, "device": "here"}
    promised = {
        "latency": {"mean": 8.0, "low": 7.0, "high": 9.0}, "verified": {"latency": seen_ms},
    }  # fmt: skip
    gates = promised_latency(promised, entry(latency=measured), record(10.0), device=HERE)
    assert {gate.name: gate.state for gate in gates}["promised latency"] == state


def exported(**changes):
    return entry(latency={
        "median_ms": 9.5, "threads": 1, "batch": 1, "device": "here", "fingerprint": "f",
        "backend": "onnxruntime", "backend_version": "1", "privilege": "fifo",
        "reference_ms": 1.0, **changes,
    })  # fmt: skip


def referred(median, *, reference_ms):
    noisy = record(median, grade="D")
    return replace(noisy, latency=replace(noisy.latency, reference_ms=reference_ms))


@pytest.mark.parametrize(
    ("median", "reference_ms", "state"),
    [
        (14.0, 1.5, "passed"),  # everything takes half as long again
        (14.0, 1.3, "unsure"),
        (14.0, 1.05, "unsure"),
        (11.0, 1.08, "unsure"),  # so much the clock of a processor drifts
        (10.0, 0.5, "passed"),  # a faster machine is no reason to be strict
        (14.0, None, "unsure"),
    ],
)
def test_what_was_said_is_of_a_device_at_its_pace_of_then(median, reference_ms, state):
    then = exported_pace(exported(), "f")
    (gate,) = promised_latency(
        {}, exported(), referred(median, reference_ms=reference_ms), device=HERE, then=then
    )
    assert gate.state == state
    if median == 14.0 and state == "passed":
        assert gate.found == "14.000 ms, 9.333 ms at the pace of then"
        assert "1.50 times as long" in gate.reason


def test_drift_within_a_noisy_session_is_no_pace_of_another() -> None:
    drifted = record(10.0, grade="D", scale=1.5)
    (gate,) = promised_latency(
        {}, exported(), drifted, device=HERE, then=exported_pace(exported(), "f")
    )
    assert gate.state == "unsure"


@pytest.mark.parametrize(
    "change", [{"backend_version": "2"}, {"privilege": "none"}, {"threads": 2}, {"pages": "huge"}]
)
def test_paces_under_other_conditions_say_nothing(change):
    then = exported_pace(exported(**change), "f")
    assert then is not None
    slow = referred(14.0, reference_ms=1.5)
    (gate,) = promised_latency({}, exported(), slow, device=HERE, then=then)
    assert gate.state == "unsure"


def test_a_manifest_may_say_no_pace_or_that_of_another_device():
    assert exported_pace(exported(), "g") is None
    assert exported_pace(exported(reference_ms=None), "f") is None
    assert exported_pace(exported(reference_ms="fast"), "f") is None
    assert exported_pace(entry(), "f") is None


# --- verdicts


def verdict(*states):
    gates = tuple(
        Gate(name=f"gate {n}", state=state, reason="why \x00 \ud800 <&>", found="12 > 11")
        for n, state in enumerate(states)
    )
    return Verdict(file="m.onnx", sha256=None, gates=gates, created=1.0)


@pytest.mark.parametrize(
    ("states", "code"),
    [
        (["passed", "told", "skipped"], 0),
        (["passed", "unsure"], 5),
        (["unsure", "failed", "passed"], 4),
    ],
)
def test_exit_codes(states, code):
    assert verdict(*states).exit_code == code


def test_junit_has_a_case_per_gate():
    states = ["passed", "failed", "unsure", "skipped", "told"]
    root = ElementTree.fromstring(junit(verdict(*states)))
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "5", "failures": "1", "errors": "1", "skipped": "1"}
    cases = suite.findall("testcase")
    kinds = [[child.tag for child in case] for case in cases]
    assert kinds == [[], ["failure"], ["error"], ["skipped"], []]
    # What the schema of JUnit's Ant task demands: order, attributes and their types.
    assert [child.tag for child in suite] == [
        "properties", *["testcase"] * 5, "system-out", "system-err",
    ]  # fmt: skip
    datetime.strptime(suite.get("timestamp"), "%Y-%m-%dT%H:%M:%S")
    for case in cases:
        assert set(case.attrib) == {"name", "classname", "time"}
        assert math.isfinite(float(case.get("time")))
        for child in case:
            assert child.get("message") == "why ? ? <&>"
            assert child.tag == "skipped" or child.get("type")
    assert {"name", "package", "id", "hostname", "time"} <= set(suite.attrib)


# --- feeding by flags


def port(*shape, dtype="tensor(float)"):
    return Port(name="images", dtype=dtype, shape=shape)


NORMAL = Flags(mean=(0.5,) * 3, std=(0.5,) * 3)


def test_the_format_is_guessed_from_the_input():
    assert feeding_from(NORMAL, port("batch", 3, 32, 32)).format == "float32 NCHW"
    assert feeding_from(NORMAL, port("batch", 32, 32, 3)).format == "float32 NHWC"
    pixels = feeding_from(Flags(), port(None, 32, 32, 3, dtype="tensor(uint8)"))
    assert pixels.format == "uint8 NHWC"
    assert pixels.preprocessing.mean == (0.0,) * 3
    grey = feeding_from(Flags(mean=(0.5,), std=(0.5,)), port(1, 1, 28, 28))
    assert (grey.preprocessing.channels, grey.preprocessing.size) == ("L", 28)


def test_the_crop_is_a_share_of_the_shorter_side():
    flags = Flags(mean=(0.5,) * 3, std=(0.5,) * 3, crop=0.875)
    made = feeding_from(flags, port("batch", 3, 224, 224)).preprocessing
    assert (made.resize, made.crop, made.size) == (256, 224, 224)


@pytest.mark.parametrize(
    ("flags", "shape", "told"),
    [
        (Flags(), (1, 3, 8, 8), "--mean and --std are not given"),
        (Flags(mean=(0.5,) * 3), (1, 3, 8, 8), "--std is not given"),
        (NORMAL, ("batch", 3, "h", "w"), "does not say its size"),
        (Flags(mean=(0.5,), std=(0.5,)), (1, 3, 8, 8), "mean has 1 values"),
        (Flags(mean=(123.675,) * 3, std=(0.5,) * 3), (1, 3, 8, 8), "mean is 123.675, .* 0 to 1"),
        (Flags(mean=(0.5,) * 3, std=(58.4,) * 3), (1, 3, 8, 8), "std is 58.4, .* 0 to 1"),
        (replace(NORMAL, crop=0.0), (1, 3, 8, 8), "crop is 0; accepted: a share above 0"),
    ],
)
def test_flags_that_do_not_suffice(flags, shape, told):
    with pytest.raises(UsageError, match=told):
        feeding_from(flags, port(*shape))


@pytest.mark.parametrize(
    ("flags", "shape", "told"),
    [
        (Flags(), ("n", 3, "h", "w"), "takes pixels by channel"),
        (Flags(size=32), ("n", 1, 32, 32), "takes pixels by channel"),
        (NORMAL, ("n", 32, 32, 3), "--mean and --std would have no effect"),
    ],
)
def test_pixels_are_taken_as_they_are_and_channels_last(flags, shape, told):
    with pytest.raises(UsageError, match=told):
        feeding_from(flags, port(*shape, dtype="tensor(uint8)"))


def test_channels_last_are_the_same_numbers_turned():
    squares = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3)).astype(np.uint8)
    made = Preprocessing(
        size=8, crop=8, resize=8, interpolation="bicubic", mean=(0.1, 0.2, 0.3),
        std=(0.4, 0.5, 0.6), channels="RGB",
    )  # fmt: skip
    first = Feeding(preprocessing=made, format="float32 NCHW").feed(squares)
    last = Feeding(preprocessing=made, format="float32 NHWC").feed(squares)
    assert np.array_equal(first, last.transpose(0, 3, 1, 2))
    with pytest.raises(UsageError, match="input format 'NCHW'"):
        Feeding(preprocessing=made, format="NCHW")
