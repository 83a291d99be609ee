"""Budgets: what a person types, what it means, and what is refused."""

import math

import pytest

from hwnas.errors import UsageError
from hwnas.pipeline.deployments import parse_settings
from hwnas.search import Constraint
from hwnas.search.budgets import alternatives_of, joint_confidence, label, parse_budgets
from hwnas.search.constraints import upper_limits


@pytest.mark.parametrize(
    ("quantity", "text", "least", "most", "again"),
    [
        ("latency", "25ms", -math.inf, 25.0, "25ms"),
        ("latency", " 0.5 s", -math.inf, 500.0, "500ms"),
        ("latency", "5ms..20ms", 5.0, 20.0, "5ms..20ms"),
        ("latency", "5ms..", 5.0, math.inf, "5ms.."),
        ("latency", "..5ms", -math.inf, 5.0, "5ms"),
        ("macs", "200M", -math.inf, 2e8, "200M"),
        ("params", "2500k", -math.inf, 2.5e6, "2.5M"),
        ("size", "40MB", -math.inf, 4e7, "40MB"),
        ("memory", "1GiB", -math.inf, 2.0**30, "1.073741824GB"),
        ("energy", "50mJ", -math.inf, 50.0, "50mJ"),
        ("throughput", "200/s", 200.0, math.inf, "200/s"),
        ("throughput", "100/s..200/s", 100.0, 200.0, "100/s..200/s"),
    ],
)
def test_a_budget_is_bounds_in_base_units(quantity, text, least, most, again) -> None:
    (budget,) = alternatives_of(quantity, text)
    assert (budget.least, budget.most) == (least, most)
    assert budget.text == again
    assert alternatives_of(quantity, budget.text) == (budget,)


def test_a_share_is_one_of_what_the_largest_has() -> None:
    (budget,) = alternatives_of("latency", "60%")
    assert budget.text == "60%"
    constraint = budget.constraint(largest=50.0, confidence=0.9)
    assert constraint == Constraint(quantity="latency", most=30.0, confidence=0.9)
    (band,) = alternatives_of("macs", "40%..50%")
    assert (band.least, band.most, band.text) == (0.4, 0.5, "40%..50%")


def test_alternatives_and_devices_are_combined() -> None:
    found = parse_budgets({"latency": ("a=5ms,10ms", "b=80ms"), "macs": ("200M",), "size": ()})
    assert [label(together) for together in found] == [
        "latency:a 5ms, latency:b 80ms, macs 200M",
        "latency:a 10ms, latency:b 80ms, macs 200M",
    ]
    assert parse_budgets({"latency": ()}) == ((),)
    assert parse_budgets({"latency": "5ms,60%"}) == parse_budgets({"latency": ["5ms,60%"]})


def test_all_bounds_together_hold_with_the_asked_probability() -> None:
    one = joint_confidence([Constraint(quantity="latency", most=5.0)])
    assert one[0].confidence == 0.95
    several = joint_confidence(
        [
            Constraint(quantity="latency:a", most=5.0, least=1.0),
            Constraint(quantity="energy:a", most=5.0),
            Constraint(quantity="macs", most=5.0),
        ]
    )
    assert several[0].confidence ** 2 * several[1].confidence == pytest.approx(0.95)
    assert several[2].confidence == 0.95


def test_upper_limits_are_the_tightest_and_leave_out_lower_bounds() -> None:
    assert upper_limits(
        [
            Constraint(quantity="latency", most=5.0, least=1.0),
            Constraint(quantity="latency", most=4.0),
            Constraint(quantity="throughput", least=100.0),
        ]
    ) == {"latency": 4.0}


@pytest.mark.parametrize(
    ("quantity", "text", "message"),
    [
        ("latency", "25", "has no unit"),
        ("latency", "25m", "'m', which is no unit of a duration"),
        ("latency", "", "is not a duration"),
        ("latency", "5ms,,6ms", "is not a duration"),
        ("latency", "20ms..5ms", "empty range"),
        ("latency", "=5ms", "is no device"),
        ("macs", "server=5M", "is no device that a budget of macs could be for"),
        ("throughput", "200", "has no unit"),
        ("latenzy", "5ms", "unknown quantity 'latenzy'; did you mean latency"),
    ],
)
def test_what_is_no_budget_is_refused(quantity, text, message) -> None:
    with pytest.raises(UsageError) as caught:
        alternatives_of(quantity, text)
    assert message in caught.value.message


def test_a_quantity_has_one_budget_per_device() -> None:
    with pytest.raises(UsageError, match="given twice for the device") as caught:
        parse_budgets({"latency": ("5ms", "6ms")})
    assert "5ms,6ms" in caught.value.hint
    with pytest.raises(UsageError, match="given twice for pi5"):
        parse_budgets({"latency": ("pi5=5ms", "pi5=6ms")})


def test_settings_are_any_or_named() -> None:
    assert parse_settings("any") == {}
    assert parse_settings("threads=1, precision=fp32") == {"threads": "1", "precision": "fp32"}
    for text in ("threads", "threads=", "thread=1", "any,threads=1"):
        with pytest.raises(UsageError, match="is no setting"):
            parse_settings(text)
