"""Profile files that a user may have damaged, mixed up or received from a newer hwnas."""

import json

import pytest

from hwnas.errors import FormatError, HwnasError
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.profiles import (
    ProfileWriter,
    check_profile,
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
