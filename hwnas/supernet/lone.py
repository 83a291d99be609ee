"""Any torch network in the place of a supernet: what trains supernets then trains it alone.

Its space has one architecture, which no description tells anything of.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.nets.network import PlainNetwork
from hwnas.spaces import Arch, Network, Space
from hwnas.supernet.supernet import Supernet

_SLOT = "network"


class LoneNetwork(Supernet):
    """A supernet of one network, whose weights are its own.

    `name` and `options` are those of its space.
    """

    def __init__(self, network: nn.Module, *, name: str, options: Mapping[str, Any]) -> None:
        nn.Module.__init__(self)
        self.space = Space(name, genes={_SLOT: (name,)}, options=dict(options))
        self.memory_format = torch.channels_last
        self._networks: dict[Arch, Network] = {}
        self._calibrated: dict[Arch, Mapping[str, Tensor]] = {}
        self.blocks = nn.ModuleDict({_SLOT: network})

    def forward(self, images: Tensor, arch: Arch) -> Tensor:
        """Return the logits of the network."""
        del arch  # there is one
        logits: Tensor = self.blocks[_SLOT](images.contiguous(memory_format=self.memory_format))
        return logits

    def at(self, arch: Arch) -> dict[str, nn.Module]:
        """Return the network as the only block."""
        del arch
        return {_SLOT: self.blocks[_SLOT]}

    def extract(self, arch: Arch) -> PlainNetwork:
        """Return a copy of the network: an `nn.Module`, of which nothing else is promised."""
        del arch
        copied: Any = deepcopy(self.blocks[_SLOT])
        found: PlainNetwork = copied
        return found
