"""Random draws that depend on (seed, purpose, counters) alone, so that nothing needs saving.

timm's and torchvision's transforms draw from the three global generators. They are set for the
call and put back after it, so that nobody else's randomness depends on ours.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

# One number per purpose: streams of different purposes never coincide.
PURPOSES = {"order": 1, "images": 2, "sample": 3, "mixing": 4, "heldout": 5, "test": 6}


def generator(seed: int, purpose: str, *counters: int) -> np.random.Generator:
    """Return the generator of `purpose` at `counters`, for example (epoch, batch)."""
    return np.random.default_rng([seed, PURPOSES[purpose], *counters])


def number(seed: int, purpose: str, *counters: int) -> int:
    """Return a seed of 32 bits that depends on the arguments alone."""
    sequence = np.random.SeedSequence([seed, PURPOSES[purpose], *counters])
    return int(sequence.generate_state(1)[0])


@contextmanager
def borrowed_globals() -> Iterator[None]:
    """Put back the state of the generators of `random` and `numpy.random` at the end."""
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


@contextmanager
def seeded_torch(seed: int, *, device: "torch.device") -> Iterator[None]:
    """Seed what dropout on a device draws from for the body; put it back at the end.

    Draws on a GPU come from the default generator of that GPU, others from torch's global one.
    """
    import torch

    gpus = []
    if device.type == "cuda":
        gpus = [torch.cuda.current_device() if device.index is None else device.index]
    with torch.random.fork_rng(devices=gpus):
        # Not torch.manual_seed: that would also reseed every other GPU.
        for own in (torch.default_generator, *(torch.cuda.default_generators[g] for g in gpus)):
            own.manual_seed(seed)
        yield


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed `random`, `numpy.random` and torch for the body; put all three back at the end."""
    import torch

    with borrowed_globals(), seeded_torch(seed, device=torch.device("cpu")):
        random.seed(seed)
        np.random.seed(seed)
        yield
