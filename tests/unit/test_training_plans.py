"""Plans: which subnets a step trains, and from what they learn."""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

import hwnas
from hwnas.pipeline.config import read_recipe
from hwnas.spaces import Arch
from hwnas.training.plans import (
    Moment,
    complexity_aware,
    default_levels,
    sandwich,
    single_path,
)
from hwnas.training.prepare import make_plan


def test_sandwich_plan() -> None:
    space = hwnas.space("nano")
    plan = sandwich(space, random=3, distils=True)
    tasks = plan(Moment(0, 4, 7))
    assert [task.role for task in tasks] == ["largest", "smallest", "random", "random", "random"]
    assert [task.learns_from for task in tasks] == [(), (0,), (0,), (0,), (0,)]
    assert [task.is_supernet for task in tasks] == [True, False, False, False, False]
    assert tasks == plan(Moment(0, 4, 7))
    assert tasks != plan(Moment(0, 4, 8))
    assert tasks != plan(Moment(1, 4, 7))


@pytest.mark.parametrize("subnets", [1, 2, 3, 4, 7])
def test_the_random_subnets_of_a_step_can_share_out_the_values_of_every_gene(subnets: int) -> None:
    space = hwnas.space("nano")
    plan = sandwich(space, random=subnets, distils=True, evenly=True)
    totals = {gene: Counter() for gene in space.genes}
    for step in range(200):
        drawn = [task.arch for task in plan(Moment(0, 0, step)) if task.role == "random"]
        for gene, values in space.genes.items():
            counts = Counter(arch[gene] for arch in drawn)
            often = [counts[value] for value in values]
            assert max(often) - min(often) <= 1
            totals[gene].update(counts)
    for gene, values in space.genes.items():
        expected = 200 * subnets / len(values)
        assert all(abs(totals[gene][value] - expected) < 5 * expected**0.5 for value in values)
    together = Counter((task.arch["t3.depth"], task.arch["t4.depth"]) for step in range(200)
                       for task in plan(Moment(0, 0, step)) if task.role == "random")  # fmt: skip
    assert len(together) == 9  # no gene follows another


@pytest.mark.parametrize("evenly", [False, True])
def test_a_sandwich_may_have_no_random_subnets(evenly: bool) -> None:
    plan = sandwich(hwnas.space("nano"), random=0, distils=True, evenly=evenly)
    assert [task.role for task in plan(Moment(0, 0, 0))] == ["largest", "smallest"]


def test_recipes_ask_for_even_draws() -> None:
    def drawn(*assignments: str) -> list[list[Arch]]:
        recipe = read_recipe("nano-fashion", ["plan.random=3", *assignments])
        plan = make_plan(recipe, hwnas.space("nano"))
        return [[task.arch for task in plan(Moment(0, 0, step))][2:] for step in range(20)]

    def depths(steps: list[list[Arch]]) -> list[int]:
        return [len({arch["t4.depth"] for arch in archs}) for archs in steps]

    assert set(depths(drawn("plan.draws=even"))) == {3}
    assert set(depths(drawn())) > {3}


def test_single_path_plan_covers_the_space() -> None:
    space = hwnas.space("nano")
    drawn = {single_path(space)(Moment(0, 0, step))[0].arch["resolution"] for step in range(50)}
    assert drawn == {24, 28, 32}


def test_complexity_aware_plan() -> None:
    space = hwnas.space("nano")
    levels, ends = default_levels(space)
    plan = complexity_aware(space, levels=levels, smallest_up_to=ends, subnets=3, distils=True)
    visited = []
    for step in range(60):
        tasks = plan(Moment(0, 1, step))
        macs = space.cost([task.arch for task in tasks[:3]]).macs
        level = int(np.abs(np.array(levels) - macs.mean()).argmin())
        assert np.ptp(macs) <= 0.04 * levels[level] + 1
        assert tasks[3].learns_from == (0, 1, 2)
        assert space.cost([tasks[3].arch]).macs[0] <= macs.min() * 1.1
        visited.append(level)
    assert all(abs(a - b) == 1 for a, b in pairwise(visited))
    assert len(set(visited)) >= 4
    plan = complexity_aware(space, levels=levels, smallest_up_to=ends, subnets=3, distils=False)
    assert not any(task.learns_from for task in plan(Moment(0, 1, 0)))


def test_the_ends_of_a_sandwich_can_vary_in_chosen_genes() -> None:
    space = hwnas.space("nano")
    fixed = sandwich(space, random=1, distils=True)
    varied = sandwich(space, random=1, distils=True, vary=("resolution",))
    moments = [Moment(0, 0, step) for step in range(30)]
    for role, end in (("largest", space.largest()), ("smallest", space.smallest())):
        seen = [task.arch for moment in moments for task in varied(moment) if task.role == role]
        assert {arch["resolution"] for arch in seen} == {24, 28, 32}
        assert {space.arch({**arch, "resolution": end["resolution"]}) for arch in seen} == {end}
    assert [task.arch for task in fixed(moments[0])][2:] == [
        task.arch for task in varied(moments[0])
    ][2:]


def test_the_ends_of_a_sandwich_are_themselves_in_the_other_steps() -> None:
    space = hwnas.space("nano")
    vary = ("resolution", "pool.width", "t3.width", "t4.width")  # chance of none differing: 1 in 54
    half = sandwich(space, random=0, distils=True, vary=vary, vary_share=0.5)
    never = sandwich(space, random=0, distils=True, vary=vary, vary_share=0.0)
    ends = {"largest": space.largest(), "smallest": space.smallest()}
    for role, end in ends.items():
        seen = [
            task.arch == end
            for step in range(400)
            for task in half(Moment(0, 0, step))
            if task.role == role
        ]
        assert 0.4 < sum(seen) / len(seen) < 0.62
    assert [task.arch for task in never(Moment(0, 0, 0))] == list(ends.values())
