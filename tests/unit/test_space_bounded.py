"""Drawing within bounds of costs: how many, how evenly, and what is found at all."""

from hashlib import sha256
from itertools import pairwise

import numpy as np
import pytest

import hwnas
from hwnas.errors import InfeasibleError


@pytest.fixture(scope="module", params=["nasvit", "nano"])
def space(request):
    return hwnas.space(request.param)


@pytest.fixture(scope="module")
def nasvit():
    return hwnas.space("nasvit")


def test_a_narrow_range_gives_as_many_as_are_asked_for(space) -> None:
    low, high = (int(value) for value in space.cost([space.smallest(), space.largest()]).macs)
    middle = (low + high) / 2
    bounds = (middle, middle + 0.001 * (high - low))
    codes = space.sample_codes(500, np.random.default_rng(0), macs=bounds)
    macs = space.cost(codes).macs
    assert len(macs) == 500
    assert bounds[0] <= macs.min() <= macs.max() <= bounds[1]
    assert len(np.unique(codes, axis=0)) > 400


@pytest.mark.parametrize("bounds", [(200e6, 300e6), (200e6, 600e6), (0, np.inf)])
def test_costs_are_spread_evenly(nasvit, bounds: tuple[float, float]) -> None:
    codes = nasvit.sample_codes(10_000, np.random.default_rng(0), macs=bounds)
    counts, _ = np.histogram(nasvit.cost(codes).macs, 10)
    assert counts.max() / counts.min() < 1.3
    assert len(np.unique(codes, axis=0)) > 9000


def test_a_few_are_spread_evenly_too(nasvit) -> None:
    for seed in range(5):
        codes = nasvit.sample_codes(8, np.random.default_rng(seed), macs=(200e6, 600e6))
        counts, _ = np.histogram(nasvit.cost(codes).macs, 8, range=(200e6, 600e6))
        assert set(counts) == {1}


@pytest.mark.parametrize("n", [1, 30])
def test_two_bounds_that_few_architectures_keep(nasvit, n: int) -> None:
    bounds = {"macs": (400e6, np.inf), "params": (0, 8.3e6)}
    costs = nasvit.cost(nasvit.sample_codes(n, np.random.default_rng(0), **bounds))
    assert len(costs) == n
    assert costs.macs.min() >= 400e6
    assert costs.params.max() <= 8.3e6


def test_more_than_there_are_repeat(nasvit) -> None:
    found = nasvit.sample(40, np.random.default_rng(0), macs=(189e6, 190e6))
    assert found == [nasvit.smallest()] * 40


def test_two_bounds_that_nothing_keeps(nasvit) -> None:
    with pytest.raises(
        InfeasibleError, match=r"macs 1,800,000,000\.\.inf and params 0\.\.9,000,000"
    ):
        nasvit.sample(1, np.random.default_rng(0), macs=(1.8e9, np.inf), params=(0, 9e6))


def test_draws_of_one_do_not_change() -> None:
    """Benchmarks name architectures by such draws, and their results are written down."""
    nano, rng = hwnas.space("nano", channels=1), np.random.default_rng(7)
    low, high = (int(value) for value in nano.cost([nano.smallest(), nano.largest()]).macs)
    edges = np.linspace(low, high, 17)
    archs = [nano.sample(1, rng, macs=bounds)[0] for bounds in pairwise(edges)]
    digests = "".join(arch.digest for arch in archs)
    assert sha256(digests.encode()).hexdigest()[:16] == "76b7b1e7352c2ce9"
