"""What the papers and the released code say of the spaces, computed."""

import numpy as np
import pytest

import hwnas
from hwnas.interop.nasvit import arch_from
from hwnas.spaces.blocks import Transformer

TABLE_13 = {  # column: (widths T5..pool differ), depths, expansions of mb2, mb3 -> MACs in M
    "A1": (192, [16, 16, 24, 32, 64, 112, 160, 216, 1792], [1, 3, 3, 4, 3, 3, 3], (4, 4), 208.90),
    "A2": (224, [16, 16, 24, 32, 64, 112, 160, 208, 1792], [1, 3, 3, 4, 3, 5, 4], (4, 6), 371.37),
    "A3": (256, [16, 16, 24, 32, 64, 112, 160, 216, 1984], [1, 3, 3, 4, 4, 7, 5], (5, 5), 599.31),
    "A4": (288, [16, 16, 24, 32, 64, 120, 160, 216, 1984], [1, 3, 3, 4, 3, 6, 6], (4, 6), 774.86),
}


def test_nasvit_ends_of_the_space() -> None:
    space = hwnas.space("nasvit")
    costs = space.cost([space.smallest(), space.largest()])
    assert (costs.macs / 1e6).round(2).tolist() == [189.79, 1881.71]
    assert (costs.params / 1e6).round(3).tolist() == [8.237, 16.682]


@pytest.mark.parametrize("column", TABLE_13)
def test_nasvit_table_13_as_the_released_code_counts(column: str) -> None:
    resolution, width, depth, (mb2, mb3), macs = TABLE_13[column]
    expansions = [1, mb2, mb3, 4, 4, 6, 6]
    arch = arch_from(
        {
            "resolution": resolution,
            "width": width,
            "depth": depth,
            "kernel_size": [3] * 7,
            "expand_ratio": expansions,
        }
    )
    assert hwnas.space("nasvit").cost([arch]).macs[0] / 1e6 == pytest.approx(macs, abs=0.005)


def test_uniform_sampling_of_nasvit_rarely_meets_small_networks_and_bounded_does() -> None:
    space = hwnas.space("nasvit")
    rng = np.random.default_rng(0)
    uniform = space.cost(space.sample_codes(10_000, rng)).macs
    assert (uniform < 300e6).mean() < 0.01
    bounded = space.sample_codes(1_000, rng, macs=(200e6, 300e6))
    macs = space.cost(bounded).macs
    assert macs.min() >= 200e6
    assert macs.max() <= 300e6
    assert len(np.unique(bounded, axis=0)) > 950
    counts, _ = np.histogram(macs, 5)
    assert counts.min() > 100


def test_nasvit_scaling_rows_are_depth_and_tokens() -> None:
    space = hwnas.space("nasvit")
    arch = space.arch({**space.largest(), "resolution": 224, "t5.depth": 4})
    layers = {
        placed.slot: placed.block
        for placed in space.network(arch).blocks
        if isinstance(placed.block, Transformer)
    }
    assert layers["t4_1"].scale_row == 6 * 8 + 196 % 8
    assert layers["t5_1"].scale_row == 4 * 8 + 49 % 8
    assert layers["t7_1"].scale_row == 6 * 8 + 16 % 8


def test_nasvit_paper_is_table_1_as_printed() -> None:
    genes = hwnas.space("nasvit-paper").genes
    assert genes["t5.depth"] == (3, 4, 5, 6, 7, 8)
    assert genes["mb3.kernel"] == (3, 5)
    assert sorted(genes["t4.windows"]) == [1, 4]
    assert all(genes[f"t{stage}.ratio"] == (1, 2) for stage in (4, 5, 6, 7))
    assert not any(gene.startswith("t") and gene.endswith("expand") for gene in genes)


def test_nasvit_paper_scaling_is_private_to_width_and_depth() -> None:
    space = hwnas.space("nasvit-paper")
    rows = {}
    for width in space.genes["t6.width"]:
        for depth in space.genes["t6.depth"]:
            arch = space.arch({**space.largest(), "t6.width": width, "t6.depth": depth})
            block = next(p.block for p in space.network(arch).blocks if p.slot == "t6_1")
            assert block.scale_row < block.scale_rows
            rows[width, depth] = block.scale_row
    assert len(set(rows.values())) == len(rows) == block.scale_rows


@pytest.mark.parametrize(
    ("resolution", "width", "depth", "kernel", "expand", "macs"),
    [  # AttentiveNAS-A0 and AlphaNet-A6, published as 203M and 709M
        (192, [16, 16, 24, 32, 64, 112, 192, 216, 1792], [1, 3, 3, 3, 3, 3, 1], [3] * 7,
         [1, 4, 4, 4, 4, 6, 6], 203),
        (288, [16, 16, 24, 32, 64, 112, 216, 224, 1984], [1, 3, 3, 4, 4, 6, 1],
         [3, 3, 3, 3, 3, 5, 3], [1, 4, 6, 5, 4, 6, 6], 709),
    ],
)  # fmt: skip
def test_alphanet_published_macs(resolution, width, depth, kernel, expand, macs: int) -> None:
    space = hwnas.space("alphanet")
    genes = {"resolution": resolution, "stem.width": width[0], "pool.width": width[-1]}
    for index, stage in enumerate(f"mb{number}" for number in range(1, 8)):
        values = {"width": width[index + 1], "depth": depth[index], "kernel": kernel[index],
                  "expand": expand[index]}  # fmt: skip
        genes.update(
            {f"{stage}.{k}": v for k, v in values.items() if f"{stage}.{k}" in space.genes}
        )
    assert round(space.cost([space.arch(genes)]).macs[0] / 1e6) == macs


def test_nano_is_small_and_varied() -> None:
    space = hwnas.space("nano", classes=10)
    smallest, largest = space.cost([space.smallest(), space.largest()]).macs
    assert largest <= 7e6
    assert smallest <= largest / 5
    assert space.count() > 1_000_000
