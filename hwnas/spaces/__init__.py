"""Search spaces as values: genes, architectures, network descriptions, costs. No torch.

May import only `hwnas.io` and `hwnas.errors`.
"""

from hwnas.spaces.arch import Arch
from hwnas.spaces.blocks import Network, Placed
from hwnas.spaces.catalog import SPACES
from hwnas.spaces.costs import CONVENTION, Costs
from hwnas.spaces.registry import is_known, register, space, space_names
from hwnas.spaces.space import Part, Requires, Space

__all__ = [
    "CONVENTION",
    "SPACES",
    "Arch",
    "Costs",
    "Network",
    "Part",
    "Placed",
    "Requires",
    "Space",
    "is_known",
    "register",
    "space",
    "space_names",
]
