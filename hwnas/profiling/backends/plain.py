"""The torch module of an architecture, made in the process that measures it.

Only a measuring process of the torch backends imports this, by name: it needs `hwnas.nets`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from hwnas.nets import build_network
from hwnas.profiling.backends.base import ModuleModel
from hwnas.profiling.sampling import space_of


def plain_model(document: Mapping[str, Any]) -> ModuleModel:
    """Return the plain network of an architecture document, with random weights."""
    space = space_of(document)
    network = space.network(space.arch_from_json(document))
    torch.manual_seed(0)
    sample = (network.channels, network.side, network.side)
    return ModuleModel(module=build_network(network), input_shape=sample)
