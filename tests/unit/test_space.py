"""Spaces declared by hand, and what wrong declarations and requests get."""

import json
from itertools import pairwise

import numpy as np
import pytest

import hwnas
from hwnas.errors import HwnasError, InfeasibleError, UsageError
from hwnas.spaces import Part, Placed, Requires, Space
from hwnas.spaces.blocks import MBConv, Stem, Transformer
from hwnas.spaces.costs import CostTables
from hwnas.spaces.restrict import restricted
from hwnas.spaces.sampling import cost_range


def test_a_space_is_declared_in_a_line() -> None:
    space = Space("cell", genes={"e0": (0, 1, 2), "e1": ("conv", "skip")})
    arch = space.arch({"e0": 2, "e1": "skip"})
    assert arch["e1"] == "skip"
    assert dict(arch) == {"e0": 2, "e1": "skip"}
    assert space.count() == 6
    assert space.encode([arch]).tolist() == [[2, 1]]
    with pytest.raises(HwnasError, match="describes no networks"):
        space.cost([arch])


@pytest.mark.parametrize(
    ("genes", "requires", "message"),
    [
        ({}, {}, "at least one gene"),
        ({"a": ()}, {}, "needs a sequence of values"),
        ({"a": "xyz"}, {}, "needs a sequence of values"),
        ({"a": 5}, {}, "needs a sequence of values"),
        ({"a": {1, 2}}, {}, "needs a sequence of values"),
        ({"a": ([1], [2])}, {}, "cannot be told apart"),
        ({"a": (1, 1)}, {}, "repeats a value"),
        ({"a": (1, 2), "b": (1, 2)}, {"a": Requires("b", (1,))}, "must come before"),
        ({"a": (1, 2), "b": (1, 2)}, {"b": Requires("a", (3,))}, "a = 3: no value"),
        ({"alpha": (1, 2)}, {"alpha": Requires("alpah", (1,))}, "did you mean alpha"),
    ],
)
def test_wrong_declarations_are_explained(genes, requires, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Space("s", genes=genes, requires=requires)


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown space 'nasvitt'; did you mean nasvit") as caught:
        hwnas.space("nasvitt")
    assert caught.value.hint.startswith("hwnas space list")
    with pytest.raises(UsageError, match="unknown option of space nano 'clases'"):
        hwnas.space("nano", clases=3)
    with pytest.raises(UsageError, match="classes = 0; accepted"):
        hwnas.space("nano", classes=0)
    space = hwnas.space("nano")
    with pytest.raises(UsageError, match=r"'mb1\.widht'; did you mean mb1\.width"):
        space.arch({**space.smallest(), "mb1.widht": 8})
    with pytest.raises(
        UsageError, match=r"mb1.width = 9 is not in space nano; accepted: \{8, 16\}"
    ):
        space.arch({**space.smallest(), "mb1.width": 9})
    with pytest.raises(UsageError, match="lacks resolution; accepted"):
        space.arch({})


def test_a_bound_that_cannot_be_met_names_the_reachable_range() -> None:
    space = hwnas.space("nasvit")
    rng = np.random.default_rng(0)
    with pytest.raises(InfeasibleError, match=r"found: 189,789,040\.\.1,881,708,502"):
        space.sample(1, rng, macs=(1, 1e6))
    with pytest.raises(UsageError, match="is empty"):
        space.sample(1, rng, macs=(3e8, 2e8))
    narrow = space.sample(3, rng, macs=(189e6, 190e6))
    assert space.cost(narrow).macs.max() <= 190e6
    both = space.sample(5, rng, macs=(3e8, 5e8), params=(9e6, 10e6))
    assert space.cost(both).params.max() <= 10e6


def test_architectures_of_other_spaces_are_refused() -> None:
    nano, nasvit = hwnas.space("nano"), hwnas.space("nasvit")
    with pytest.raises(UsageError, match="is of space 'nano', expected 'nasvit'"):
        nasvit.network(nano.smallest())
    with pytest.raises(UsageError, match="is of space 'nano', expected 'nasvit'"):
        nasvit.arch_from_json(nano.smallest().to_json())

    with pytest.raises(UsageError, match="of space 'nano' is not in this space 'nasvit'"):
        nasvit.cost([nano.smallest()])
    alone = restricted(nano, nano.smallest())
    with pytest.raises(UsageError, match="which does not know 32"):
        alone.encode([nano.largest()])


def stems(genes: dict[str, tuple[int, ...]], **declared) -> Space:
    """Return a space of one convolution, whose width is the sum of all genes but the side."""

    def blocks(chosen) -> tuple[Placed, ...]:
        width = 1 + sum(value for gene, value in chosen.items() if gene != "side")
        return (Placed("stem", Stem(cin=1, cout=width), 8),)

    declared = {"side": 8, "options": {"classes": 2, "channels": 1}, **declared}
    return Space("stems", genes=genes, parts=(Part("stem", tuple(genes), blocks),), **declared)


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ({"side": "sid"}, "unknown gene for the side of images 'sid'; did you mean side"),
        ({"options": {"classes": 2}}, "no channels in its options"),
        ({"options": {}}, "no channels in its options"),
    ],
)
def test_what_networks_need_is_declared(declared, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        stems({"side": (8, 16)}, **declared)


def test_requirements_may_be_written_in_any_order() -> None:
    genes = {"a": (0, 1), "b": (0, 1), "c": (0, 1)}
    requires = {"c": Requires("b", (1,)), "b": Requires("a", (1,))}
    space = Space("chain", genes=genes, requires=requires)
    assert space.canonical(np.array([[0, 1, 1]])).tolist() == [[0, 0, 0]]
    every = np.array(np.meshgrid(*[[0, 1]] * 3)).reshape(3, -1).T
    assert len(np.unique(space.canonical(every), axis=0)) == space.count() == 4


def test_chains_of_requirements_are_counted_in_linear_time() -> None:
    layers = [f"layer{place}" for place in range(60)]
    requires = {after: Requires(before, ("conv", "attention"))
                for before, after in pairwise(layers)}  # fmt: skip
    space = Space(
        "s", genes=dict.fromkeys(layers, ("none", "conv", "attention")), requires=requires
    )
    assert space.count() == 2**61 - 1


def test_choices_may_be_true_and_false() -> None:
    space = Space("flags", genes={"squeezes": (False, True), "depth": (1, 2)})
    arch = space.arch({"squeezes": True, "depth": 1})
    assert space.arch_from_json(arch.to_json()) == arch
    for genes in ({"squeezes": 1, "depth": 1}, {"squeezes": True, "depth": True}):
        with pytest.raises(UsageError, match="is not in space flags"):
            space.arch(genes)


def test_choices_may_be_tuples() -> None:
    space = Space("pairs", genes={"kernels": ((np.int64(1), 3), (3, 5), ((3, 3), "x"))})
    for kernels in space.genes["kernels"]:
        arch = space.arch({"kernels": kernels})
        assert space.arch_from_json(json.loads(json.dumps(arch.to_json()))) == arch


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (Placed("a", Stem(cin=4, cout=4, stride=1), 8), "two blocks in slot 'a'"),
        (Placed("b", Stem(cin=4, cout=4, stride=1), 16), "'b' is placed at side 16, and .* side 8"),
    ],
)
def test_blocks_that_make_no_chain_are_refused(second: Placed, message: str) -> None:
    blocks = (Placed("a", Stem(cin=1, cout=4), 16), second)
    space = Space("s", genes={"x": (1,)}, parts=(Part("p", ("x",), lambda genes: blocks),),
                  side=16, options={"classes": 2, "channels": 1})  # fmt: skip
    with pytest.raises(UsageError, match=message):
        space.network(space.smallest())


