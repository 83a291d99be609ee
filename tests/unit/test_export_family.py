"""Families and recommendations: which file to take."""

import dataclasses
import json

import pytest

from hwnas.errors import FormatError, InfeasibleError, UsageError
from hwnas.export import choose_member
from hwnas.export.artifact import ModelEntry
from hwnas.export.family import FAMILY_FILE, Family, Member, read_family, write_family
from hwnas.export.precisions import check_precisions, compared, recommend
from hwnas.pipeline.families import best_known_accuracy, of_one_device
from hwnas.profiling.records import Device
from hwnas.supernet.card import Measured

# As version 1 was written; must stay readable for good.
STORED = {
    "schema": "hwnas/family", "version": 1, "space": "nano", "device": "cpu",
    "budgets": {"latency 5ms": "b/model.onnx"},
    "members": [
        {"file": "b/model.onnx", "digest": "bb", "sha256": "00", "size_bytes": 5,
         "budgets": ["latency 5ms"], "accuracy": 0.9, "latency_ms": 4.5, "measured": True,
         "precision": "fp32", "promised": {}}
    ],
    "versions": {}, "created": "2026-01-01T00:00:00+00:00",
}  # fmt: skip


def member(name: str, latency: float | None, accuracy: float) -> Member:
    return Member(
        file=f"{name}/model.onnx", digest=name, sha256="00", size_bytes=1, budgets=(name,),
        accuracy=accuracy, latency_ms=latency, measured=True, precision="fp32", promised={},
    )  # fmt: skip


def family(*members: Member) -> Family:
    return Family(
        space="nano", device="cpu", budgets={one.budgets[0]: one.file for one in members},
        members=members, versions={}, created="now",
    )  # fmt: skip


THREE = family(member("a", 1.0, 0.7), member("b", 2.0, 0.8), member("c", 4.0, 0.8))


@pytest.mark.parametrize(
    ("budget", "expected"), [(1.0, "a"), (1.9, "a"), (2.0, "b"), (9.0, "b"), (4.0, "b")]
)
def test_the_most_accurate_within_the_budget_is_chosen(budget, expected):
    assert choose_member(THREE, latency_ms=budget).digest == expected


def test_a_budget_that_none_meets_names_the_fastest():
    with pytest.raises(InfeasibleError, match=r"a/model\.onnx, takes 1"):
        choose_member(THREE, latency_ms=0.5)


def test_members_of_unknown_latency_are_not_chosen():
    mixed = family(member("a", 1.0, 0.7), member("b", None, 0.9))
    assert choose_member(mixed, latency_ms=5.0).digest == "a"
    with pytest.raises(UsageError, match="not known"):
        choose_member(family(member("b", None, 0.9)), latency_ms=5.0)


def test_a_family_is_read_from_its_folder(tmp_path):
    write_family(tmp_path, THREE)
    assert read_family(tmp_path) == THREE
    assert choose_member(tmp_path, latency_ms=2.0) == THREE.members[1]
    assert choose_member(str(tmp_path / FAMILY_FILE), latency_ms=2.0) == THREE.members[1]


def test_the_stored_form_is_read(tmp_path):
    (tmp_path / FAMILY_FILE).write_text(json.dumps(STORED))
    assert choose_member(tmp_path, latency_ms=5.0).digest == "bb"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": []}, "'b/model.onnx', which is no member"),
        ({"members": [], "budgets": {}}, "has no members"),
        ({"device": 3}, "device"),
    ],
)
def test_a_damaged_family_is_refused(tmp_path, change, message):
    (tmp_path / FAMILY_FILE).write_text(json.dumps({**STORED, **change}))
    with pytest.raises(FormatError, match=message):
        read_family(tmp_path)


