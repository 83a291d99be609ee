"""Profile files that a user may have damaged, mixed up or received from a newer hwnas."""

import json

import pytest

from hwnas.errors import FormatError, HwnasError
from hwnas.profiling.checking import check_profile
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.profiles import (
    ProfileWriter,
    diff_profiles,
    merge_profiles,
    read_profile,
    write_profile,
)
from hwnas.testing.onnx_models import TOY_ARCHS as ARCHS
from hwnas.testing.onnx_models import provide_toy as provide


@pytest.fixture
def measured(tmp_path, options):
    path = tmp_path / "p.jsonl"
    profile(grid(ARCHS[:2]), provide=provide, output=path, options=options)
    write_profile(path, read_profile(path))  # one line each, also for what was measured twice
    return path


def edit(path, line, change):
    lines = path.read_text().splitlines()
    document = json.loads(lines[line])
    change(document)
    lines[line] = json.dumps(document)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("line", "change", "words"),
    [
        (0, lambda d: d.update(version=99), "version 99"),
        (0, lambda d: d.update(schema="hwnas/run"), "is a 'hwnas/run'"),
        (0, lambda d: d.pop("schema"), "not a file of hwnas"),
        (0, lambda d: d.pop("device"), "line 1: device"),
        (1, lambda d: d.pop("backend"), "line 2: backend"),
        (2, lambda d: d["latency"].update(median_ms="fast"), "line 3: latency.median_ms"),
    ],
)
def test_damaged_foreign_and_newer_profiles_are_refused(measured, line, change, words):
    edit(measured, line, change)
    with pytest.raises(FormatError, match=words) as raised:
        read_profile(measured)
    assert "\n" not in raised.value.message


def test_files_that_are_no_profiles_are_refused(tmp_path):
    with pytest.raises(FormatError, match="no such file"):
        read_profile(tmp_path / "none")
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(FormatError, match="empty"):
        read_profile(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\n\x00")
    with pytest.warns(UserWarning, match="whole"), pytest.raises(FormatError):
        read_profile(tmp_path / "binary")


@pytest.mark.parametrize("content", [b'{"mine": 1}', b"key", b"\xff\xfe\x00", b'{"created_by":'])
def test_what_is_somebody_elses_stays(tmp_path, options, content):
    (tmp_path / "mine").write_bytes(content)
    with pytest.raises(FormatError, match="is no profile"):
        profile(grid(ARCHS[:1]), provide=provide, output=tmp_path / "mine", options=options)
    assert (tmp_path / "mine").read_bytes() == content


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_a_session_that_ended_in_the_header_is_begun_again(measured, options, share):
    header = measured.read_bytes().splitlines()[0]
    measured.write_bytes(header[: int(share * len(header))])
    profile(grid(ARCHS[:1]), provide=provide, output=measured, options=options)
    assert len(read_profile(measured).measured()) == 1


def test_a_line_that_is_none_can_be_taken_out(measured):
    whole = read_profile(measured)
    lines = measured.read_text().splitlines()
    measured.write_text("\n".join([*lines[:2], "what?", *lines[2:]]) + "\n")
    with pytest.raises(FormatError, match="line 3") as raised:
        read_profile(measured)
    assert raised.value.hint.endswith(f"sed -i 3d {measured}")
    measured.write_text("\n".join(lines) + "\n")
    assert read_profile(measured) == whole


def test_another_devices_profile_is_not_continued(measured, options):
    edit(measured, 0, lambda d: d["device"].update(fingerprint="other", name="pi"))
    with pytest.raises(HwnasError, match="'pi'"):
        profile(grid(ARCHS), provide=provide, output=measured, options=options)
    there = read_profile(measured)
    edit(measured, 0, lambda d: d["device"].update(fingerprint="third"))
    with pytest.raises(HwnasError, match="cannot be merged"):
        merge_profiles(there, read_profile(measured))


def test_tampered_medians_are_noticed(measured):
    def change(document):
        latency = document["latency"]
        latency["median_ms"] = max(latency["samples_ms"]) / latency["scale"]
        document["latency"]["p90_ms"] = document["latency"]["p99_ms"] = 1e9

    assert not [line for line in check_profile(read_profile(measured)) if "samples" in line]
    edit(measured, 1, change)
    assert [line for line in check_profile(read_profile(measured)) if "samples" in line]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d["latency"].update(p90_ms=1e-4), "p90_ms is 0.0001"),
        (lambda d: d["latency"].update(p99_ms=1e9), "p99_ms is 1000000000.0"),
        (lambda d: d.update(throughput_per_s=-5.0), "throughput_per_s is -5.0"),
        (lambda d: d.update(throughput_per_s=2 * d["throughput_per_s"]), "throughput_per_s"),
        (lambda d: d.update(memory={"peak_mb": -1.0, "before_mb": 10.0}), "peak_mb is -1.0"),
        (lambda d: d["arch"].pop("genes"), "has no genes"),
        (lambda d: d["arch"].update(space="nano"), "nano"),
    ],
)
def test_what_contradicts_itself_is_noticed(measured, change, words):
    edit(measured, 1, change)
    assert any(words in line for line in check_profile(read_profile(measured)))


def test_a_profile_without_measurements_is_not_sound(measured):
    measured.write_text(measured.read_text().splitlines(keepends=True)[0])
    assert check_profile(read_profile(measured)) == ["holds no measurements"]


def test_profiles_are_compared_by_architecture(measured, tmp_path):
    first = read_profile(measured)
    for line in (1, 2):
        edit(measured, line, lambda d: scale(d["latency"], 2.0))
    second = read_profile(measured)
    found = diff_profiles(first, second)
    assert found.median_ratio == pytest.approx(2.0)
    assert found.spearman == pytest.approx(1.0)
    assert len(found.keys) == 2


def scale(latency, factor):
    latency["samples_ms"] = [value * factor for value in latency["samples_ms"]]
    for name in ("median_ms", "p90_ms", "p99_ms"):
        latency[name] *= factor


def test_writing_appends_after_the_header(measured):
    found = read_profile(measured)
    with ProfileWriter(measured, found.header) as writer:
        for record in found.records.values():
            writer.add(record)
    assert read_profile(measured) == found
