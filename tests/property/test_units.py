"""Values with units: what is printed is read back exactly, and nothing is guessed."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.errors import UsageError
from hwnas.io.units import (
    COUNT,
    DURATION_MS,
    ENERGY_MJ,
    RATE_PER_S,
    SHARE,
    SIZE_BYTES,
    Kind,
    format_range,
    format_value,
    parse,
    parse_range,
)

KINDS = (COUNT, DURATION_MS, ENERGY_MJ, RATE_PER_S, SHARE, SIZE_BYTES)
kinds = st.sampled_from(KINDS)
values = st.floats(min_value=0, max_value=1e15, allow_subnormal=False)


@given(kinds, values)
def test_round_trip(kind: Kind, value: float) -> None:
    assert parse(format_value(value, kind), kind) == value


@given(kinds, values, values | st.just(math.inf))
def test_range_round_trip(kind: Kind, first: float, second: float) -> None:
    low, high = sorted((first, second))
    assert parse_range(format_range((low, high), kind), kind) == (low, high)


@given(kinds, st.lists(values, min_size=1, max_size=5))
def test_list_round_trip(kind: Kind, numbers: list[float]) -> None:
    text = ",".join(format_value(number, kind) for number in numbers)
    assert [parse(part, kind) for part in text.split(",")] == numbers


@given(kinds, st.text(max_size=12))
def test_any_text_is_a_value_or_a_usage_error(kind: Kind, text: str) -> None:
    try:
        value = parse(text, kind)
    except UsageError:
        return
    assert 0 <= value < math.inf


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("25ms", DURATION_MS, 25),
        ("1.5 s", DURATION_MS, 1500),
        ("80us", DURATION_MS, 0.08),
        ("2min", DURATION_MS, 120_000),
        ("60%", SHARE, 0.6),
        ("0.6", SHARE, 0.6),
        ("200M", COUNT, 200e6),
        ("189.79M", COUNT, 189_790_000),
        ("3k", COUNT, 3000),
        ("2e8", COUNT, 200e6),
        ("1_000", COUNT, 1000),
        (".5M", COUNT, 500_000),
        ("40MB", SIZE_BYTES, 40e6),
        ("40MiB", SIZE_BYTES, 40 * 2**20),
        ("200/s", RATE_PER_S, 200),
    ],
)
def test_spellings(text: str, kind: Kind, value: float) -> None:
    assert parse(text, kind) == value


@pytest.mark.parametrize(
    ("text", "kind", "told"),
    [
        ("25", DURATION_MS, "has no unit"),
        ("25xs", DURATION_MS, "ms, us, ns, s, min, h"),
        ("200x", COUNT, "none, k, K, M, G, T"),
        ("-3", COUNT, "not a count"),
        ("nan", COUNT, "not a count"),
        ("", COUNT, "not a count"),
        ("1e999", COUNT, "too large"),
        ("1e99999999999999999999", COUNT, "too large for a count"),
        ("5 parsecs", ENERGY_MJ, "no unit of an energy; accepted: mJ, uJ, J"),
        ("40", SIZE_BYTES, "has no unit"),
        ("200", RATE_PER_S, "has no unit"),
        ("5,", COUNT, "no unit of a count"),
    ],
)
def test_mistakes_are_named(text: str, kind: Kind, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse(text, kind)


@pytest.mark.parametrize(
    ("text", "kind", "meant"),
    [("40mb", SIZE_BYTES, "40MB"), ("5 MS", DURATION_MS, "5ms"), ("2m", COUNT, "2M"),
     ("9MJ", ENERGY_MJ, "9mJ"), ("3gib", SIZE_BYTES, "3GiB")],
)  # fmt: skip
def test_wrong_capitals_are_recognised(text: str, kind: Kind, meant: str) -> None:
    with pytest.raises(UsageError, match=f"did you mean {meant}") as caught:
        parse(text, kind)
    assert caught.value.hint == f"write it such as {kind.example}"


def test_ranges() -> None:
    assert parse_range("5ms..20ms", DURATION_MS) == (5, 20)
    assert parse_range("200M..", COUNT) == (200e6, math.inf)
    assert parse_range("..1s", DURATION_MS) == (0, 1000)
    assert parse_range("0..300M", COUNT) == (0, 300e6)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("200M", "not a range"),
        ("..", "not a range"),
        ("300M..200M", "empty range"),
        ("200..300M", r"200M\.\.300M"),
        ("1M..2M..3M", "not|no unit"),
    ],
)
def test_mistaken_ranges_are_named(text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        parse_range(text, COUNT)
