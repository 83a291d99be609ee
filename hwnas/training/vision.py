"""timm, imported late and also beside a torch that lacks torchvision's compiled operators.

timm cannot be imported without torchvision. The torchvision of the package index is compiled
against CUDA; beside a CPU-only torch its operators never register, and its Python half fails on
the first one it describes. Declaring the two missing names lets everything else of it work.
"""

import sys
from collections.abc import MutableMapping
from importlib import import_module
from types import ModuleType
from typing import Any

from hwnas.errors import MissingPackageError

_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_OPERATORS = ("nms", "qnms")
# A torch library unregisters its operators when it is collected.
_declared: list[Any] = []


def import_timm(submodule: str = "data") -> ModuleType:
    """Return `timm.<submodule>`; raises MissingPackageError if timm is not installed."""
    try:
        _ensure_torchvision()
        return import_module(f"timm.{submodule}")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("timm", "torchvision", "torch"):
            raise
        raise MissingPackageError(
            f"this needs the package {error.name}, which is not installed",
            'pip install "hwnas[all]"',
        ) from error


def _ensure_torchvision() -> None:
    try:
        import_module("torchvision")
    except RuntimeError as error:
        # Only after the real import failed: declaring the names beside a working torchvision
        # aborts the process.
        if "torchvision::" not in str(error):
            raise
        _forget("torchvision", sys.modules)
        _declare_operators()
        import_module("torchvision")


def _forget(package: str, modules: MutableMapping[str, ModuleType]) -> None:
    """Remove a package that was imported halfway."""
    for name in [name for name in modules if name.partition(".")[0] == package]:
        del modules[name]


def _declare_operators() -> None:
    import torch

    library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
    for operator in _OPERATORS:
        library.define(operator + _SCHEMA)
    _declared.append(library)
