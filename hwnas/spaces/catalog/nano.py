"""nano: NASViT's kinds of block for images of 28 to 32 pixels, small enough to train on a CPU."""

from hwnas.spaces.blocks import Transformer
from hwnas.spaces.catalog.stages import (
    TransformerOf,
    classifier_part,
    known_scaling,
    mbconv_part,
    scale_row,
    stem_part,
    transformer_part,
)
from hwnas.spaces.space import Genes, Space

DEPTHS = {"t3": (2, 3, 4), "t4": (2, 3, 4)}
WIDTHS = {"t3": (32, 40, 48), "t4": (64, 72, 80)}


def nano(*, classes: int = 10, channels: int = 3, scaling: str = "switchable") -> Space:
    """Return the small space; `scaling`: vectors private to (width, depth), one, or none."""
    known_scaling(scaling)
    genes: dict[str, tuple[int, ...]] = {
        "resolution": (24, 28, 32),
        "stem.width": (8, 16),
        "mb1.width": (8, 16),
        "mb1.depth": (1, 2),
        "mb1.kernel": (3, 5),
        "mb2.width": (16, 24),
        "mb2.depth": (2, 3, 4),
        "mb2.kernel": (3, 5),
        "mb2.expand": (3, 4),
    }
    for stage, widths in WIDTHS.items():
        genes[f"{stage}.width"] = widths
        genes[f"{stage}.depth"] = DEPTHS[stage]
        genes[f"{stage}.expand"] = (2, 3)
        genes[f"{stage}.ratio"] = (1, 2)
    genes["pool.width"] = (128, 192)

    def layer(stage: str) -> TransformerOf:
        def transformer(genes: Genes, side: int) -> Transformer:
            dim, depth = genes[f"{stage}.width"], genes[f"{stage}.depth"]
            depths = DEPTHS[stage]
            row, rows = scale_row(
                scaling,
                WIDTHS[stage].index(dim) * len(depths) + depths.index(depth),
                len(WIDTHS[stage]) * len(depths),
            )
            return Transformer(
                dim=dim,
                mlp_ratio=genes[f"{stage}.ratio"],
                side=side,
                scale_row=row,
                scale_rows=rows,
                scale_init=0.02,
            )

        return transformer

    parts = (
        stem_part(channels),
        mbconv_part("mb1", previous="stem", before=(2,), stride=1, squeezes=False, expand=1),
        mbconv_part("mb2", previous="mb1", before=(2, 1), stride=2, squeezes=False),
        transformer_part(
            "t3", layer("t3"), previous="mb2", before=(2, 1, 2), stride=2, squeezes=True,
            more_genes=("ratio",),
        ),
        transformer_part(
            "t4", layer("t4"), previous="t3", before=(2, 1, 2, 2), stride=2, squeezes=True,
            more_genes=("ratio",),
        ),
        classifier_part(previous="t4", before=(2, 1, 2, 2, 2), classes=classes),
    )  # fmt: skip
    return Space(
        "nano",
        genes=genes,
        parts=parts,
        picks={"kernel": "centre", "scale_row": "private"},
        options={"classes": classes, "channels": channels, "scaling": scaling},
        title="NASViT blocks for 28-32 px images",
    )