def mbconv(**fields) -> MBConv:
    return MBConv(**{"cin": 8, "cout": 8, "mid": 16, "kernel": 3, "stride": 1,
                     "expands": True, "squeezes": False, **fields})  # fmt: skip


@pytest.mark.parametrize(
    ("block", "side", "message"),
    [
        (lambda: Transformer(dim=28, side=7), 7, "dim = 28; accepted: multiples of 8"),
        (lambda: Transformer(dim=0, side=7), 7, "dim = 0; accepted"),
        (lambda: Transformer(dim=8, side=9, windows=4), 9, "windows = 4; accepted: squares of"),
        (lambda: Transformer(dim=8, side=8, windows=2), 8, "windows = 2; accepted"),
        (lambda: Transformer(dim=8, side=8), 7, "side = 8; accepted: 7, the map's"),
        (lambda: mbconv(kernel=4), 8, "kernel = 4; accepted: odd"),
        (lambda: mbconv(stride=3), 8, "has side 3 after the convolution and 2 in the shortcut"),
        (lambda: mbconv(stride=4), 9, "has side 3 after the convolution and 2"),
    ],
)
def test_blocks_that_no_network_can_have_are_refused(block, side: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        list(block().operations(side))
    assert [mbconv(stride=stride).side_after(9) for stride in (1, 2, 3)] == [9, 5, 3]


def test_parts_with_many_combinations_cover_every_value() -> None:
    genes = {"kind": ("a", "b", "c"), **{f"g{place}": (0, 1, 2, 3) for place in range(7)}}

    def blocks(chosen) -> tuple[Placed, ...]:
        width = 1 + sum(value for gene, value in chosen.items() if gene != "kind")
        return (Placed(f"stem-{chosen['kind']}", Stem(cin=1, cout=width), 8),)

    space = Space("s", genes=genes, parts=(Part("p", tuple(genes), blocks),), side=8,
                  options={"classes": 2, "channels": 1})  # fmt: skip
    covering = space.covering()
    assert set(covering) == {"stem-a", "stem-b", "stem-c"}
    assert {max(block.cout for block in of) for of in covering.values()} == {22}


def test_costs_of_a_part_with_more_combinations_than_integers() -> None:
    space = stems({f"g{place}": (0, 1) for place in range(80)})
    one_more = space.arch({**space.smallest(), "g79": 1})
    archs = [space.smallest(), one_more, *space.sample(50, np.random.default_rng(0))]
    widths = [1 + sum(arch.values()) for arch in archs]
    for _ in range(2):  # when they are new, and when they are known
        assert space.cost(archs).params.tolist() == [11 * width for width in widths]
    assert [len(blocks) for blocks in space.covering().values()] == [4]


def test_many_genes_of_one_value_leave_a_small_space() -> None:
    genes = {f"g{place}": (0, 1) if place < 3 else (0,) for place in range(70)}
    space = stems(genes)
    assert cost_range(space, "params") == (11, 44)
    found = space.sample(20, np.random.default_rng(0), params=(11, 22))
    assert {sum(arch.values()) for arch in found} == {0, 1}
    alone = restricted(space, space.largest())
    assert set(alone.sample(2, np.random.default_rng(0), params=(44, 44))) == {space.largest()}


def test_where_all_cost_the_same_any_architecture_will_do() -> None:
    space = stems({"side": (8, 16), "only": (3,)})
    macs = int(space.cost([space.smallest()]).macs[0])
    found = space.sample(20, np.random.default_rng(0), macs=(macs, macs))
    assert {arch["side"] for arch in found} == {8, 16}
    assert space.sample(0, np.random.default_rng(0), macs=(macs, macs)) == []


def test_digests_are_stable() -> None:
    """Digests name files and records: they may never change."""
    assert hwnas.space("nasvit").smallest().digest[:16] == "8245c53fefdb8a54"
    assert hwnas.space("nano").largest().digest[:12] == "f0b7641c5942"


def test_sparse_tables_give_the_costs_of_dense_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    space = hwnas.space("nano")
    codes = space.sample_codes(300, np.random.default_rng(0))
    dense = space.cost(codes)
    monkeypatch.setattr("hwnas.spaces.costs._DENSE_LIMIT", 1)
    tables = CostTables(space)
    sparse = tables.costs(codes)
    assert np.array_equal(dense.macs, sparse.macs)
    assert np.array_equal(dense.layers, sparse.layers)
    assert np.array_equal(tables.costs(codes[::-1]).params, dense.params[::-1])


def _branching() -> Space:
    """Return a space whose costliest networks are not near the one of all last values."""

    def blocks(chosen) -> tuple[Placed, ...]:
        width = 20 + chosen["heads"] if chosen["kind"] == "attention" else 5 * chosen["expand"]
        return (Placed("stem", Stem(cin=1, cout=width), 8),)

    genes = {"kind": ("conv", "attention"), "expand": (1, 8), "heads": (1, 2, 4)}
    needs = {"expand": Requires("kind", ("conv",)), "heads": Requires("kind", ("attention",))}
    return Space(
        "branching", genes=genes, requires=needs, side=8, options={"classes": 2, "channels": 1},
        parts=(Part("stem", tuple(genes), blocks),),
    )  # fmt: skip


@pytest.mark.parametrize("listed", [True, False])
def test_no_cost_is_called_out_of_reach_that_a_network_has(
    monkeypatch: pytest.MonkeyPatch, listed: bool
) -> None:
    if not listed:
        monkeypatch.setattr("hwnas.spaces.sampling._MOST_TO_LIST", 0)
    space = _branching()
    (arch,) = space.sample(1, np.random.default_rng(0), params=(430, 450))
    assert dict(arch) == {"kind": "conv", "expand": 8, "heads": 1}
    words = "^no architecture .*reachable" if listed else "^found no architecture .*found"
    with pytest.raises(InfeasibleError, match=rf"{words}: 55\.\.440"):
        space.sample(1, np.random.default_rng(0), params=(441, 450))


@pytest.mark.parametrize("metric", ["macs", "params"])
def test_walks_find_the_ends_of_what_can_be_listed(
    monkeypatch: pytest.MonkeyPatch, metric: str
) -> None:
    genes = {"kind": ("a", "b"), "side": (8, 16, 32), "x": (1, 5, 9), "y": (1, 2), "z": (1, 2, 3)}

    def blocks(chosen) -> tuple[Placed, ...]:
        width = chosen["x"] * chosen["y"] if chosen["kind"] == "a" else 2 * chosen["z"]
        return (Placed("stem", Stem(cin=1, cout=width), chosen["side"]),)

    space = Space("s", genes=genes, side="side", options={"classes": 2, "channels": 1},
                  parts=(Part("stem", tuple(genes), blocks),))  # fmt: skip
    exact = cost_range(space, metric)
    monkeypatch.setattr("hwnas.spaces.sampling._MOST_TO_LIST", 0)
    cost_range.cache_clear()
    assert cost_range(space, metric) == exact
