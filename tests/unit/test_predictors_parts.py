"""Columns, processes, weights, intervals and scores, each on its own."""

import numpy as np
import pytest
from scipy.stats import kendalltau, spearmanr

from hwnas.predictors.columns import Columns
from hwnas.predictors.intervals import Errors
from hwnas.predictors.posterior import Posterior
from hwnas.predictors.process import Process, Recipe, fit_process
from hwnas.predictors.scores import kendall, score, spearman
from hwnas.predictors.stack import centred
from hwnas.predictors.weights import simplex_weights


def described(count, seed=0):
    rng = np.random.default_rng(seed)
    genes = rng.integers(0, 4, (count, 8)).astype(float)
    costs = np.stack([genes.sum(axis=1), (genes**2) @ np.arange(1.0, 9.0)], axis=1)
    return genes, costs


class TestColumns:
    def test_counts_are_counts_up_to_scale_and_shift(self):
        genes, costs = described(100)
        columns = Columns.learn(genes, costs)
        counts = columns.blocks(genes, costs)["counts"]
        wanted = np.stack([(genes == v).sum(axis=1) for v in range(4)], axis=1) / np.sqrt(8)
        np.testing.assert_allclose(counts, wanted - wanted.mean(axis=0), atol=1e-12)

    def test_trends_tell_early_from_late(self):
        genes, costs = described(200)
        columns = Columns.learn(genes, costs)
        early, late = np.zeros((1, 8)), np.zeros((1, 8))
        early[0, :2], late[0, -2:] = 3.0, 3.0
        pair = columns.blocks(np.vstack([early, late]), np.zeros((2, 2)))
        np.testing.assert_allclose(pair["counts"][0], pair["counts"][1])
        assert np.abs(pair["trends"][0] - pair["trends"][1]).max() > 0.5

    def test_constant_columns_are_left_out(self):
        genes, costs = described(50)
        genes[:, 3] = 2.0
        costs = np.hstack([costs, np.full((50, 1), 7.0)])
        blocks = Columns.learn(genes, costs).blocks(genes, costs)
        assert blocks["genes"].shape[1] == 7
        assert blocks["costs"].shape[1] == 2
        assert blocks["choices"].shape[1] == 28

    def test_genes_with_many_values_are_numbers(self):
        rng = np.random.default_rng(0)
        genes = np.stack([rng.integers(0, 3, 90), rng.uniform(size=90)], axis=1)
        blocks = Columns.learn(genes, np.zeros((90, 0))).blocks(genes, np.zeros((90, 0)))
        assert blocks["choices"].shape[1] == 4
        np.testing.assert_allclose(blocks["choices"][:, 3], blocks["genes"][:, 1])

    def test_range(self):
        genes, costs = described(60)
        columns = Columns.learn(genes, costs)
        assert columns.in_range(genes, costs).all()
        assert not columns.in_range(genes + 4.0, costs).any()
        assert not columns.in_range(genes, costs * 3.0 + 1000.0).any()


class TestProcess:
    def setup_method(self):
        genes, costs = described(120)
        columns = Columns.learn(genes, costs)
        self.blocks = columns.blocks(genes, costs)
        self.y = 10.0 + costs[:, 0] + 0.1 * costs[:, 1]
        self.folds = np.arange(120) % 5

    @pytest.mark.parametrize("logarithmic", [False, True])
    def test_a_linear_law_is_found_through_outliers(self, logarithmic):
        dirty = self.y.copy()
        dirty[::10] *= 1.5
        recipe = Recipe(linear=("costs", "choices", "counts"), logarithmic=logarithmic)
        process, _ = fit_process(recipe, self.blocks, dirty, self.folds, seed=0)
        error = np.abs(process.predict(self.blocks) / self.y - 1.0)
        assert np.median(error) < (0.02 if logarithmic else 0.005)
        assert error.mean() < (0.03 if logarithmic else 0.01)

    def test_cross_fitted_predictions_have_not_seen_their_rows(self):
        noise = np.random.default_rng(0).normal(size=120)
        y = 100.0 + noise  # nothing to learn: seeing the row would show as correlation
        recipe = Recipe(linear=("costs", "choices"), radial=("genes",))
        _, held = fit_process(recipe, self.blocks, y, self.folds, seed=0)
        assert np.corrcoef(held, y)[0, 1] < 0.3

    def test_stored_arrays_predict_the_same(self):
        recipe = Recipe(linear=("costs",), extra=("logs",), radial=("genes", "costs"))
        process, _ = fit_process(recipe, self.blocks, self.y, self.folds, seed=0)
        again = Process.from_arrays(recipe, process.arrays())
        assert np.array_equal(process.predict(self.blocks), again.predict(self.blocks))

    def test_few_anchors_stand_for_many_rows(self, monkeypatch):
        recipe = Recipe(linear=("costs",), radial=("genes", "counts"))
        y = self.y * (1.0 + 0.2 * np.sin(self.blocks["genes"][:, 0] * self.blocks["genes"][:, 1]))
        whole, _ = fit_process(recipe, self.blocks, y, self.folds, seed=0)
        monkeypatch.setattr("hwnas.predictors.process.ANCHORS", (90, 90))
        reduced, _ = fit_process(recipe, self.blocks, y, self.folds, seed=0)
        assert len(whole.anchors) == 120
        assert len(reduced.anchors) == 90
        apart = np.abs(reduced.predict(self.blocks) / whole.predict(self.blocks) - 1.0)
        assert apart.mean() < 0.02
        assert apart.mean() < 0.2 * np.abs(whole.predict(self.blocks) / y.mean() - 1.0).mean()


