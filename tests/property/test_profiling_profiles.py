"""Records survive files, and merging profiles obeys its laws."""

import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hwnas.profiling.profiles import (
    Profile,
    best_records,
    diff_profiles,
    merge_profiles,
    read_profile,
    write_profile,
)
from hwnas.profiling.records import (
    Device,
    Failure,
    Header,
    Latency,
    Memory,
    Record,
    Settings,
)

DEVICE = Device(
    name="toy", fingerprint="f", cpu="toy", cores=2, memory_mb=1, architecture="x", os="y"
)
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
times = st.integers(1, 10**8).map(lambda value: value / 1e5)


def latency_of(samples, clock, privilege, reference_ms):
    return Latency(
        samples_ms=samples,
        median_ms=sorted(samples)[len(samples) // 2],
        p90_ms=max(samples),
        p99_ms=max(samples),
        n=len(samples),
        kept_share=1.0,
        preempted=0,
        half_width=0.1,
        clock=clock,
        privilege=privilege,
        reference_ms=reference_ms,
    )


latencies = st.builds(
    latency_of,
    st.lists(times, min_size=1, max_size=3),
    st.sampled_from(["wall", "thread_cpu", "device"]),
    st.sampled_from(["fifo", "autogroup", "none"]),
    st.none() | times,
)
archs = st.sampled_from(["aa", "bb"]).map(
    lambda digest: {"space": "toy", "genes": {"d": 1}, "digest": digest}
)
common = {
    "arch": archs,
    "backend": st.sampled_from(["onnxruntime", "openvino"]),
    "backend_version": st.just("1"),
    "settings": st.builds(Settings, threads=st.integers(1, 2)),
    "measured_at": st.integers(0, 3).map(float),
}
failures = st.builds(
    Record, failure=st.builds(Failure, kind=st.just("error"), reason=st.text(max_size=3)), **common
)
measured = st.builds(
    Record,
    latency=latencies,
    grade=st.sampled_from("ABCD"),
    reasons=st.lists(st.sampled_from("xy"), max_size=2),
    memory=st.none() | st.just(Memory(peak_mb=2.5, before_mb=1.0)),
    **common,
)
headers = st.builds(
    Header,
    device=st.just(DEVICE),
    runtimes=st.fixed_dictionaries({"onnxruntime": st.sampled_from("12")}),
    created_at=st.integers(0, 3).map(float),
)
profiles = st.builds(
    lambda header, records: Profile(header=header, records=best_records(records)),
    headers,
    st.lists(measured | failures, max_size=4),
)


@unhurried
@given(profiles)
def test_a_profile_survives_its_file(profile):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.jsonl"
        write_profile(path, profile)
        assert read_profile(path) == profile


@unhurried
@given(profiles)
def test_merging_with_itself_changes_nothing(profile):
    assert merge_profiles(profile, profile) == profile


@unhurried
@given(profiles, profiles)
def test_merging_commutes(first, second):
    assert merge_profiles(first, second) == merge_profiles(second, first)


@unhurried
@given(profiles, profiles, profiles)
def test_merging_associates(first, second, third):
    left = merge_profiles(merge_profiles(first, second), third)
    assert left == merge_profiles(first, merge_profiles(second, third))


@unhurried
@given(profiles, profiles)
def test_merging_keeps_the_better_grade(first, second):
    merged = merge_profiles(first, second)
    assert set(merged.records) == set(first.records) | set(second.records)
    for profile in (first, second):
        for key, record in profile.records.items():
            assert merged.records[key].rank >= record.rank


@unhurried
@given(profiles)
def test_a_profile_does_not_differ_from_itself(profile):
    found = diff_profiles(profile, profile)
    assert all(ratio == 1.0 for ratio in found.ratios)
    assert found.spearman is None or abs(found.spearman - 1.0) < 1e-12
    assert found.only_first == found.only_second == 0
