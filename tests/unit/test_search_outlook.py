"""The surrogate against its definitions: gradients, conditioning, expectations."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import check_grad

import hwnas
from hwnas.search.encoder import Encoder
from hwnas.search.outlook import (
    Belief,
    Frontier,
    Model,
    Scale,
    choose,
    expected,
    expected_gain,
    model,
)
from hwnas.search.surrogate import JITTER, Kernel, _Likelihood, fit
from hwnas.search.volume import gains
from hwnas.spaces import Requires, Space

CELL = Space("cell", genes={f"e{i}": ("a", "b", "c", "d") for i in range(4)})
EVERY = np.indices((4,) * 4).reshape(4, -1).T
EFFECTS = np.array([0.0, 1.0, 0.3, 2.0])


def measured(count, seed=0, space=CELL):
    rng = np.random.default_rng(seed)
    encoder = Encoder(space)
    codes = np.unique(space.sample_codes(4 * count, rng), axis=0)
    codes = codes[rng.permutation(len(codes))[:count]]
    table = encoder(codes)
    kernel = Kernel.of(encoder.gene, encoder.letter, blocks=len(table.blocks))
    return encoder, kernel, codes, table


def smooth(codes):
    return EFFECTS[codes].sum(axis=1) + 0.5 * EFFECTS[codes[:, 0]] * EFFECTS[codes[:, 1]]


@pytest.mark.parametrize("space", [CELL, hwnas.space("nano")], ids=["cell", "nano"])
def test_the_gradient_of_the_likelihood_is_its_slope(space):
    _, kernel, codes, table = measured(15, space=space)
    target = codes.sum(axis=1) + 0.1 * np.random.default_rng(1).normal(size=15)
    likelihood = _Likelihood(kernel, table, (target - target.mean()) / target.std())
    mean, deviation = kernel.prior()
    for seed in range(3):
        point = mean + 0.5 * deviation * np.random.default_rng(seed).normal(size=len(mean))
        error = check_grad(lambda p: likelihood(p)[0], lambda p: likelihood(p)[1], point)
        assert error < 1e-3 * max(1.0, np.linalg.norm(likelihood(point)[1]))


def test_variances_are_the_diagonal_of_the_kernel():
    _, kernel, _, table = measured(12)
    parameters = kernel.prior()[0] + 0.3
    full, gaussian = kernel(parameters, table, table)
    assert np.allclose(np.diag(full), kernel.variances(parameters, table))
    assert np.allclose(np.diag(gaussian), 1.0)
    assert np.linalg.eigvalsh(full).min() > -1e-9


def test_choices_without_an_order_are_learnt():
    _, kernel, codes, table = measured(60)
    encoder = Encoder(CELL)
    fitted = model(kernel, table, smooth(codes))
    truth = smooth(EVERY)
    miss = expected(fitted, encoder(EVERY)) - truth
    assert np.sqrt((miss**2).mean()) < 0.1 * truth.std()


def test_choices_that_act_alike_come_to_lie_together():
    effects = np.array([0.0, 1.0, 1.0, 2.0])
    encoder, kernel, codes, table = measured(60)
    target = effects[codes].prod(axis=1) + effects[codes].sum(axis=1)
    process = fit(kernel, table, (target - target.mean()) / target.std())
    ends = encoder(np.array([[0, 0, 0, 0], [1, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]]))
    _, near = kernel(process.parameters, ends, ends)
    assert near[1, 2] > 0.97 > near[0, 1]
    assert near[1, 2] > near[1, 3]


def test_a_fit_does_not_depend_on_the_order_of_the_choices():
    encoder, kernel, codes, table = measured(40)
    order = np.array([2, 0, 3, 1])
    target = smooth(codes) - smooth(codes).mean()
    process = fit(kernel, table, target)
    again = fit(kernel, encoder(order[codes]), target)
    assert process.mean(encoder(EVERY)) == pytest.approx(
        again.mean(encoder(order[EVERY])), abs=0.02 * target.std()
    )


def test_letters_of_one_gene_only_have_no_pairs():
    genes = {"a": (1, 2, 3), "b": (1, 2, 3), "c": (4, 5), "d": (6, 7)}
    _, kernel, _, _ = measured(10, space=Space("mixed", genes=genes))
    assert kernel.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_one_failed_training_does_not_bend_the_rest():
    _, kernel, codes, table = measured(60)
    encoder = Encoder(CELL)
    values = 10.0 - smooth(codes)
    values[7] = 90.0
    miss = expected(model(kernel, table, values), encoder(EVERY)) - (10.0 - smooth(EVERY))
    assert np.median(np.abs(miss)) < 0.15 * smooth(EVERY).std()


def test_a_missing_value_counts_as_the_worst():
    _, kernel, codes, table = measured(30)
    values = smooth(codes)
    worst = values.copy()
    worst[3] = np.delete(values, 3).max()
    values[3] = np.nan
    encoder = Encoder(CELL)
    found, same = (expected(model(kernel, table, v), encoder(EVERY)) for v in (values, worst))
    assert np.allclose(found, same)


def test_assuming_a_value_is_conditioning_on_it():
    encoder, kernel, codes, table = measured(20)
    target = smooth(codes) - smooth(codes).mean()
    process = fit(kernel, table, target / target.std())
    straight = Model(scale=Scale(offset=None, mean=0.0, spread=1.0), process=process)
    others = encoder(EVERY[::5])
    belief = Belief(straight, others)
    believed = process.mean(others)[3]
    belief.assume(3)
    both = encoder(np.concatenate([codes, EVERY[::5][3:4]]))
    covariance, _ = kernel(process.parameters, both, both)
    covariance += (process.noise + JITTER) * np.eye(len(covariance))
    cross, _ = kernel(process.parameters, both, others)
    variance = kernel.variances(process.parameters, others)
    variance -= np.einsum("ij,ij->j", cross, np.linalg.solve(covariance, cross))
    assert np.allclose(belief._variance, variance, atol=1e-6)
    known = np.append(target / target.std(), believed)
    assert np.allclose(belief._mean, cross.T @ np.linalg.solve(covariance, known), atol=1e-5)


@pytest.mark.parametrize("offset", [None, -3.0])
def test_expectations_below_thresholds_agree_with_samples(offset):
    encoder, kernel, codes, table = measured(20)
    process = fit(kernel, table, (smooth(codes) - smooth(codes).mean()) / smooth(codes).std())
    scale = Scale(offset=offset, mean=0.4, spread=0.6)
    others = encoder(EVERY[::50])
    mean, variance = process.predict(others)
    samples = np.random.default_rng(0).normal(size=(200_000, 1)) * np.sqrt(variance) + mean
    values = scale.value(samples)
    thresholds = np.array([-np.inf, -2.0, 0.3, 2.0])
    below = Belief(Model(scale=scale, process=process), others).below(thresholds)
    assert (below[0] == 0).all()
    for line, threshold in zip(below[1:], thresholds[1:], strict=True):
        assert np.allclose(line, np.maximum(threshold - values, 0.0).mean(axis=0), atol=0.01)


@pytest.mark.parametrize("objectives", [1, 2, 3])
def test_the_expected_gain_agrees_with_samples(objectives):
    encoder, kernel, codes, table = measured(25)
    rng = np.random.default_rng(0)
    values = np.stack([smooth(codes[:, rng.permutation(4)]) for _ in range(objectives)], axis=1)
    values += 0.3 * rng.normal(size=values.shape)
    models = [model(kernel, table, column) for column in values.T]
    others = encoder(EVERY[::60])
    frontier = Frontier.of(values)
    drawn = []
    for one in models:
        mean, variance = one.process.predict(others)
        normal = rng.normal(size=(20_000, 1))
        drawn.append(one.scale.value(normal * np.sqrt(variance) + mean))
    samples = np.stack(drawn, axis=2)
    sampled = [
        gains(samples[:, row], frontier.values, frontier.reference).mean()
        for row in range(len(others))
    ]
    exact = expected_gain([Belief(one, others) for one in models], frontier)
    assert np.allclose(exact, sampled, rtol=0.1, atol=0.02 * max(sampled))


def test_a_batch_does_not_choose_a_row_twice():
    encoder, kernel, codes, table = measured(20)
    values = np.stack([smooth(codes), -smooth(codes)], axis=1)
    models = [model(kernel, table, column) for column in values.T]
    others = encoder(EVERY[:30])
    rows = choose([Belief(one, others) for one in models], Frontier.of(values), count=10)
    assert len(set(rows.tolist())) == 10


def test_genes_that_do_not_matter_are_no_choices():
    space = Space(
        "nested", genes={"a": (0, 1), "b": (0, 1, 2)}, requires={"b": Requires("a", (1,))}
    )
    table = Encoder(space)(np.array([[0, 0], [1, 0], [1, 2]]))
    assert table.ones.tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0], [0, 1, 0, 0, 1]]


def test_kernels_of_spaces_with_one_value_per_gene_work():
    space = replace(CELL, genes={"a": (1,), "b": (1, 2), "c": (5, 6, 7)})
    _, kernel, codes, table = measured(5, space=space)
    fitted = model(kernel, table, codes.sum(axis=1).astype(float))
    assert np.isfinite(expected(fitted, table)).all()
