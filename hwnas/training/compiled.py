"""torch.compile of single blocks.

A whole network would be compiled again for every architecture; blocks are met again and again.
Each distinct block is compiled once, when it is first used in training: seconds each, so it pays
only in long trainings.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from hwnas.errors import HwnasError

Prepare = Callable[[Iterable[nn.Module]], None]


def block_compiler(device: torch.device, *, backend: str = "inductor") -> Prepare:
    """Return a function that makes blocks compile themselves when they are first called.

    Raises HwnasError if this machine cannot compile for `device`.
    """
    # The compiler looks at a field of each of a block's inputs, which torch warns of.
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
    _try_out(device, backend)
    compiling: WeakSet[nn.Module] = WeakSet()

    def prepare(blocks: Iterable[nn.Module]) -> None:
        for block in blocks:
            if block not in compiling:
                block.compile(**_options(backend))
                compiling.add(block)

    return prepare


def _options(backend: str) -> dict[str, Any]:
    # Blocks share their code; each needs a cache of its own, or they use up each other's limit.
    # Sizes within a block never change.
    return {"backend": backend, "dynamic": False, "isolate_recompiles": True}


def _try_out(device: torch.device, backend: str) -> None:
    def tiny(x: Tensor) -> Tensor:
        return x.sin() + 1

    try:
        torch.compile(tiny, **_options(backend))(torch.zeros(4, device=device))
    except (RuntimeError, TypeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise HwnasError(
            f"process.compile is blocks, and torch cannot compile here: {lines[0]}",
            "install a C++ compiler such as g++ (for GPUs: Triton), or set process.compile=off",
        ) from error
