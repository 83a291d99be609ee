"""A small torch module for the suites of things that measure or export modules."""

from collections.abc import Mapping
from typing import Any

from hwnas.profiling.backends import ModuleModel


def small_convnet(argument: Mapping[str, Any]) -> ModuleModel:
    """Return a small convolutional network; `argument["width"]` is its number of channels."""
    from torch import nn

    width = int(argument["width"])
    module = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(width, 10),
    )
    return ModuleModel(module=module, input_shape=(3, 12, 12))
