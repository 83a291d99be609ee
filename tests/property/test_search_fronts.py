"""Ranking, hypervolume and free boxes against definitions spelled out slowly."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hwnas.search.front import knee
from hwnas.search.ranking import crowding, first_front, ranks
from hwnas.search.volume import free_boxes, gains, hypervolume, minimal

GRID = 6


def grids(most_rows=12, objectives=(1, 2, 3, 4)):
    """Small whole numbers, so that ties and equal rows are common."""
    return st.tuples(st.integers(1, most_rows), st.sampled_from(objectives)).flatmap(
        lambda shape: arrays(np.float64, shape, elements=st.integers(0, GRID - 1).map(float))
    )


def dominates(a, b):
    return all(a <= b) and any(a < b)


def slow_ranks(values):
    left, rank, result = set(range(len(values))), 0, [0] * len(values)
    while left:
        front = {i for i in left if not any(dominates(values[j], values[i]) for j in left)}
        for i in front:
            result[i] = rank
        left -= front
        rank += 1
    return result


def cells(size):
    """The corners of the unit cells of the grid, whose volumes add up."""
    return np.array(list(product(range(GRID), repeat=size)), float)


def slow_volume(values):
    corners = cells(values.shape[1])
    return sum(any((value <= corner).all() for value in values) for corner in corners)


@given(grids())
def test_ranks_are_those_of_the_definition(values):
    assert ranks(values).tolist() == slow_ranks(values)


@given(grids())
def test_the_first_front_is_rank_zero(values):
    assert first_front(values).tolist() == [rank == 0 for rank in slow_ranks(values)]


@given(grids())
def test_minimal_rows_are_the_first_front_without_repeats(values):
    expected = np.unique(values[first_front(values)], axis=0)
    assert np.array_equal(minimal(values), expected)


@given(grids(), st.integers(1, 12))
def test_sorting_may_stop_early_without_changing_what_is_ranked(values, enough):
    complete, early = ranks(values), ranks(values, enough=enough)
    reached = np.sort(complete)[min(enough, len(values)) - 1]
    assert np.array_equal(early[complete <= reached], complete[complete <= reached])
    assert (early[complete > reached] > reached).all()


@given(grids(most_rows=8))
def test_hypervolume_counts_the_dominated_cells(values):
    reference = np.full(values.shape[1], float(GRID))
    assert hypervolume(values, reference) == pytest.approx(slow_volume(values))


@given(grids(most_rows=8), st.data())
def test_hypervolume_never_shrinks_and_grows_by_the_gain(values, data):
    size = values.shape[1]
    point = data.draw(arrays(np.float64, size, elements=st.integers(0, GRID).map(float)))
    reference = np.full(size, float(GRID))
    before, after = (hypervolume(v, reference) for v in (values, np.vstack([values, point])))
    assert after >= before
    assert gains(point[None], values, reference)[0] == pytest.approx(after - before)


@given(grids(most_rows=8))
def test_free_boxes_tile_what_is_not_dominated(values):
    size = values.shape[1]
    low, high = free_boxes(minimal(values), np.full(size, float(GRID)))
    for corner in cells(size):
        inside = ((low <= corner) & (corner < high)).all(axis=1).sum()
        dominated = any((value <= corner).all() for value in values)
        assert inside == (not dominated)


@given(grids())
def test_crowding_of_the_ends_of_a_front_is_infinite(values):
    rank = ranks(values)
    distance = crowding(values, rank)
    assert (distance >= 0).all()
    for front in np.unique(rank):
        for column in values[rank == front].T:
            ends = distance[rank == front][column == column.min()]
            assert np.isinf(ends).any()


@given(grids())
def test_the_knee_is_not_dominated(values):
    assert first_front(values)[knee(values)]


@pytest.mark.parametrize("objectives", [2, 3, 4])
def test_hypervolume_agrees_with_pymoo(objectives):
    from pymoo.indicators.hv import HV

    rng = np.random.default_rng(objectives)
    values = rng.random((40, objectives))
    reference = np.full(objectives, 1.1)
    assert hypervolume(values, reference) == pytest.approx(HV(ref_point=reference)(values))


def test_crowding_of_an_inner_row_is_the_share_of_its_gap():
    values = np.array([[0.0, 4.0], [1.0, 2.0], [4.0, 0.0]])
    assert crowding(values, ranks(values))[1] == pytest.approx(4 / 4 + 4 / 4)


def test_the_knee_bulges_towards_the_ideal_corner():
    values = np.array([[0.0, 10.0], [1.0, 2.0], [6.0, 1.0], [10.0, 0.0]])
    assert knee(values) == 1


def test_points_beyond_the_reference_do_not_count():
    values = np.array([[0.5, 2.0], [2.0, 0.5]])
    assert hypervolume(values, np.array([1.0, 1.0])) == 0.0
    assert hypervolume(np.zeros((0, 2)), np.array([1.0, 1.0])) == 0.0


def test_tables_of_very_many_fronts_are_ranked_all_the_same():
    rng = np.random.default_rng(0)
    chain = np.repeat(np.arange(300.0)[:, None], 2, axis=1)
    noisy = np.vstack([chain, chain[::7], chain + rng.integers(-3, 3, chain.shape)])
    shuffled = noisy[rng.permutation(len(noisy))]
    found = ranks(shuffled)
    assert found.max() > 64
    for rank in range(1, found.max() + 1):
        ahead, front = shuffled[found == rank - 1], shuffled[found == rank]
        assert first_front(front).all()
        assert all(any(dominates(a, row) for a in ahead) for row in front)
