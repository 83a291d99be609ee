"""What every space must satisfy. The checks raise AssertionError."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from hwnas.errors import UsageError
from hwnas.spaces import Arch, Space

_SAMPLES = 40


def _samples(space: Space, n: int = _SAMPLES) -> list[Arch]:
    return [space.smallest(), space.largest(), *space.sample(n, np.random.default_rng(0))]


def check_codes_and_archs_are_inverse(space: Space) -> None:
    """Decoding what was encoded gives the same architectures."""
    archs = _samples(space)
    assert space.decode(space.encode(archs)) == archs


def check_canonical_form_is_stable(space: Space) -> None:
    """Canonical codes do not change when made canonical again."""
    codes = space.canonical(
        np.random.default_rng(1).integers(0, space.cardinalities, (200, len(space.genes)))
    )
    assert np.array_equal(space.canonical(codes), codes)


def check_inactive_choices_make_no_difference(space: Space) -> None:
    """Changing a choice that does not matter gives the same architecture."""
    rng = np.random.default_rng(2)
    codes = space.canonical(rng.integers(0, space.cardinalities, (200, len(space.genes))))
    scrambled = np.where(space.active(codes), codes, rng.integers(0, space.cardinalities))
    assert space.decode(scrambled) == space.decode(codes)


def check_json_keeps_the_architecture(space: Space) -> None:
    """An architecture survives its JSON document, digest included."""
    for arch in _samples(space, 5):
        back = space.arch_from_json(json.loads(json.dumps(arch.to_json())))
        assert back == arch
        assert back.digest == arch.digest


def check_distinct_architectures_have_distinct_digests(space: Space) -> None:
    """Digests are equal exactly where architectures are."""
    archs = _samples(space, 200)
    assert len({arch.digest for arch in archs}) == len(set(archs))


def check_foreign_values_are_refused(space: Space) -> None:
    """An unknown gene or value is an error that names it."""
    gene = space.gene_names[0]
    for genes, name in (
        ({**space.smallest(), "no such gene": 1}, "no such gene"),
        ({**space.smallest(), gene: -12345}, "-12345"),
    ):
        try:
            space.arch(genes)
        except UsageError as error:
            assert name in error.message
        else:
            raise AssertionError(f"{name} was accepted")


def check_costs_are_those_of_the_blocks(space: Space) -> None:
    """Tabulated costs equal the sums over the network's blocks."""
    if not space.parts:
        return
    archs = _samples(space, 10)
    costs = space.cost(archs)
    for index, arch in enumerate(archs):
        operations = [
            operation
            for placed in space.network(arch).blocks
            for operation in placed.block.operations(placed.side)
        ]
        assert costs.macs[index] == sum(operation.macs for operation in operations)
        assert costs.params[index] == sum(operation.params for operation in operations)
        assert costs.activations[index] == sum(operation.activations for operation in operations)
    assert np.array_equal(sum(costs.by_kind("macs").values()), costs.macs)
    assert np.array_equal(sum(costs.by_stage("params").values()), costs.params)


def check_blocks_fit_together(space: Space) -> None:
    """Each block receives the map that the block before it makes."""
    if not space.parts:
        return
    for arch in _samples(space, 10):
        network = space.network(arch)
        side = network.side
        for placed in network.blocks:
            assert placed.side == side, placed
            side = placed.block.side_after(side)
        slots = [placed.slot for placed in network.blocks]
        assert len(set(slots)) == len(slots)


def check_sampling_keeps_its_bounds(space: Space) -> None:
    """Architectures drawn for a range of costs are in it, spread over it and reproducible."""
    if not space.parts:
        return
    low, high = (int(value) for value in space.cost([space.smallest(), space.largest()]).macs)
    bounds = (low, low + (high - low) // 4)
    archs = space.sample(50, np.random.default_rng(3), macs=bounds)
    macs = space.cost(archs).macs
    assert len(archs) == 50
    assert ((macs >= bounds[0]) & (macs <= bounds[1])).all()
    assert np.ptp(macs) > 0.5 * (bounds[1] - bounds[0])
    assert archs == space.sample(50, np.random.default_rng(3), macs=bounds)


SPACE_CHECKS: Sequence[Callable[[Space], None]] = (
    check_codes_and_archs_are_inverse,
    check_canonical_form_is_stable,
    check_inactive_choices_make_no_difference,
    check_json_keeps_the_architecture,
    check_distinct_architectures_have_distinct_digests,
    check_foreign_values_are_refused,
    check_costs_are_those_of_the_blocks,
    check_blocks_fit_together,
    check_sampling_keeps_its_bounds,
)
