"""Which models accompany others, and the level at which these are told."""

import dataclasses
import json

import pytest

from hwnas.profiling.checking import check_profile
from hwnas.profiling.companions import Companions, at_one_level, levels_of, tell_anew, told_at
from hwnas.profiling.grading import grade
from hwnas.profiling.jobs import Job
from hwnas.profiling.paces import pace_of
from hwnas.profiling.profiles import (
    Profile,
    ProfileWriter,
    best_records,
    merge_profiles,
)
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
from hwnas.profiling.summaries import groups

ARCHS = [{"space": "toy", "genes": {"d": d}, "digest": str(d)} for d in range(10)]


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
    apart = profile_of(record(3, 2.0), record(0, 1.0), record(1, 9.0))
    assert Companions(apart, versions=same).of(job(2)).job == job(3)


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


def told_again(profile):
    levels = levels_of(profile)
    return [told_at(record, levels) for record in profile.records.values()]


def medians(records):
    return [one.latency.median_ms for one in records]


def test_all_are_told_at_the_middle_of_what_the_companion_took():
    before = profile_of(
        record(0, 2.0),
        beside(1, 5.0, known=2.0, took=1.9, rest=1.9),
        beside(2, 8.0, known=2.0, took=2.4, rest=1.8),
    )
    found = told_again(before)
    assert medians(found) == pytest.approx([1.9, 5.0 * 0.95, 8.0 * 0.95])
    assert not [problem for one in found for problem in record_problems(one)]
    assert check_profile(profile_of(*found)) == []
    for one in found:
        assert one.throughput_per_s == pytest.approx(1e3 / one.latency.median_ms)
    assert told_again(profile_of(*found)) == found


def test_sessions_that_are_merged_have_one_level():
    quiet = profile_of(record(0, 2.0), beside(1, 5.0, known=2.0, took=2.0))
    loud = profile_of(
        dataclasses.replace(record(0, 2.4), grade="B"), beside(2, 9.6, known=2.4, took=2.4)
    )
    merged = at_one_level(merge_profiles(quiet, loud))
    assert medians(merged.records.values()) == pytest.approx([2.0, 5.0, 8.0])
    assert merged.header == quiet.header
    assert at_one_level(merged) == merged


def test_each_version_of_a_runtime_has_a_level_of_its_own():
    def with_version(one, version):
        return dataclasses.replace(one, backend_version=version)

    old = profile_of(
        *(with_version(one, "1.30") for one in (record(0, 2.0), beside(1, 5.0, known=2, took=2)))
    )
    new = profile_of(
        with_version(dataclasses.replace(record(0, 1.8), grade="B"), "1.31"),
        *(with_version(beside(n, 7.2, known=1.8, took=1.8), "1.31") for n in (2, 3, 4)),
    )
    merged = at_one_level(merge_profiles(old, new))
    assert medians(merged.records.values()) == pytest.approx([2.0, 5.0, 7.2, 7.2, 7.2])


def test_what_a_session_without_privilege_saw_is_no_level_of_one_with_it():
    seen = [
        dataclasses.replace(one, latency=dataclasses.replace(one.latency, clock="thread_cpu"))
        for one in (beside(n, 5.0, known=2.0, took=1.9) for n in (1, 2, 3))
    ]
    found = told_again(profile_of(record(0, 2.0), *seen, beside(4, 5.0, known=2.0, took=2.0)))
    assert medians(found) == pytest.approx([2.0, 5.0, 5.0, 5.0, 5.0])


def test_telling_a_companion_anew_does_not_change_the_pace_of_the_device():
    timed = record(0, 2.0, reference_ms=0.6, reference_drift=0.0)
    profile = profile_of(timed, *(beside(n, 5.0, known=2.0, took=1.8) for n in (1, 2, 3)))
    companion = told_again(profile)[0]
    assert companion.latency.median_ms == pytest.approx(1.8)
    assert pace_of(companion) == pace_of(timed)


