"""The predictor as a user meets it."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hwnas.errors import FormatError, UsageError
from hwnas.predictors import CurvePoint, Predictor, evaluate
from hwnas.predictors.evaluate import fitted_law


def measured(count, seed=0):
    rng = np.random.default_rng(seed)
    genes = rng.integers(0, 4, (count, 8)).astype(float)
    costs = np.stack([genes.sum(axis=1), (genes**2) @ np.arange(1.0, 9.0)], axis=1)
    y = (5.0 + costs[:, 0] + 0.1 * costs[:, 1]) * (1.0 + 0.02 * rng.normal(size=count))
    return genes, costs, y


@pytest.fixture(scope="module")
def predictor():
    return Predictor.fit(*measured(120), target="latency_ms", about={"device": "bench"})


def test_error_and_coverage_on_new_rows(predictor):
    genes, costs, y = measured(2000, seed=1)
    mean, low, high = predictor.predict(genes, costs)
    assert np.abs(mean / y - 1.0).mean() < 0.025
    assert 0.84 < ((y >= low) & (y <= high)).mean() < 0.96
    assert (low <= mean).all()
    assert (mean <= high).all()


def test_same_data_and_seed_same_bits(predictor):
    genes, costs, _ = measured(50, seed=2)
    again = Predictor.fit(*measured(120))
    assert np.array_equal(predictor.predict(genes, costs), again.predict(genes, costs))


def test_a_row_is_the_same_in_any_batch(predictor):
    genes, costs, _ = measured(1500, seed=3)
    together = predictor.predict(genes, costs).mean
    alone = [predictor.predict(genes[[i]], costs[[i]]).mean[0] for i in (0, 700, 1499)]
    np.testing.assert_allclose(together[[0, 700, 1499]], alone, rtol=1e-5)


def test_wider_levels_contain_narrower_ones(predictor):
    genes, costs, _ = measured(20, seed=4)
    half, most = (predictor.predict(genes, costs, level=level) for level in (0.5, 0.95))
    assert (most.low <= half.low).all()
    assert (most.high >= half.high).all()
    with pytest.raises(UsageError, match=r"level 90 "):
        predictor.predict(genes, costs, level=90)


def test_probability_of_a_limit(predictor):
    genes, costs, _ = measured(20, seed=5)
    mean, low, high = predictor.predict(genes, costs)
    between = predictor.prob_at_most(genes, costs, high) - predictor.prob_at_most(genes, costs, low)
    np.testing.assert_allclose(between, 0.9, atol=1e-5)
    assert (predictor.prob_at_most(genes, costs, 0.0) < 0.01).all()
    assert (predictor.prob_at_most(genes, costs, 10 * mean.max()) > 0.99).all()


def test_out_of_range(predictor):
    genes, costs, _ = measured(120)
    assert predictor.in_range(genes, costs).all()
    assert not predictor.in_range(genes, costs * 5.0 + 500.0).any()


def curved(genes):
    """Return costs and an accuracy that bends between the smallest and the largest."""
    costs = genes.sum(axis=1, keepdims=True)
    return costs, 0.9 - 0.3 * np.exp(-costs[:, 0] / 5.0) + 0.002 * np.sin(7.0 * genes[:, 0])


def test_between_two_ends_is_not_within_what_was_measured():
    rng = np.random.default_rng(0)
    genes = rng.integers(0, 6, (600, 6)).astype(float)
    size = genes.sum(axis=1)
    ends = np.array([[0.0] * 6, [5.0] * 6])
    low = genes[size < 10]
    known = np.vstack([ends, low[:30]])
    costs, y = curved(known)
    found = Predictor.fit(known, costs, y)
    assert found.in_range(known, costs).all()
    assert found.in_range(low[30:], curved(low[30:])[0]).mean() > 0.8
    middle = genes[size > 18]
    inside = found.in_range(middle, curved(middle)[0])
    assert inside.mean() < 0.2
    low_width, width = (
        np.median(np.subtract(*found.predict(rows, curved(rows)[0])[:0:-1]))
        for rows in (low[30:], middle)
    )
    assert width > 1.5 * low_width


def test_far_outside_values_stay_ordered_and_positive(predictor):
    genes, costs, _ = measured(10, seed=9)
    for factor in (-100.0, 100.0):
        mean, low, high = predictor.predict(genes * factor, costs * factor)
        assert (mean > 0.0).all()
        assert (low <= mean).all()
        assert (mean <= high).all()


def test_no_costs_and_no_genes():
    genes, costs, y = measured(60)
    only_genes = Predictor.fit(genes, np.zeros((60, 0)), y)
    assert only_genes.predict(genes[:5], np.zeros((5, 0))).mean.shape == (5,)
    only_costs = Predictor.fit(np.zeros((60, 0)), costs, y)
    assert only_costs.predict(np.zeros((5, 0)), costs[:5]).mean.shape == (5,)


def test_targets_that_are_not_positive():
    genes, costs, y = measured(80)
    new_genes, new_costs, truth = measured(200, seed=7)
    centred = Predictor.fit(genes, costs, y - y.mean())
    mean = centred.predict(new_genes, new_costs).mean + y.mean()
    assert np.abs(mean / truth - 1.0).mean() < 0.05


def test_the_ladder_of_sizes():
    for count in (10, 45):
        genes, costs, y = measured(count)
        mean, low, high = Predictor.fit(genes, costs, y).predict(genes, costs)
        assert np.isfinite([mean, low, high]).all()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda g, c, y: (g[:9], c[:9], y[:9]), "9 rows, at least 10 are needed"),
        (lambda g, c, y: (g, c, np.full(len(y), 3.5)), "is 3.5 in every row"),
        (lambda g, c, y: (g, c, np.where(np.arange(len(y)) == 4, np.nan, y)), "row 5: nan"),
        (lambda g, c, y: (np.where(g == g[0, 0], np.inf, g), c, y), "gene '0', row 1: inf"),
        (lambda g, c, y: (g, c[:-1], y), "rows of genes but 29 rows of costs"),
        (lambda g, c, y: (g, c, y[:-1]), r"shape \(29,\), expected \(30,\)"),
        (lambda g, c, y: (g[:, :0], c[:, :0], y), "no columns"),
        (lambda g, c, y: (g * 0.0 + 2.0, c * 0.0 + 0.1, y), "the same in every row"),
        (lambda g, c, y: (g[:, 0], c, y), "expected \\(rows, columns\\)"),
        (lambda g, c, y: ([*g.astype(str).tolist()[:-1], ["x"] * 8], c, y), "not numbers"),
    ],
)
def test_bad_input_is_named_in_one_line(break_it, message):
    with pytest.raises(UsageError, match=message) as caught:
        Predictor.fit(*break_it(*measured(30)))
    assert "\n" not in caught.value.message


def test_wrong_columns_at_prediction(predictor):
    genes, costs, _ = measured(5)
    with pytest.raises(UsageError, match="7 gene columns, expected 8"):
        predictor.predict(genes[:, :7], costs)


def test_stored_and_loaded_predicts_the_same(predictor, tmp_path):
    predictor.save(tmp_path / "latency")
    again = Predictor.load(tmp_path / "latency")
    genes, costs, _ = measured(300, seed=8)
    assert np.array_equal(predictor.predict(genes, costs), again.predict(genes, costs))
    assert again.card == predictor.card
    card = json.loads((tmp_path / "latency" / "card.json").read_text())
    assert card["schema"] == "hwnas.predictor"
    assert card["fitted"]["about"] == {"device": "bench"}
    assert 0.0 < card["errors"]["mape"] < 5.0
    assert card["ranges"]["gene0"] == [0.0, 3.0]


def test_loading_needs_neither_scikit_learn_nor_scipy(predictor, tmp_path):
    predictor.save(tmp_path / "p")
    code = (
        "import sys\n"
        "for name in ('sklearn', 'scipy', 'torch', 'onnx'): sys.modules[name] = None\n"
        "import numpy as np\n"
        "from hwnas.predictors import Predictor\n"
        f"p = Predictor.load({str(tmp_path / 'p')!r})\n"
        "print(float(p.predict(np.ones((1, 8)), np.ones((1, 2))).mean[0]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = predictor.predict(np.ones((1, 8)), np.ones((1, 2))).mean[0]
    assert float(done.stdout) == pytest.approx(here)


def test_damaged_folders(predictor, tmp_path):
    folder = tmp_path / "p"
    with pytest.raises(FormatError, match="no such file"):
        Predictor.load(folder)
    predictor.save(folder)
    arrays = folder / "arrays.safetensors"
    content = bytearray(arrays.read_bytes())
    content[-1] ^= 1
    arrays.write_bytes(bytes(content))
    with pytest.raises(FormatError, match="digests differ"):
        Predictor.load(folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "version": 99}))
    with pytest.raises(FormatError, match="version 99"):
        Predictor.load(folder)


def test_no_rows_give_no_predictions(predictor):
    genes, costs, _ = measured(20, seed=4)
    found = predictor.predict(genes[:0], costs[:0])
    assert [len(part) for part in found] == [0, 0, 0]
    assert predictor.in_range(genes[:0], costs[:0]).shape == (0,)
    assert predictor.prob_at_most(genes[:0], costs[:0], 1.0).shape == (0,)


def test_one_fold_is_none():
    with pytest.raises(UsageError, match="folds is 1; accepted: from 2"):
        evaluate(*measured(40, seed=6), folds=1)


def test_evaluation_sees_no_row_twice():
    genes, costs, y = measured(48)
    shuffled = np.random.default_rng(0).permutation(y)
    honest = evaluate(genes, costs, shuffled, folds=2)
    assert abs(honest.scores.spearman) < 0.4
    real = evaluate(genes, costs, y, folds=2)
    assert real.scores.spearman > 0.9
    assert real.scores.rows == 48
    assert [point.rows for point in real.curve] == [12, 18, 24]
    assert 0.0 <= real.gain(20) <= real.gain(200) < real.scores.mape + 1.0
    assert real.fit_cpu_s > 0.0


def test_a_point_of_the_learning_curve_is_of_all_folds():
    found = evaluate(*measured(29), folds=2, shares=(0.75,))  # which leave 14 and 15 rows
    assert [point.rows for point in found.curve] == [10, 14]


def test_an_accuracy_of_zero_does_not_drown_the_others():
    genes, costs, y = measured(26)
    y[3] = 0.0
    found = evaluate(genes, costs, y, folds=2, shares=(0.9,))
    assert [point.rows for point in found.curve] == [11, 13]
    assert all(0.0 < point.mape < 20.0 for point in found.curve)


def test_folds_in_which_the_target_or_the_columns_are_constant_are_evaluated():
    genes, costs, y = measured(30)
    rare = np.full(30, 0.1)
    rare[:2] = 0.2, 0.3
    found = evaluate(genes, costs, rare, folds=2, shares=(0.7,))
    assert [point.rows for point in found.curve] == [10, 15]
    assert np.isfinite(found.held_out).all()
    single = evaluate(np.eye(30)[:, :1], np.zeros((30, 0)), y, folds=2, shares=())
    assert single.scores.mape > 10.0
    with pytest.raises(UsageError, match="the same in every row"):
        evaluate(genes * 0.0, costs * 0.0, y)


@pytest.mark.parametrize("power", [0.5, 1.0])
def test_the_learning_curve_is_continued(power):
    law = [(n, 2.0 + 30.0 * n**-power) for n in (20, 40, 80, 160)]
    curve = tuple(CurvePoint(rows=n, mape=mape) for n, mape in law)
    floor, factor, found = fitted_law(curve)
    assert found == pytest.approx(power, abs=0.05)
    assert floor + factor * 640**-found == pytest.approx(2.0 + 30.0 * 640**-power, rel=0.05)


def test_a_curve_that_rises_promises_nothing():
    curve = tuple(CurvePoint(rows=n, mape=m) for n, m in ((20, 3.0), (40, 3.1), (80, 3.2)))
    assert fitted_law(curve)[1] == 0.0
