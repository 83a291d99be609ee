"""What predictors are fitted on, and where they are kept."""

from dataclasses import replace
from pathlib import Path

import pytest

import hwnas
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.fit import profile_rows
from hwnas.profiling.profiles import write_profile
from hwnas.testing.profiles import made_up_profile

NANO = hwnas.space("nano")


def profile(path: Path, device: str, fingerprint: str, n: int = 12) -> Path:
    """Write the profile of a device whose latencies follow from the MACs."""
    archs = spread(NANO, n, seed=0)
    values = (0.2 + NANO.cost(archs).macs / 3e6).tolist()
    found = made_up_profile(device, list(zip(archs, values, strict=True)))
    header = found.header
    named = replace(header, device=replace(header.device, fingerprint=fingerprint))
    write_profile(path, replace(found, header=named))
    return path


@pytest.mark.parametrize(("first", "second"), [("Pi 5", "pi-5"), ("Pi 5" * 20, "Pi 5" * 21)])
def test_devices_whose_names_are_one_as_names_of_folders_are_kept_apart(tmp_path, first, second):
    paths = [profile(tmp_path / "a.jsonl", first, "a" * 16),
             profile(tmp_path / "b.jsonl", second, "b" * 16)]  # fmt: skip
    one, other = profile_rows(paths, NANO)
    assert one.name.endswith("-aaaaaa-onnxruntime-t1-b1-fp32")
    assert other.name == one.name.replace("aaaaaa", "bbbbbb")
    (alone,) = profile_rows(paths[:1], NANO)
    assert alone.name == one.name.replace("-aaaaaa", "")