class TestPosterior:
    def setup_method(self):
        genes, costs = described(60)
        self.genes, self.costs = genes, costs
        self.columns = Columns.learn(genes, costs)
        self.blocks = self.columns.blocks(genes, costs)
        y = (10.0 + costs[:, 0]) * (1.0 + 0.05 * np.random.default_rng(1).normal(size=60))
        recipe = Recipe(linear=("costs", "choices"), radial=("genes",))
        self.process, _ = fit_process(recipe, self.blocks, y, np.arange(60) % 5, seed=0)

    def given(self, rows):
        return Posterior.given(self.process, {n: b[rows] for n, b in self.blocks.items()})

    def test_a_row_left_out_is_one_that_was_never_measured(self):
        everything, rows = self.given(np.arange(60)).left_out(), np.arange(60)
        for row in (0, 17, 59):
            left = self.given(rows[rows != row]).left(self.blocks)
            assert everything[row] == pytest.approx(left[row], rel=1e-3, abs=1e-5)

    def test_variances_are_the_diagonal_and_fall_with_rows(self):
        some, more = self.given(np.arange(20)), self.given(np.arange(40))
        np.testing.assert_allclose(
            some.left(self.blocks), np.diag(some.covariance(self.blocks)), rtol=1e-3, atol=1e-4
        )
        assert (more.left(self.blocks) <= some.left(self.blocks) + 1e-6).all()

    def test_a_choice_never_seen_is_less_certain(self):
        genes = self.genes[:5].copy()
        genes[:, 2] = 1.5
        assert self.columns.blocks(genes, self.costs[:5])["unseen"].tolist() == [[1.0]] * 5
        seen = {**self.columns.blocks(genes, self.costs[:5]), "unseen": np.zeros((5, 1))}
        unseen = {**seen, "unseen": np.ones((5, 1))}
        posterior = self.given(np.arange(60))
        assert (posterior.left(unseen) > posterior.left(seen)).all()

    def test_what_was_measured_is_never_far(self):
        for rows in (np.arange(60), np.arange(3)):
            known = {name: block[rows] for name, block in self.blocks.items()}
            assert not self.given(rows).far(known).any()


class TestWeights:
    def test_the_right_member_gets_the_weight(self):
        rng = np.random.default_rng(0)
        noise = rng.normal(size=(400, 3)) * [0.01, 0.2, 0.3]
        weights = simplex_weights(1.0 + noise)
        assert weights.sum() == pytest.approx(1.0)
        assert weights[0] > 0.9
        assert (weights >= 0.0).all()

    def test_opposite_errors_are_mixed(self):
        error = 0.1 + 0.01 * np.random.default_rng(0).normal(size=(300, 2))
        weights = simplex_weights(1.0 + error * [1.0, -1.0])
        assert weights == pytest.approx([0.5, 0.5], abs=0.05)

    def test_one_member(self):
        assert simplex_weights(np.full((20, 1), 1.1)) == pytest.approx([1.0])


