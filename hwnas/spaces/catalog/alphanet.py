"""AlphaNet (Wang et al., ICML 2021), whose space is that of AttentiveNAS (CVPR 2021): MBConvs."""

from hwnas.spaces.catalog.stages import classifier_part, mbconv_part, stem_part
from hwnas.spaces.space import Space

# Stage -> (widths, depths, expansions, stride, squeezes)
STAGES = {
    "mb1": ((16, 24), (1, 2), (1,), 1, False),
    "mb2": ((24, 32), (3, 4, 5), (4, 5, 6), 2, False),
    "mb3": ((32, 40), (3, 4, 5, 6), (4, 5, 6), 2, True),
    "mb4": ((64, 72), (3, 4, 5, 6), (4, 5, 6), 2, False),
    "mb5": ((112, 120, 128), (3, 4, 5, 6, 7, 8), (4, 5, 6), 1, True),
    "mb6": ((192, 200, 208, 216), (3, 4, 5, 6, 7, 8), (6,), 2, True),
    "mb7": ((216, 224), (1, 2), (6,), 1, True),
}


def alphanet(*, classes: int = 1000, channels: int = 3) -> Space:
    """Return the convolutional space of AlphaNet and AttentiveNAS."""
    genes: dict[str, tuple[int, ...]] = {
        "resolution": (192, 224, 256, 288),
        "stem.width": (16, 24),
    }
    parts, previous = [stem_part(channels)], "stem"
    before: tuple[int, ...] = (2,)
    for stage, (widths, depths, expansions, stride, squeezes) in STAGES.items():
        genes[f"{stage}.width"] = widths
        genes[f"{stage}.depth"] = depths
        genes[f"{stage}.kernel"] = (3, 5)
        fixed = expansions[0] if len(expansions) == 1 else None
        if fixed is None:
            genes[f"{stage}.expand"] = expansions
        parts.append(
            mbconv_part(
                stage,
                previous=previous,
                before=before,
                stride=stride,
                random_shortcuts=True,
                squeezes=squeezes,
                expand=fixed,
            )
        )
        before, previous = (*before, stride), stage
    genes["pool.width"] = (1792, 1984)
    parts.append(classifier_part(previous=previous, before=before, classes=classes))
    return Space(
        "alphanet",
        genes=genes,
        parts=tuple(parts),
        picks={"kernel": "centre"},
        options={"classes": classes, "channels": channels},
        title="AlphaNet / AttentiveNAS (convolutions only)",
    )
