import json

import pytest

from hwnas.errors import FormatError
from hwnas.profiling.records import (
    Failure,
    Latency,
    Record,
    Settings,
    arch_digest,
    network_of,
    record_from,
    record_json,
    record_key,
)


def latency(**changes):
    values = {
        "samples_ms": [1.0, 1.1, 1.2],
        "median_ms": 1.1,
        "p90_ms": 1.18,
        "p99_ms": 1.198,
        "n": 3,
        "kept_share": 1.0,
        "preempted": 0,
        "half_width": 0.01,
        "clock": "wall",
        "privilege": "fifo",
    }
    return Latency(**{**values, **changes})


def record(**changes):
    values = {
        "arch": {"space": "toy", "genes": {"d": 1}, "digest": "ab"},
        "backend": "onnxruntime",
        "backend_version": "1.0",
        "settings": Settings(),
        "measured_at": 10.0,
        "latency": latency(),
        "grade": "A",
    }
    return Record(**{**values, **changes})


def test_a_record_survives_json():
    one = record()
    assert record_from(json.loads(json.dumps(record_json(one))), "x") == one


def test_a_failure_survives_json():
    failure = Failure(kind="timeout", reason="slow")
    one = record(latency=None, grade=None, failure=failure)
    assert record_from(record_json(one), "x") == one


def broken(**changes):
    return {**record_json(record()), **changes}


@pytest.mark.parametrize(
    ("document", "place"),
    [
        (broken(settings={"threads": "one"}), "settings.threads"),
        (broken(grade="E"), "grade"),
        (broken(speed=1), "speed"),
        (broken(latency=None), "either a latency or a failure"),
        (broken(grade=None), "grade"),
        (broken(arch={"genes": {}}), "arch.space"),
        (broken(settings={"threads": 0, "batch": 1, "precision": "fp32", "workers": 1}), "threads"),
        (broken(latency={**record_json(record())["latency"], "n": 7}), "3 samples"),
        (broken(latency={**record_json(record())["latency"], "median_ms": 0.5}), "outside"),
        (broken(latency={**record_json(record())["latency"], "median_ms": 2.0}), "p99"),
        (broken(latency={**record_json(record())["latency"], "clock": "sundial"}), "clock"),
        (broken(latency={**record_json(record())["latency"], "kept_share": 2.0}), "kept_share"),
        (broken(latency={**record_json(record())["latency"], "scale": 0.0}), "median_ms"),
        (broken(latency={**record_json(record())["latency"], "reference_ms": 0.0}), "reference_ms"),
        (
            broken(latency={**record_json(record())["latency"], "reference_rest_ms": -1.0}),
            "reference_rest_ms",
        ),
        (broken(latency={**record_json(record())["latency"], "companion": "a"}), "companion"),
    ],
)
def test_bad_records_are_refused_in_one_line(document, place):
    with pytest.raises(FormatError, match=place) as raised:
        record_from(document, "here, line 3")
    assert raised.value.message.startswith("here, line 3: ")
    assert "\n" not in raised.value.message


def test_a_scaled_median_is_compared_with_unscaled_samples():
    scaled = record(latency=latency(median_ms=1.0, p90_ms=1.07, p99_ms=1.09, scale=1.1))
    assert record_from(record_json(scaled), "x") == scaled


def test_the_key_is_architecture_backend_and_settings():
    arch = {"space": "toy", "digest": "ab", "note": "ignored"}
    assert record().key == record_key(arch, "onnxruntime", Settings())
    assert record().key != record(settings=Settings(threads=2)).key
    assert record().key != record(backend="openvino").key


def test_an_arch_without_a_digest_is_identified_by_its_genes():
    one = record_key({"space": "toy", "genes": {"d": 1}}, "b", Settings())
    other = record_key({"space": "toy", "genes": {"d": 2}}, "b", Settings())
    assert one != other


def test_an_architecture_of_a_space_is_identified_as_the_space_does():
    import hwnas

    arch = hwnas.space("nasvit").smallest()
    assert arch_digest(arch.to_json()) == arch.digest


def test_rank_prefers_grade_then_time():
    assert record(grade="A", measured_at=1).rank > record(grade="B", measured_at=2).rank
    assert record(grade="B", measured_at=2).rank > record(grade="B", measured_at=1).rank
    failed = record(latency=None, grade=None, failure=Failure(kind="error", reason="r"))
    assert record(grade="D", measured_at=1).rank > failed.rank


def test_options_make_another_network():
    genes = {"space": "toy", "genes": {"d": 1}}
    ten, two = {**genes, "options": {"classes": 10}}, {**genes, "options": {"classes": 2}}
    assert len({network_of(arch) for arch in (genes, ten, two)}) == 3
    assert network_of(genes) == arch_digest(genes)
    assert record_key(ten, "b", Settings())[0] == network_of(ten)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused_with_the_place(value):
    document = record_json(record())
    document["latency"]["median_ms"] = value
    with pytest.raises(FormatError, match=r"^p, line 2: "):
        record_from(document, "p, line 2")


def test_no_time_at_all_is_no_measurement():
    with pytest.raises(FormatError, match="not positive"):
        record_from(record_json(record(latency=latency(samples_ms=[0.0] * 3, median_ms=0.0))), "p")