class TestErrors:
    def test_coverage_on_new_rows(self):
        rng = np.random.default_rng(0)
        spread = rng.uniform(0.5, 2.0, 4000)
        relative = 0.05 * spread * rng.normal(size=4000)
        errors = Errors.learn(relative[:1000], spread[:1000])
        low, high = errors.bounds(spread[1000:], level=0.9)
        inside = (relative[1000:] >= low) & (relative[1000:] <= high)
        for part in (spread[1000:] < 0.8, spread[1000:] > 1.6, spread[1000:] > 0.0):
            assert inside[part].mean() == pytest.approx(0.9, abs=0.03)

    def test_few_rows_are_scaled_unless_their_errors_contradict_it(self):
        rng = np.random.default_rng(8)
        spread = np.repeat([0.5, 2.0], 6)
        relative = 0.05 * rng.choice([-1.0, 1.0], 12) * rng.uniform(0.5, 1.0, 12)
        told = [Errors.learn(relative * s, spread) for s in (spread, 1.0, 1.0 / spread)]
        ratios = [float(np.divide(*errors.scale(np.array([2.0, 0.5])))) for errors in told]
        assert ratios == pytest.approx([4.0, 1.0, 1.0])

    def test_a_spread_that_says_nothing_is_ignored(self):
        rng = np.random.default_rng(1)
        errors = Errors.learn(0.1 * rng.normal(size=500), rng.uniform(0.1, 10.0, 500))
        assert errors.scale(np.array([0.1, 1.0, 10.0])).tolist() == [1.0, 1.0, 1.0]

    def test_rare_slow_downs_are_left_out_of_the_interval(self):
        rng = np.random.default_rng(2)
        relative = 0.01 * rng.normal(size=1000)
        relative[:70] += 1.0
        low, high = Errors.learn(relative, np.ones(1000)).bounds(np.ones(1), level=0.9)
        assert high - low < 0.1
        assert ((relative >= low) & (relative <= high)).mean() == pytest.approx(0.9, abs=0.01)

    def test_probabilities_agree_with_the_bounds(self):
        rng = np.random.default_rng(3)
        errors = Errors.learn(0.1 * rng.normal(size=200), rng.uniform(1.0, 3.0, 200))
        spread = np.array([0.7, 1.5, 4.0])
        low, high = errors.bounds(spread, level=0.8)
        between = errors.share_at_most(high, spread) - errors.share_at_most(low, spread)
        assert between == pytest.approx(0.8)
        far = errors.share_at_most(np.full(3, 1e6), spread)
        assert far == pytest.approx(1.0)
        assert errors.share_at_most(np.full(3, -1e6), spread) == pytest.approx(0.0)

    @pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.99, 0.999])
    @pytest.mark.parametrize("rows", [10, 20, 200])
    def test_every_level_is_kept_beyond_the_measured_errors_too(self, level, rows):
        rng = np.random.default_rng(rows)
        errors = Errors.learn(0.05 * rng.normal(size=rows), np.ones(rows))
        low, high = errors.bounds(np.ones(1), level=level, tilt=0.5)
        assert errors.share_at_most(high, np.ones(1)) == pytest.approx((1.0 + level) / 2.0)
        assert errors.share_at_most(low, np.ones(1)) == pytest.approx((1.0 - level) / 2.0)

    def test_high_levels_of_few_rows_cover_new_rows(self):
        rng = np.random.default_rng(6)
        for level in (0.95, 0.99):
            inside = []
            for _ in range(200):
                errors = Errors.learn(0.05 * rng.laplace(size=20), np.ones(20))
                low, high = errors.bounds(np.ones(1), level=level)
                new = 0.05 * rng.laplace(size=200)
                inside.append(((new >= low) & (new <= high)).mean())
            assert level - 0.01 < np.mean(inside) < (1.0 + level) / 2.0

    def test_no_value_is_thought_to_be_negative(self):
        relative = np.exp(1.5 * np.random.default_rng(7).normal(size=12)) - 1.0
        errors = Errors.learn(relative, np.ones(12))
        low, high = errors.bounds(np.ones(1), level=0.9, tilt=0.5)
        assert -1.0 < low < high
        assert errors.share_at_most(np.full(1, -1.0), np.ones(1)) == 0.0

    def test_many_errors_are_thinned(self):
        relative = np.random.default_rng(4).normal(size=50_000)
        errors = Errors.learn(relative, np.ones(50_000))
        assert len(errors.scaled) == 2000
        assert errors.bounds(np.ones(1), level=0.9)[1] == pytest.approx(1.645, abs=0.05)


class TestScores:
    @pytest.mark.parametrize("levels", [3, 1000])
    def test_rank_correlations_with_ties(self, levels):
        rng = np.random.default_rng(levels)
        a = rng.integers(0, levels, 700).astype(float)
        b = a + rng.integers(0, levels, 700)
        assert spearman(a, b) == pytest.approx(spearmanr(a, b).statistic)
        assert kendall(a, b) == pytest.approx(kendalltau(a, b).statistic)

    def test_many_rows_need_no_table_of_pairs(self):
        a = np.arange(200_000.0)
        turned = np.where(a < 100_000, a, 300_000 - a)  # half of the order is turned around
        assert kendall(a, turned) == pytest.approx(0.5, abs=1e-4)

    def test_a_constant_has_no_rank(self):
        assert spearman(np.ones(5), np.arange(5.0)) == 0.0
        assert kendall(np.ones(5), np.arange(5.0)) == 0.0

    def test_percentages(self):
        y = np.array([100.0, 100.0, 100.0, 100.0])
        mean = np.array([100.0, 104.0, 108.0, 120.0])
        found = score(y, mean, mean - 5.0, mean + 5.0)
        assert found.mape == pytest.approx(8.0)
        assert (found.within_5, found.within_10) == (50.0, 75.0)
        assert found.coverage_90 == 50.0
        assert found.width_90 == pytest.approx(10.0)


class TestCentred:
    def test_a_bias_is_taken_back_in_part(self):
        factor = centred(np.full(100, 1.1))
        assert 1.0 / 1.1 < factor < 1.0
        assert centred(np.full(10_000, 1.1)) == pytest.approx(1.0 / 1.1, abs=0.002)

    def test_outliers_do_not_move_it(self):
        ratio = np.ones(1000)
        ratio[:50] = 0.2
        assert centred(ratio) == pytest.approx(1.0)
