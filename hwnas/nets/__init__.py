"""Plain torch modules that know nothing of elasticity.

Each block class carries `AXES`: the axis names of each of its parameters. That table is all the
sharing of weights needs to know. May import only `hwnas.spaces`, `hwnas.io`, `hwnas.errors`.
"""

from hwnas.nets.build import build_block, build_network
from hwnas.nets.network import PlainNetwork, run_blocks

__all__ = ["PlainNetwork", "build_block", "build_network", "run_blocks"]
