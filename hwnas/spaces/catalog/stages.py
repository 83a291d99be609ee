"""Stages that several declared spaces are made of: each function returns one part of a network."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from hwnas.errors import unknown_name
from hwnas.spaces.blocks import Block, Classifier, MBConv, Placed, Stem, round_to_8, strided
from hwnas.spaces.space import Genes, Part

TransformerOf = Callable[[Genes, int], Block]


# Scaling vectors: private to the choices a space names, one for all, or none.
SCALINGS = ("switchable", "single", "none")


def known_scaling(scaling: str) -> None:
    """Raise UsageError unless `scaling` is one of SCALINGS."""
    if scaling not in SCALINGS:
        raise unknown_name("scaling", scaling, SCALINGS)


def scale_row(scaling: str, row: int, rows: int) -> tuple[int, int]:
    """Return (row, rows) of the table of scaling vectors, given those of private ones."""
    return {"switchable": (row, rows), "single": (0, 1), "none": (0, 0)}[scaling]


def side_at(resolution: int, strides: Sequence[int]) -> int:
    """Return the side of the map after layers of these strides."""
    for stride in strides:
        resolution = strided(resolution, stride)
    return resolution


def stem_part(channels: int) -> Part:
    """Return the first convolution."""

    def blocks(genes: Genes) -> tuple[Placed, ...]:
        return (Placed("stem", Stem(cin=channels, cout=genes["stem.width"]), genes["resolution"]),)

    return Part("stem", ("resolution", "stem.width"), blocks)


def mbconv_part(
    name: str,
    *,
    previous: str,
    before: Sequence[int],
    stride: int,
    squeezes: bool,
    kernel: int | None = None,
    expand: int | None = None,
    random_shortcuts: bool = False,
) -> Part:
    """Return a stage of MBConvs; kernel and expansion are genes unless given.

    `previous` is the stage whose width comes in, `before` the strides of all earlier layers.
    """
    fixed = _Fixed(kernel, expand, random_shortcuts)
    genes = _genes(name, previous, fixed)

    def blocks(genes: Genes) -> tuple[Placed, ...]:
        side = side_at(genes["resolution"], before)
        cin, placed = genes[f"{previous}.width"], []
        for layer in range(genes[f"{name}.depth"]):
            step = stride if layer == 0 else 1
            block = _mbconv(genes, name, cin, stride=step, squeezes=squeezes, fixed=fixed)
            placed.append(Placed(f"{name}_{layer}", block, side))
            cin, side = block.cout, block.side_after(side)
        return tuple(placed)

    return Part(name, genes, blocks)


def transformer_part(
    name: str,
    transformer: TransformerOf,
    *,
    previous: str,
    before: Sequence[int],
    stride: int,
    squeezes: bool,
    more_genes: Sequence[str] = (),
    kernel: int | None = 3,
    expand: int | None = None,
    random_shortcuts: bool = False,
) -> Part:
    """Return a stage whose first layer is an MBConv and whose other layers are transformers.

    `transformer(genes, side)` describes the transformer layers; depth counts the MBConv.
    """
    more = tuple(f"{name}.{gene}" for gene in more_genes)
    fixed = _Fixed(kernel, expand, random_shortcuts)
    genes = _genes(name, previous, fixed) + more

    def blocks(genes: Genes) -> tuple[Placed, ...]:
        side = side_at(genes["resolution"], before)
        cin = genes[f"{previous}.width"]
        first = _mbconv(genes, name, cin, stride=stride, squeezes=squeezes, fixed=fixed)
        after = first.side_after(side)
        layers = transformer(genes, after)
        return (
            Placed(f"{name}_0", first, side),
            *(
                Placed(f"{name}_{layer}", layers, after)
                for layer in range(1, genes[f"{name}.depth"])
            ),
        )

    return Part(name, genes, blocks)


def classifier_part(*, previous: str, before: Sequence[int], classes: int) -> Part:
    """Return the pooling head."""

    def blocks(genes: Genes) -> tuple[Placed, ...]:
        cin = genes[f"{previous}.width"]
        block = Classifier(cin=cin, mid=6 * cin, features=genes["pool.width"], classes=classes)
        return (Placed("head", block, side_at(genes["resolution"], before)),)

    return Part("head", ("resolution", f"{previous}.width", "pool.width"), blocks)


class _Fixed(NamedTuple):
    """What is the same for all MBConvs of a stage; kernel and expansion if they are no genes."""

    kernel: int | None
    expand: int | None
    random_shortcuts: bool


def _genes(name: str, previous: str, fixed: _Fixed) -> tuple[str, ...]:
    genes = ["resolution", f"{previous}.width", f"{name}.width", f"{name}.depth"]
    if fixed.kernel is None:
        genes.append(f"{name}.kernel")
    if fixed.expand is None:
        genes.append(f"{name}.expand")
    return tuple(genes)


def _mbconv(
    genes: Genes, name: str, cin: int, *, stride: int, squeezes: bool, fixed: _Fixed
) -> MBConv:
    ratio = genes[f"{name}.expand"] if fixed.expand is None else fixed.expand
    return MBConv(
        cin=cin,
        cout=genes[f"{name}.width"],
        mid=round_to_8(cin * ratio) if ratio > 1 else cin,
        kernel=genes[f"{name}.kernel"] if fixed.kernel is None else fixed.kernel,
        stride=stride,
        expands=ratio > 1,
        squeezes=squeezes,
        random_shortcut=fixed.random_shortcuts,
    )
