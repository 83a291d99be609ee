"""NASViT (Gong et al., ICLR 2022): the space of the released code and the one the paper prints.

They differ in many places; `docs/fidelity/nasvit.md` lists them with the tests that hold them.
"""

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
from hwnas.spaces.space import Genes, Part, Space

RESOLUTIONS = (192, 224, 256, 288)
MAX_DEPTH = 9
TOKEN_PHASES = 8

# Stage -> (stride, squeezes); the stem before them has stride 2.
CONV_STAGES = {"mb1": (1, False), "mb2": (2, False), "mb3": (2, True)}
TRANSFORMER_STAGES = {"t4": (2, False), "t5": (2, True), "t6": (1, True), "t7": (2, True)}

_CONV_GENES = {
    "resolution": RESOLUTIONS,
    "stem.width": (16, 24),
    "mb1.width": (16, 24),
    "mb1.depth": (1, 2),
    "mb1.kernel": (3, 5),
    "mb2.width": (24, 32),
    "mb2.depth": (3, 4, 5),
    "mb2.kernel": (3, 5),
    "mb2.expand": (4, 5, 6),
    "mb3.width": (32, 40),
    "mb3.depth": (3, 4, 5, 6),
}
_WIDTHS = {
    "t4": (64, 72),
    "t5": (112, 120, 128),
    "t6": (160, 168, 176, 184),
    "t7": (208, 216, 224),
}
_PICKS = {"kernel": "centre", "scale_row": "private"}


def nasvit(*, classes: int = 1000, channels: int = 3, scaling: str = "switchable") -> Space:
    """Return the space of the released code: 189.79M to 1881.71M MACs.

    `scaling`: vectors private to (depth of the stage, tokens mod 8), one for all, or none.
    """
    known_scaling(scaling)
    genes: dict[str, tuple[int, ...]] = {**_CONV_GENES, "mb3.expand": (4, 5, 6)}
    depths = {"t4": range(3, 7), "t5": range(3, 10), "t6": range(3, 9), "t7": range(3, 7)}
    for stage, widths in _WIDTHS.items():
        genes[f"{stage}.width"] = widths
        genes[f"{stage}.depth"] = tuple(depths[stage])
        if stage in ("t4", "t5"):
            genes[f"{stage}.expand"] = (4, 5, 6)
    genes["pool.width"] = (1792, 1984)

    def layer(stage: str) -> TransformerOf:
        def transformer(genes: Genes, side: int) -> Transformer:
            dim = genes[f"{stage}.width"]
            row, rows = scale_row(
                scaling,
                genes[f"{stage}.depth"] * TOKEN_PHASES + side * side % TOKEN_PHASES,
                (MAX_DEPTH + 1) * TOKEN_PHASES,
            )
            # The factor 8 / width is the released code's; its tables were trained with it.
            return Transformer(
                dim=dim,
                side=side,
                joint_norm=True,
                scale_row=row,
                scale_rows=rows,
                scale_gain=8 / dim,
            )

        return transformer

    parts, before, previous = _conv_parts(channels, mb3_kernel=3)
    for stage, (stride, squeezes) in TRANSFORMER_STAGES.items():
        expand = None if stage in ("t4", "t5") else 6
        parts.append(
            transformer_part(
                stage,
                layer(stage),
                previous=previous,
                before=before,
                stride=stride,
                random_shortcuts=True,
                squeezes=squeezes,
                expand=expand,
            )
        )
        before, previous = (*before, stride), stage
    parts.append(classifier_part(previous=previous, before=before, classes=classes))
    return Space(
        "nasvit",
        genes=genes,
        parts=tuple(parts),
        picks=_PICKS,
        options={"classes": classes, "channels": channels, "scaling": scaling},
        title="NASViT as released",
    )


def nasvit_paper(*, classes: int = 1000, channels: int = 3, scaling: str = "switchable") -> Space:
    """Return the space as the paper prints it in Table 1 and describes it in section 3.

    Down-sampling is a depthwise convolution with a pointwise one to the new width, and is the
    first of a stage's layers. `scaling`: vectors private to (width, depth of the stage), one
    for all, or none.
    """
    known_scaling(scaling)
    genes: dict[str, tuple[int, ...]] = {
        **_CONV_GENES,
        "mb3.kernel": (3, 5),
        "mb3.expand": (4, 5, 6),
    }
    depths = {"t4": range(3, 7), "t5": range(3, 9), "t6": range(3, 9), "t7": range(3, 7)}
    for stage, widths in _WIDTHS.items():
        genes[f"{stage}.width"] = widths
        genes[f"{stage}.depth"] = tuple(depths[stage])
        genes[f"{stage}.ratio"] = (1, 2)
    genes["t4.windows"] = (4, 1)  # more windows are cheaper
    genes["pool.width"] = (1792, 1984)

    def layer(stage: str) -> TransformerOf:
        def transformer(genes: Genes, side: int) -> Transformer:
            dim, depth = genes[f"{stage}.width"], genes[f"{stage}.depth"]
            row, rows = scale_row(
                scaling,
                _WIDTHS[stage].index(dim) * len(depths[stage]) + depth - depths[stage][0],
                len(_WIDTHS[stage]) * len(depths[stage]),
            )
            return Transformer(
                dim=dim,
                mlp_ratio=genes[f"{stage}.ratio"],
                windows=genes.get("t4.windows", 1) if stage == "t4" else 1,
                side=side,
                joint_norm=False,
                scale_row=row,
                scale_rows=rows,
            )

        return transformer

    parts, before, previous = _conv_parts(channels, mb3_kernel=None)
    for stage, (stride, _squeezes) in TRANSFORMER_STAGES.items():
        parts.append(
            transformer_part(
                stage,
                layer(stage),
                previous=previous,
                before=before,
                stride=stride,
                random_shortcuts=True,
                squeezes=False,
                expand=1,
                more_genes=("ratio", "windows") if stage == "t4" else ("ratio",),
            )
        )
        before, previous = (*before, stride), stage
    parts.append(classifier_part(previous=previous, before=before, classes=classes))
    return Space(
        "nasvit-paper",
        genes=genes,
        parts=tuple(parts),
        picks=_PICKS,
        options={"classes": classes, "channels": channels, "scaling": scaling},
        title="NASViT as the paper prints it",
    )


def _conv_parts(
    channels: int, *, mb3_kernel: int | None
) -> tuple[list[Part], tuple[int, ...], str]:
    parts, previous = [stem_part(channels)], "stem"
    before: tuple[int, ...] = (2,)
    for stage, (stride, squeezes) in CONV_STAGES.items():
        parts.append(
            mbconv_part(
                stage,
                previous=previous,
                before=before,
                stride=stride,
                random_shortcuts=True,
                squeezes=squeezes,
                kernel=mb3_kernel if stage == "mb3" else None,
                expand=1 if stage == "mb1" else None,
            )
        )
        before, previous = (*before, stride), stage
    return parts, before, previous
