"""The ways to run subnets that predictors were fitted for."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

import hwnas
from hwnas.errors import UsageError
from hwnas.pipeline.answers import Pool, answer_of
from hwnas.pipeline.deployments import deployments, device_of, parse_settings, ways_to_run
from hwnas.pipeline.predictors import described
from hwnas.pipeline.quantities import Field, targets_of
from hwnas.pipeline.searching import _largest
from hwnas.profiling.records import Settings
from hwnas.search import Constraint, Estimate


@dataclass(frozen=True)
class Fitted:
    """As much of a predictor as is asked for here."""

    about: dict
    target: str = "latency_ms"


def fitted(*, target="latency_ms", **settings):
    about = {"device": "pi", "fingerprint": "f", "backend": "onnxruntime"}
    return Fitted({**about, **described(Settings(**settings))}, target)


def without_pages(predictor):
    return Fitted({k: v for k, v in predictor.about.items() if k != "pages"})


def known(*predictors):
    return deployments({str(i): predictor for i, predictor in enumerate(predictors)})


def test_each_way_has_a_name_and_says_only_what_is_unusual():
    plain, huge, many = known(fitted(), fitted(pages="huge"), fitted(workers=2))
    assert plain.name == "onnxruntime-fp32-t1-b1"
    assert huge.name == "onnxruntime-fp32-t1-b1-huge"
    assert many.name == "onnxruntime-fp32-t1-b1-w2"
    assert "pages" not in plain.described
    assert huge.described["pages"] == "huge"
    assert many.described["workers"] == 2


def test_a_predictor_from_before_there_were_pages_is_of_the_usual_ones():
    (way,) = known(without_pages(fitted()))
    assert way.settings == Settings()


def test_the_plainest_way_is_taken_unless_another_is_asked_for():
    ways = known(fitted(pages="huge"), fitted())
    targets = ["latency_ms"]
    (plain,) = ways_to_run(ways, "pi", None, targets=targets)
    assert plain.settings.pages == "default"
    (huge,) = ways_to_run(ways, "pi", parse_settings("pages=huge"), targets=targets)
    assert huge.settings.pages == "huge"
    assert len(ways_to_run(ways, "pi", parse_settings("any"), targets=targets)) == 2
    with pytest.raises(UsageError, match="accepted: onnxruntime-fp32-t1-b1-huge"):
        ways_to_run(ways, "pi", parse_settings("pages=small"), targets=targets)


def test_a_way_that_is_the_only_one_is_taken_however_unusual():
    (huge,) = ways_to_run(known(fitted(pages="huge")), "pi", None, targets=["latency_ms"])
    assert huge.settings.pages == "huge"


def test_devices_whose_names_are_written_alike_are_told_apart():
    names = {"aaaaaaaa": "Pi 5", "bbbbbbbb": "pi-5", "cccccccc": "board"}
    predictors = [
        Fitted({**fitted().about, "device": name, "fingerprint": fingerprint})
        for fingerprint, name in names.items()
    ]
    found = known(*predictors)
    assert [one.device for one in found] == ["Pi 5-aaaaaa", "pi-5-bbbbbb", "board"]
    for device in (*(one.device for one in found), "Board"):
        named = device_of(found, device, this="", run=None)
        assert named.lower() == device.lower()


def test_a_way_whose_throughput_was_not_measured_counts_by_its_latency():
    ways = known(fitted(), fitted(workers=2), fitted(workers=2, target="throughput_per_s"))
    targets = targets_of(("latency", "throughput"))
    (plain,) = ways_to_run(ways, "pi", None, targets=targets)
    assert plain.settings == Settings()
    assert len(ways_to_run(ways, "pi", {}, targets=targets)) == 2


class Says:
    """A predictor that says the same of every row."""

    def __init__(self, mean, low, high):
        self.said = (mean, low, high)

    def balanced(self, found, *, level):
        return tuple(np.full(len(found.genes), value) for value in self.said)


def field_of(*latencies):
    ways = tuple(
        replace(way, predictors={"latency_ms": Says(*latency)})
        for way, latency in zip(
            known(*(fitted(threads=2**n) for n in range(len(latencies)))), latencies, strict=True
        )
    )
    space = hwnas.space("nano")
    return Field(base=space, accuracy=Says(0.5, 0.4, 0.6), devices={"pi": ways},
                 wanted=("latency", "throughput"))  # fmt: skip


def test_throughput_is_finite_however_poor_the_prediction_of_latency():
    field = field_of((2.0, 0.0, 9.0))
    (throughput,) = [q for q in field.quantities if q.name == "throughput"]
    mean, low, high = throughput.estimate(field.base.encode([field.base.largest()]))
    assert mean == [500.0]
    assert low == pytest.approx([1e3 / 9])
    assert 500.0 < high[0] < 1e5


def test_shares_are_of_the_largest_subnet_in_its_best_way():
    largest = _largest(field_of((4.0, 3.0, 5.0), (2.0, 1.0, 3.0), (3.0, 2.0, 4.0)))
    assert (largest["latency"], largest["throughput"]) == (2.0, 500.0)


def test_nothing_is_answered_where_a_rounding_error_leaves_nothing():
    one = np.ones(1)
    pool = Pool(codes=np.zeros((1, 3), np.int64), values=np.ones((1, 2)),
                estimates={"latency": Estimate(one, one, one)})  # fmt: skip
    bound = (Constraint(quantity="latency", most=0.999999999),)
    answer = answer_of(pool, "latency 1ms", bound, np.zeros(1, np.int64), 0.95)
    assert (answer.recommended, answer.listed) == (None, ())
