"""From descriptions to modules."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from hwnas.nets.mbconv import Axes, Classifier, MBConv, Starts, Stem
from hwnas.nets.network import PlainNetwork
from hwnas.nets.transformer import Transformer
from hwnas.spaces import Network, blocks

# A new kind of block adds its description in `hwnas.spaces` and one line here.
MODULES: Mapping[type, Callable[[Any], nn.Module]] = {
    blocks.Stem: Stem,
    blocks.MBConv: MBConv,
    blocks.Transformer: Transformer,
    blocks.Classifier: Classifier,
}


def build_block(block: blocks.Block) -> nn.Module:
    """Return the plain module of a block description."""
    return MODULES[type(block)](block)


def axes_of(block: blocks.Block) -> Axes:
    """Return the axis names of the parameters of a block's module, by name pattern."""
    axes: Axes = MODULES[type(block)].AXES  # type: ignore[attr-defined]
    return axes


def starts_of(block: blocks.Block) -> Starts:
    """Return what fills the parameters of a block's module that start in a way of their own."""
    return MBConv.starts(block) if isinstance(block, blocks.MBConv) else {}


def build_network(network: Network) -> PlainNetwork:
    """Return the plain network of a description."""
    return PlainNetwork(network, build_block)
