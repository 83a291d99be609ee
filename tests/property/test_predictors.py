"""What must hold for any table."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hwnas.predictors.columns import Columns
from hwnas.predictors.intervals import Errors
from hwnas.predictors.sampling import stratified
from hwnas.predictors.scores import kendall, spearman
from hwnas.predictors.weights import simplex_weights

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, rows=st.integers(2, 40), genes=st.integers(0, 6), costs=st.integers(0, 4))
@settings(max_examples=50)
def test_columns_of_any_table_are_finite_and_centred(seed, rows, genes, costs):
    rng = np.random.default_rng(seed)
    table = rng.integers(0, rng.integers(1, 20), (rows, genes)).astype(float)
    price = rng.integers(0, 3, (rows, costs)) * rng.exponential(size=costs)
    columns = Columns.learn(table, price)
    for block in columns.blocks(table, price).values():
        assert np.isfinite(block).all()
    assert np.abs(columns.blocks(table, price)["counts"].mean(axis=0)).max(initial=0.0) < 1e-9
    assert columns.in_range(table, price).all()
    again = Columns.from_arrays(columns.arrays()).blocks(table, price)
    for name, block in columns.blocks(table, price).items():
        assert np.array_equal(block, again[name])


@given(seed=seeds, rows=st.integers(1, 60), members=st.integers(1, 5))
@settings(max_examples=50)
def test_weights_are_a_mixture(seed, rows, members):
    ratios = np.exp(np.random.default_rng(seed).normal(size=(rows, members)))
    weights = simplex_weights(ratios)
    assert (weights >= 0.0).all()
    assert np.isclose(weights.sum(), 1.0)


@given(seed=seeds, rows=st.integers(8, 200), level=st.floats(0.05, 0.95))
@settings(max_examples=50)
def test_bounds_are_ordered_and_grow_with_the_level(seed, rows, level):
    rng = np.random.default_rng(seed)
    errors = Errors.learn(rng.standard_t(3, rows), rng.exponential(size=rows) + 0.01)
    spread = rng.exponential(size=5)
    low, high = errors.bounds(spread, level=level)
    wide_low, wide_high = errors.bounds(spread, level=min(0.99, level + 0.04))
    assert (low <= high).all()
    assert (wide_low <= low).all()
    assert (wide_high >= high).all()


@given(seed=seeds, rows=st.integers(1, 20))
@settings(max_examples=50)
def test_probability_grows_with_the_limit(seed, rows):
    rng = np.random.default_rng(seed)
    errors = Errors.learn(rng.normal(size=rows + 8), np.ones(rows + 8))
    grid = np.sort(rng.normal(size=30) * 10.0)
    share = errors.share_at_most(grid, np.ones(30))
    assert (np.diff(share) >= 0.0).all()
    assert ((share >= 0.0) & (share <= 1.0)).all()


@given(values=st.lists(st.integers(0, 5), min_size=2, max_size=30), seed=seeds)
def test_rank_correlations_are_symmetric_and_blind_to_scale(values, seed):
    a = np.array(values, dtype=float)
    b = np.random.default_rng(seed).permutation(a)
    for correlation in (spearman, kendall):
        assert np.isclose(correlation(a, b), correlation(b, a))
        assert np.isclose(correlation(a, b), correlation(np.exp(a), 3.0 * b - 1.0))
        assert -1.0 - 1e-9 <= correlation(a, b) <= 1.0 + 1e-9


@given(seed=seeds, count=st.integers(1, 50), data=st.data())
def test_stratified_picks_are_distinct(seed, count, data):
    n = data.draw(st.integers(1, count))
    rng = np.random.default_rng(seed)
    picks = stratified(rng.integers(0, 5, count), n, rng)
    assert len(set(picks.tolist())) == n
