"""Parts of the report: escaping, axes, labels, words, budgets, thinning."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.pipeline.fronts import Answer, Estimate
from hwnas.report.baselines import Baseline, best_of
from hwnas.report.html import Html, element, joined
from hwnas.report.labels import Box, Label, place, text_width
from hwnas.report.plot import stepped
from hwnas.report.promises import foretold_ms
from hwnas.report.scales import scale_for, tick_labels
from hwnas.report.training import smoothed, thinned
from hwnas.report.view import MOST_SPOTS, Spot, budget_words, limits_in, limits_of
from hwnas.report.view import thinned as thinned_spots
from hwnas.report.words import (
    MINUS,
    count,
    digits,
    interval,
    listed,
    milliseconds,
    percent,
    plural,
    quantity,
)
from hwnas.search.budgets import label, parse_budgets

FINITE = st.floats(1e-3, 1e6, allow_nan=False)


def test_text_is_escaped_once_and_markup_is_not() -> None:
    inner = element("b", None, "a < b & c")
    assert inner == "<b>a &lt; b &amp; c</b>"
    assert element("p", {"title": 'x"y', "hidden": True, "id": None}, inner, "<i>") == (
        '<p title="x&quot;y" hidden><b>a &lt; b &amp; c</b>&lt;i&gt;</p>'
    )
    assert joined(Html("<hr>"), "<hr>") == "<hr>&lt;hr&gt;"


@pytest.mark.parametrize(
    ("devices", "measured", "expected"),
    [
        ({"pi": "p"}, {"fingerprint": "p"}, 8.0),
        ({"pi": "p"}, {"fingerprint": "e"}, None),  # no promise was made of this device
        ({"pi": "p"}, None, 8.0),
        (None, {"fingerprint": "e"}, 8.0),  # an older manifest does not say of which
    ],
)
def test_a_promise_stands_beside_what_the_same_device_took(devices, measured, expected) -> None:
    promised = {"latency": {"mean": 8.0, "low": 7.0, "high": 9.0}, "devices": devices}
    assert foretold_ms(promised, measured) == expected


def test_coordinates_are_short_and_never_exponents() -> None:
    assert element("a", {"x": 1.0, "y": -0.001, "z": 1234.5678}) == '<a x="1" y="0" z="1234.57"/>'


@given(st.lists(FINITE, min_size=1, max_size=20), st.booleans(), st.integers(3, 12))
def test_every_value_and_tick_lies_on_the_axis(values: list[float], zero: bool, most: int) -> None:
    scale = scale_for(values, start=100.0, end=20.0, zero=zero)
    ticks = scale.ticks(most)
    for value in (*values, *ticks):
        assert 20.0 - 1e-6 <= scale(value) <= 100.0 + 1e-6
    places = [scale(tick) for tick in ticks]
    assert places == sorted(places, reverse=True)
    assert len(set(tick_labels(ticks))) == len(ticks)
    # None of the values is squeezed to the end of the axis by being outside of it.
    assert scale.low <= min(values)
    assert max(values) <= scale.high


@pytest.mark.parametrize(
    ("values", "logarithmic"), [((2.0, 8.0), False), ((1.0, 80.0), True), ((0.0, 80.0), False)]
)
def test_wide_ranges_are_logarithmic(values: tuple[float, float], logarithmic: bool) -> None:
    assert scale_for(values, start=0.0, end=1.0).logarithmic is logarithmic


def test_ticks_are_round_and_share_their_decimals() -> None:
    scale = scale_for([1.93, 7.41], start=0.0, end=700.0)
    assert tick_labels(scale.ticks(8)) == ["2", "3", "4", "5", "6", "7"]
    assert tick_labels([0.5, 0.75, 1.0]) == ["0.50", "0.75", "1.00"]
    assert tick_labels([5e6, 1e7]) == ["5M", "10M"]


@given(
    st.lists(
        st.tuples(st.floats(0, 400), st.floats(0, 300), st.text("ab %.1", min_size=1, max_size=18)),
        max_size=25,
    )
)
def test_labels_never_overlap_and_stay_inside(marks: list[tuple[float, float, str]]) -> None:
    bounds = Box(left=0, top=0, right=400, bottom=300)
    taken = [Box(left=100, top=100, right=160, bottom=140)]
    labels = [Label(text=text, x=x, y=y) for x, y, text in marks]
    placed = place(labels, points=[(x, y) for x, y, _ in marks], bounds=bounds, taken=taken)
    boxes = [*taken, *(found.box for found in placed)]
    for number, box in enumerate(boxes):
        assert box.within(bounds)
        assert not any(box.overlaps(other) for other in boxes[:number])


def test_a_label_with_room_stands_beside_its_mark() -> None:
    (found,) = place(
        [Label(text="front", x=50, y=50)],
        points=[],
        bounds=Box(left=0, top=0, right=400, bottom=300),
    )
    assert found.box.left == pytest.approx(57.0)
    assert found.box.right - found.box.left == pytest.approx(text_width("front"))
    assert "leader" not in found.draw()


def test_values_have_few_digits_and_a_unit_that_does_not_wrap() -> None:
    assert digits(52_816.0) == "52,800"
    assert digits(4.2e-7) == "0.000000420"
    assert digits(-9e-5, 1) == f"{MINUS}0.00009"
    assert milliseconds(4.6132) == "4.61\u00a0ms"
    assert milliseconds(0.04) == "0.0400\u00a0ms"
    assert milliseconds(123.4) == "123\u00a0ms"
    assert percent(0.8843) == "88.4\u00a0%"
    assert count(12_345_678) == "12.3\u00a0M"
    assert count(950) == "950"
    assert quantity("size", 1_650_000) == "1.65\u00a0MB"
    assert quantity("latency:pi5", 80) == "80.0\u00a0ms"
    assert interval("accuracy", 0.879, 0.889) == "87.9–88.9\u00a0%"
    assert interval("latency", 0.2041, 0.2044) == "0.204\u00a0ms"
    assert [count(value) for value in (999.4, 999.6, 999_990)] == [
        "999", "1.00\u00a0k", "1.00\u00a0M",
    ]  # fmt: skip
    assert interval("macs", 9.5e5, 2e6) == "950\u00a0k–2.00\u00a0M"
    assert listed(["a", "b", "c"]) == "a, b and c"
    assert plural(1, "subnet") == "1\u00a0subnet"
    assert plural(2000, "subnet") == "2,000\u00a0subnets"


@pytest.mark.parametrize(
    ("budget", "name", "limits"),
    [
        ("latency 25ms", "latency", [25.0]),
        ("latency 5ms..20ms", "latency", [20.0]),
        ("latency 0.5s", "latency", [500.0]),
        ("latency 60%", "latency", []),
        ("latency 25ms, macs 200M", "macs", [200e6]),
        ("latency server=25ms, latency pi5=80ms", "latency:pi5", [80.0]),
        ("latency:pi5 80ms", "latency:pi5", [80.0]),
        ("latency:my board 80ms, latency:my pi 90ms", "latency:my pi", [90.0]),
        ("", "latency", []),
        ("<script>", "latency", []),
    ],
)
def test_limits_are_read_from_budgets(budget: str, name: str, limits: list[float]) -> None:
    assert limits_in(budget, name) == limits


def test_shares_are_limits_once_they_are_resolved() -> None:
    answer = Answer(
        budget="latency 60%, macs 40%", recommended=None, knee=None, reason="", feasible=0,
        limits={"latency": 4.2, "macs": 2e6},
    )  # fmt: skip
    assert limits_of(answer, "latency") == [4.2]
    assert limits_of(answer, "macs") == [2e6]
    assert limits_of(replace(answer, limits={}), "latency") == []
    assert limits_of(replace(answer, limits={}, budget="latency 5ms"), "latency") == [5.0]


def test_budgets_in_words() -> None:
    assert budget_words("latency 25ms") == "latency up to 25\u00a0ms"
    assert budget_words("latency 25ms, macs 200M") == (
        "latency up to 25\u00a0ms and MACs up to 200\u00a0M"
    )
    assert budget_words("latency 60%") == "latency up to 60\u00a0% of the largest"
    assert budget_words("latency 60%", {"latency": 4.2}) == (
        "latency up to 60\u00a0% of the largest (4.20\u00a0ms)"
    )
    assert budget_words("") == ""
    assert budget_words("quick") == "quick"


@pytest.mark.parametrize(
    ("quantity", "typed", "said"),
    [
        ("latency", "25ms", "latency up to 25 ms"),
        ("latency", "..25ms", "latency up to 25 ms"),
        ("latency", "5ms..20ms", "latency from 5 ms to 20 ms"),
        ("latency", "my board=25ms", "latency on my board up to 25 ms"),
        ("latency", "40%..60%", "latency from 40 % to 60 % of the largest"),
        ("macs", "200M..", "MACs of at least 200 M"),
        ("throughput", "200/s", "throughput of at least 200 /s"),
        ("throughput", "60%", "throughput of at least 60 % of the largest"),
        ("throughput", "pi5=200/s..300/s", "throughput on pi5 from 200 /s to 300 /s"),
    ],
)
def test_a_budget_that_was_typed_is_told_as_it_was_meant(
    quantity: str, typed: str, said: str
) -> None:
    (budgets,) = parse_budgets({quantity: typed})
    assert budget_words(label(budgets)).replace("\u00a0", " ") == said


def test_the_best_of_many_is_a_front() -> None:
    assert best_of([3.0, 1.0, 2.0, 2.0], [0.9, 0.5, 0.4, 0.7]) == (
        (1.0, 0.5),
        (2.0, 0.7),
        (3.0, 0.9),
    )
    baseline = Baseline(name="x", points=((1.0, 0.5), (2.0, 0.7)), tried=4)
    assert baseline.best_within(1.5) == 0.5
    assert baseline.best_within(0.5) is None


def test_a_front_is_a_staircase() -> None:
    assert stepped([(0, 5), (2, 3)]) == [(0, 5), (2, 5), (2, 3)]


def test_many_spots_are_thinned_evenly_and_some_are_kept() -> None:
    spots = [
        Spot(
            index=index,
            digest=str(index),
            x=Estimate(mean=float(index), low=0.0, high=1.0),
            y=Estimate(mean=0.5, low=0.4, high=0.6),
        )
        for index in range(5000)
    ]
    kept = thinned_spots(spots, {17, 4711})
    assert MOST_SPOTS <= len(kept) <= MOST_SPOTS + 2
    assert {17, 4711, 0, 4999} <= {spot.index for spot in kept}
    gaps = [b.index - a.index for a, b in pairwise(kept)]
    assert max(gaps) <= math.ceil(5000 / (MOST_SPOTS - 1)) + 1


def test_long_curves_are_thinned_to_medians() -> None:
    points = [(float(step), 1.0 if step % 50 else 100.0) for step in range(10_000)]
    kept = thinned(points)
    assert len(kept) <= 240
    assert {value for _, value in kept} == {1.0}
    assert thinned(points[:10]) == points[:10]
    assert smoothed([(0.0, 1.0), (1.0, 9.0), (2.0, 1.0)])[1] == (1.0, 1.0)
