import numpy as np
import pytest

from hwnas.profiling.statistics import half_width, summarise, trimmed


def test_outliers_are_trimmed():
    times = np.array([1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 5.0])
    assert 5.0 not in trimmed(times)
    assert len(trimmed(times)) == 7


def test_a_few_times_do_not_outvote_one():
    assert trimmed(np.array([1.0, 1.001, 1.3])).tolist() == [1.0, 1.001, 1.3]


def test_equal_times_are_all_kept():
    assert len(trimmed(np.full(9, 2.5))) == 9


def test_times_next_to_many_equal_ones_are_no_outliers():
    times = np.array([1.0] * 8 + [1.004, 1.2])
    assert trimmed(times).tolist() == [1.0] * 8 + [1.004]


def test_percentiles_are_those_of_all_runs():
    times = np.array([1.0] * 95 + [9.0] * 5)
    summary = summarise(times)
    assert summary.median == 1.0
    assert summary.p99 == pytest.approx(9.0)
    assert summary.kept_share == pytest.approx(0.95)


@pytest.mark.parametrize("n", [2, 3, 4, 6, 7, 8, 9, 12, 20, 60])
def test_the_half_width_covers_the_true_median(n: int):
    rng = np.random.default_rng(1)
    hits = 0
    for _ in range(1000):
        summary = summarise(rng.normal(10.0, 0.2, size=n))
        hits += abs(summary.median / 10.0 - 1) <= summary.half_width
    assert 0.91 <= hits / 1000 <= 0.99


def test_half_width_shrinks_with_the_root_of_n():
    rng = np.random.default_rng(2)
    times = rng.normal(10.0, 0.2, size=4000)
    assert half_width(times[:100]) / half_width(times) == pytest.approx(40**0.5, rel=0.2)


@pytest.mark.parametrize("times", [[3.0], [0.0, 0.0]])
def test_nothing_is_known_from_too_little(times):
    assert half_width(np.array(times)) == 1.0
