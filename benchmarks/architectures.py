"""Architectures that several benchmarks measure."""

from hwnas.spaces import Arch, Space

# Width, depth and expansion of each stage of the `nasvit` network of 371M MACs at 224 pixels.
_REFERENCE = {
    "mb1": (16, 1, 1),
    "mb2": (24, 3, 4),
    "mb3": (32, 3, 6),
    "t4": (64, 4, 4),
    "t5": (112, 3, 4),
    "t6": (160, 5, 6),
    "t7": (208, 4, 6),
}


def reference_arch(space: Space) -> Arch:
    """Return the network of 371.37M MACs."""
    genes = {"resolution": 224, "stem.width": 16, "pool.width": 1792}
    for stage, (width, depth, expand) in _REFERENCE.items():
        values = {"width": width, "depth": depth, "expand": expand, "kernel": 3}
        genes |= {f"{stage}.{gene}": value for gene, value in values.items()}
    return space.arch({gene: genes[gene] for gene in space.gene_names})
