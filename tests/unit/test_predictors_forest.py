"""Flat forests answer what scikit-learn's forests answer."""

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from hwnas.predictors.forest import Walker, flatten, grow_extra, grow_random


def rows(count, seed=0, columns=6):
    return np.random.default_rng(seed).normal(size=(count, columns)).astype(np.float32)


def target(x):
    return 5.0 + 3.0 * x[:, 0].astype(np.float64) + np.abs(x[:, 1]) * x[:, 2]


@pytest.mark.parametrize("kind", [ExtraTreesRegressor, RandomForestRegressor])
@pytest.mark.parametrize("leaf", [1, 4])
def test_flat_forest_equals_scikit_learn(kind, leaf):
    x, new = rows(150), rows(400, seed=1)
    model = kind(20, min_samples_leaf=leaf, random_state=3).fit(x, target(x))
    forest = flatten(model, 5.0)
    np.testing.assert_allclose(forest.leaves(new).mean(axis=1), model.predict(new), atol=2e-6)
    votes = Walker(forest)(new)
    np.testing.assert_allclose(votes.mean, model.predict(new), atol=1e-5)
    each = np.stack([tree.predict(new) for tree in model.estimators_])
    np.testing.assert_allclose(votes.spread, each.std(axis=0), atol=2e-4)


def test_thresholds_between_neighbouring_floats_keep_their_side():
    low = np.float32(1.0)
    high = np.nextafter(low, np.float32(2.0))
    x = np.array([[low], [high]] * 4, dtype=np.float32)
    y = np.array([0.0, 1.0] * 4)
    model = ExtraTreesRegressor(8, random_state=0).fit(x, y)
    votes = Walker(flatten(model, 0.0))(x)
    np.testing.assert_allclose(votes.mean, model.predict(x), atol=1e-7)


def test_one_row_is_the_same_alone_and_in_a_batch():
    forest = grow_extra(rows(80), target(rows(80)), trees=16, leaf=2, seed=0)
    walk, new = Walker(forest), rows(300, seed=2)
    together = walk(new).mean
    alone = np.concatenate([walk(new[i : i + 1]).mean for i in range(300)])
    np.testing.assert_allclose(alone, together, rtol=1e-6)


def test_a_forest_of_bare_roots():
    x = rows(6)
    forest = grow_random(x, target(x), trees=4, leaf=6, seed=0)
    assert (forest.feature == -1).all()
    np.testing.assert_allclose(Walker(forest)(x).mean, forest.leaves(x).mean(axis=1), rtol=1e-6)


def test_same_seed_same_trees():
    x = rows(60)
    first = grow_random(x, target(x), trees=5, leaf=2, seed=7, share=0.5).arrays()
    again = grow_random(x, target(x), trees=5, leaf=2, seed=7, share=0.5).arrays()
    other = grow_random(x, target(x), trees=5, leaf=2, seed=8, share=0.5).arrays()
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(first["threshold"], other["threshold"])
