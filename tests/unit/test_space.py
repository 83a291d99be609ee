"""Spaces declared by hand, and what wrong declarations and requests get."""

import numpy as np
import pytest

import hwnas
from hwnas.errors import HwnasError, InfeasibleError, UsageError
from hwnas.spaces import Requires, Space
from hwnas.spaces.costs import CostTables


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
    assert caught.value.hint == "hwnas space list"
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
    with pytest.raises(InfeasibleError, match=r"reachable: 189,789,040\.\.1,881,708,502"):
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