def entry(precision: str, *, ratio: float | None = 1.0, accuracy: float = 0.9, grade: str = "A"):
    latency = None if ratio is None else {"ratio": ratio, "grade": grade, "median_ms": ratio}
    return ModelEntry(
        file=precision, precision=precision, opset=17, batch=None, difference=0.0, agreement=1.0,
        accuracy=accuracy, images=100, latency=latency,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("entries", "expected", "reason"),
    [
        ([entry("fp32")], "fp32", "nothing faster"),
        ([entry("fp32", grade="D")], "fp32", "nothing faster"),
        ([entry("fp32", grade="D"), entry("fp16", ratio=0.8)], "fp32", "its own speed could not"),
        ([entry("fp32"), entry("fp16", ratio=1.1)], "fp32", "nothing faster"),
        ([entry("fp32"), entry("fp16", ratio=0.98)], "fp32", "nothing faster"),
        ([entry("fp32"), entry("fp16", ratio=0.8)], "fp16", "1.25 times as fast"),
        ([entry("fp32"), entry("fp16", ratio=0.8, accuracy=0.89)], "fp32", "loses 1.00%"),
        ([entry("fp32"), entry("fp16", ratio=0.8, grade="D")], "fp32", "could not be told"),
        ([entry("fp32"), entry("fp16", ratio=0.8), entry("int8_dynamic", ratio=0.7)],
         "int8_dynamic", "1.43 times"),
        ([entry("fp32", ratio=None)], "fp32", "not measured"),
    ],
)  # fmt: skip
def test_the_fastest_that_loses_nothing_is_recommended(entries, expected, reason):
    found, why = recommend(entries, {one.precision: 0.9 - one.accuracy for one in entries})
    assert found.precision == expected
    assert reason in why


def test_a_loss_that_so_few_images_do_not_exclude_is_none_to_accept():
    entries = [entry("fp32"), entry("fp16", ratio=0.8)]
    assert recommend(entries, {"fp32": 0.0, "fp16": 0.005})[0].precision == "fp16"
    found, why = recommend(entries, {"fp32": 0.0, "fp16": 0.0123})
    assert found.precision == "fp32"
    assert "fp16 may lose 1.23% of accuracy, 100 images tell no better: --images N" in why


def test_slower_precisions_are_called_slower():
    assert compared(entry("int8_dynamic", ratio=1.25)).startswith("slower than fp32 here (1.25")
    assert compared(entry("int8_dynamic", ratio=1.0)) == "as fast as fp32 here"


def test_precisions_are_put_in_order_and_checked():
    assert check_precisions(["int8_dynamic", "fp16", "fp16"]) == ("fp32", "fp16", "int8_dynamic")
    with pytest.raises(UsageError, match="did you mean int8_dynamic"):
        check_precisions(["int8_dynamc"])


def test_a_family_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        THREE.space = "other"


@pytest.mark.parametrize(
    ("foretold_for", "measured", "expected"),
    [
        ({"pi": "p"}, (True, True), ("here", [1.0, 2.0])),
        ({"pi": "p"}, (True, False), ("here", [1.0, None])),
        ({"pi": "p"}, (False, False), ("pi", [1.0, 2.0])),
        ({"my name for it": "f"}, (True, False), ("here", [1.0, 2.0])),
        ({}, (True, False), ("here", [1.0, 2.0])),  # an older front
    ],
)
def test_the_latencies_of_a_family_are_of_one_device(foretold_for, measured, expected):
    here = Device(
        name="here", fingerprint="f", cpu="", cores=1, memory_mb=1, architecture="", os=""
    )
    members = [
        dataclasses.replace(member(str(latency), latency, 0.9), measured=is_measured)
        for latency, is_measured in zip((1.0, 2.0), measured, strict=True)
    ]
    name, found = of_one_device(members, foretold_for, here=here)
    assert (name, [one.latency_ms for one in found]) == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        (None, 0.85),
        (Measured(value=0.91, images=400), 0.85),  # no more than the export judged by
        (Measured(value=0.91, images=5000), 0.88),  # what the file lost of the module's 0.88
        (Measured(value=0.01, images=5000), 0.0),
    ],
)
def test_a_member_has_the_accuracy_of_all_images_and_what_its_file_lost(known, expected):
    judged = ModelEntry(
        file="model.onnx", precision="int8_dynamic", opset=17, batch=None, difference=0.0,
        agreement=0.95, accuracy=0.85, images=400,
    )  # fmt: skip
    assert best_known_accuracy(judged, 0.88, known) == pytest.approx(expected)
