"""Features of architectures: masked genes, closed-form costs, columns that the space decides."""

import time

import numpy as np
import pytest

import hwnas
from hwnas.errors import FormatError
from hwnas.predictors.features import features, same_columns
from hwnas.spaces import Requires, Space

CELL = Space(
    "cell",
    genes={"depth": (1, 2), "op": ("none", "conv"), "width": (16, 24, 32), "only": (7,)},
    requires={"width": Requires("op", ("conv",))},
)


def test_genes_are_numbers_or_indices_and_constant_ones_are_left_out() -> None:
    found = features(CELL, [CELL.arch({"depth": 2, "op": "conv", "width": 32, "only": 7})])
    assert found.names == found.gene_names == ("depth", "op", "width")
    assert found.genes.tolist() == [[2, 1, 32]]
    assert found.costs.shape == (1, 0)


def test_genes_that_make_no_difference_are_masked() -> None:
    codes = np.array([[0, 0, 2, 0], [0, 0, 0, 0], [0, 1, 2, 0]])
    genes = features(CELL, codes).genes
    assert np.array_equal(genes[0], genes[1])
    assert not np.array_equal(genes[0], genes[2])


@pytest.mark.parametrize("name", ["nano", "nasvit", "alphanet"])
def test_costs_are_those_of_the_space(name: str) -> None:
    space = hwnas.space(name)
    codes = space.sample_codes(50, np.random.default_rng(0))
    found = features(space, codes)
    costs = space.cost(codes)
    columns = dict(zip(found.cost_names, found.costs.T, strict=True))
    for metric in ("macs", "params", "activations"):
        assert np.array_equal(columns[metric], getattr(costs, metric))
    assert np.array_equal(columns["macs.kind.depthwise"], costs.by_kind("macs")["depthwise"])
    stage = found.gene_names[-2].partition(".")[0]
    assert np.array_equal(columns[f"params.stage.{stage}"], costs.by_stage("params")[stage])
    assert np.array_equal(columns["layers"], costs.layers)


@pytest.mark.parametrize("name", ["nano", "nasvit", "alphanet"])
def test_every_column_says_something_that_no_other_says(name: str) -> None:
    space = hwnas.space(name)
    found = features(space, space.sample_codes(3000, np.random.default_rng(1)))
    table = np.concatenate([found.genes, found.costs], axis=1)
    assert (np.ptp(table, axis=0) > 0).all()
    assert len({column.tobytes() for column in table.T}) == len(found.names)
    assert len(set(found.names)) == len(found.names)


def test_columns_do_not_depend_on_the_rows() -> None:
    space = hwnas.space("nano")
    one = features(space, [space.smallest()])
    many = features(space, space.sample(20, np.random.default_rng(0)))
    assert one.names == many.names
    codes = space.sample_codes(20_000, np.random.default_rng(2))  # more than one piece
    whole, part = features(space, codes), features(space, codes[9_000:9_010])
    assert np.array_equal(whole.costs[9_000:9_010], part.costs)
    assert np.array_equal(whole.genes[9_000:9_010], part.genes)


def test_columns_are_found_by_name() -> None:
    space = hwnas.space("nano")
    found = features(space, [space.largest()])
    chosen = same_columns(found, found.gene_names[::-1], ("layers", "macs"))
    assert np.array_equal(chosen.genes, found.genes[:, ::-1])
    assert chosen.costs[0, 1] == found.costs[0, 0]
    with pytest.raises(FormatError, match="'volts', which this space does not have"):
        same_columns(found, found.gene_names, ("volts",))


@pytest.mark.parametrize("name", ["nano", "nasvit"])
def test_features_cost_no_more_than_a_few_gathers(name: str) -> None:
    """Against a plain sort of as many numbers, so that the machine does not matter."""
    space = hwnas.space(name)
    codes = space.sample_codes(50_000, np.random.default_rng(0))
    features(space, codes)
    numbers = np.random.default_rng(0).random(50_000 * 23)

    def seconds(work) -> float:
        started = time.process_time()
        work()
        return time.process_time() - started

    features_s = min(seconds(lambda: features(space, codes)) for _ in range(3))
    sort_s = min(seconds(lambda: np.sort(numbers)) for _ in range(3))
    assert features_s < 15 * sort_s  # a loop over the rows takes hundreds of times as long