def test_kinds_without_a_companion_elsewhere_are_known():
    same, other = {"onnxruntime": "1"}, {"onnxruntime": "2"}
    jobs = [job(1), job(2), job(2, batch=4), job(2, threads=2)]
    there = profile_of(record(0, 2.0))
    assert Companions(beside=[there], versions=same).missed(jobs) == [job(2, batch=4)]
    assert Companions(beside=[there], versions=other).missed(jobs) == [job(2, batch=4), job(1)]
    assert Companions(there, versions=same).missed(jobs) == []  # nothing was asked for


def test_how_much_the_pace_of_the_machine_differed_is_told():
    def drift(rests):
        ones = [beside(n, 5.0, known=2.0, took=2.0, rest=rest) for n, rest in enumerate(rests, 1)]
        (group,) = groups([record(0, 2.0), *ones])
        return group.drift

    assert drift([2.0, 2.2, 1.8, 2.0]) is None  # too few
    assert drift([2.0] * 6) == 0.0
    assert drift([1.8, *[2.0] * 7, 2.2]) == pytest.approx(0.02)
    assert drift([1.8, 1.8, 1.8, 2.0, 2.2, 2.2, 2.2]) == pytest.approx(0.1)


def test_grades_and_reasons_are_those_of_what_is_told():
    forced = ["forced although busy", "its companion took +30.0% meanwhile", "memory unknown"]
    before = profile_of(
        record(0, 2.0, grade="A"),
        dataclasses.replace(
            beside(1, 5.0, known=2.0, took=2.6, rest=2.2), grade="C", reasons=forced
        ),
        beside(2, 8.0, known=2.0, took=2.2, rest=2.2),
        beside(3, 8.0, known=2.0, took=1.9, rest=2.2),
    )
    found = told_again(before)
    assert [one.grade for one in found] == ["A", "C", "A", "B"]
    assert [one.reasons for one in found] == [
        [],
        ["forced although busy", "its companion took +18.2% meanwhile", "memory unknown"],
        [],
        ["its companion took -13.6% meanwhile"],
    ]


def test_what_others_slowed_down_is_no_level():
    records = [beside(n, 5.0, known=3.2, took=3.2, rest=rest) for n, rest in ((1, 2.0), (2, 3.1))]
    assert told_again(profile_of(record(0, 3.2), *records))[0].latency.median_ms == 2.0


def test_a_companion_that_was_measured_again_counts_with_the_others():
    known = profile_of(
        dataclasses.replace(record(0, 1.0), measured_at=9.0), beside(1, 5.0, known=2.0, took=2.0)
    )
    again = told_again(known)[1]
    assert again.latency.median_ms == pytest.approx(2.5)
    assert again.latency.reference_drift == pytest.approx(1.0)


def test_a_companion_of_another_profile_keeps_that_level():
    itself = beside(0, 2.0, known=2.0, took=3.0)
    known = profile_of(itself, beside(1, 5.0, known=2.0, took=3.0))
    assert levels_of(known) == {}


def test_telling_anew_changes_the_file_at_once_and_keeps_the_rest_of_it(tmp_path):
    path = tmp_path / "p.jsonl"
    forced = {"grade": "C", "reasons": ["forced although busy"]}
    worse = dataclasses.replace(beside(1, 9.0, known=2.0, took=2.0), **forced)
    lines = [
        record(0, 2.0),
        worse,
        beside(1, 5.0, known=2.0, took=1.9),
        record(3, 7.0, clock="device"),
    ]
    with ProfileWriter(path, profile_of().header) as writer:
        for one in lines:
            writer.add(one)
    tell_anew(path)
    told = [json.loads(line) for line in path.read_text().splitlines()][1:]
    assert [one["latency"]["median_ms"] for one in told] == pytest.approx(
        [1.95, 9.0 * 1.95 / 2, 5.0 * 1.95 / 2, 7.0]
    )
    content = path.read_bytes()
    tell_anew(path)
    assert path.read_bytes() == content
    tell_anew(tmp_path / "none.jsonl")


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
