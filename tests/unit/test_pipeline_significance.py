"""Intervals of differences: against scipy's tests, and by how often they hold the truth."""

import numpy as np
import pytest
from scipy.stats import wilcoxon

from hwnas.pipeline.significance import (
    Interval,
    most_lost,
    shares_difference,
    signed_rank,
    too_few_hold,
)


@pytest.mark.parametrize("n", [6, 7, 12, 30, 59, 61, 120])
def test_significance_is_that_of_wilcoxons_test(n: int) -> None:
    rng = np.random.default_rng(n)
    verdicts = set()
    for shift in np.linspace(0, 1.2, 40):
        values = rng.normal(shift, 1, n)
        interval = signed_rank(values)
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= interval.centre <= interval.high
        p = wilcoxon(values, method="exact" if n <= 60 else "asymptotic").pvalue
        if abs(p - 0.05) > 0.002:  # the normal approximation rounds
            assert (p < 0.05) == (not interval.low <= 0 <= interval.high)
            verdicts.add(p < 0.05)
    assert verdicts == {True, False} or n < 8


def test_few_pairs_decide_nothing() -> None:
    assert signed_rank([1.0] * 5) == Interval(centre=1.0)
    assert signed_rank([1.0] * 6) == Interval(centre=1.0, low=1.0, high=1.0)


def test_an_outlier_does_little() -> None:
    values = [0.01 + 0.001 * k for k in range(20)]
    with_outlier = signed_rank([*values[:-1], 50.0])
    assert with_outlier.centre == pytest.approx(signed_rank(values).centre, abs=0.002)


def test_shares_hold_the_truth_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(2000):
        a, b = rng.binomial(400, 0.9) / 400, rng.binomial(300, 0.93) / 300
        interval = shares_difference((a, 400), (b, 300))
        held += interval.low <= 0.03 <= interval.high
    assert 0.935 <= held / 2000 <= 0.968


@pytest.mark.parametrize("pairs", [100, 500, 5000])
@pytest.mark.parametrize(("lost", "gained"), [(0.018, 0.008), (0.03, 0.03), (0.004, 0.001)])
def test_what_is_lost_at_most_holds_as_often_as_it_says(pairs, lost, gained) -> None:
    rng = np.random.default_rng(0)
    counts = rng.multinomial(pairs, [lost, gained, 1 - lost - gained], 4000)[:, :2].tolist()
    held = sum(most_lost(a, b, pairs=pairs) >= lost - gained for a, b in counts) / 4000
    assert held > 0.93


def test_few_pairs_without_a_change_prove_little() -> None:
    found = [most_lost(0, 0, pairs=pairs) for pairs in (100, 500, 5000)]
    assert found[0] > 0.005 > found[1] > 10 * found[2] * 0.9


def test_more_images_narrow_the_interval() -> None:
    few, many = (shares_difference((0.9, n), (0.92, n)) for n in (100, 10_000))
    assert few.low < 0 < few.high
    assert many.low > 0


def test_errors_widen_an_interval() -> None:
    interval = Interval(centre=1.0, low=0.7, high=1.4)
    wider = interval.widened(0.4)
    assert (wider.low, wider.high) == (pytest.approx(0.5), pytest.approx(1 + 0.32**0.5))
    assert interval.stretched(0.5) == Interval(centre=1.0, low=0.7 - 0.5, high=1.4 + 0.5)
    assert Interval(centre=1.0).widened(1.0) == Interval(centre=1.0)
    assert Interval(centre=1.0).stretched(1.0) == Interval(centre=1.0)


def test_intervals_that_hold_too_rarely() -> None:
    assert too_few_hold(0, 3)
    assert not too_few_hold(1, 3)
    assert not too_few_hold(0, 1)
    assert not too_few_hold(0, 0)
    assert too_few_hold(5, 10)
    assert not too_few_hold(9, 10)
