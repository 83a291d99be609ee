"""Memory for maps that are needed within one function only, kept from call to call.

Taken from the allocator each time, they would leave holes between the maps that stay, into which
the next map often does not fit: a quarter of a gigabyte in a step of `nasvit`.
"""

import threading

from torch import Tensor


class Scratch(threading.local):
    """One piece of memory per purpose and thread, as long as the longest that was asked for."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def flat(self, x: Tensor, size: int, purpose: str) -> Tensor:
        """Return `size` entries of any values, of the type of x."""
        kept = self._kept.get(purpose)
        if kept is None or kept.numel() < size:
            # Forgotten first, so that not both are there at once.
            self._kept.pop(purpose, None)
            del kept
            kept = self._kept[purpose] = x.new_empty(size)
        return kept[:size]

    def like(self, x: Tensor, purpose: str) -> Tensor:
        """Return a tensor of any values in the shape, type and layout of x."""
        return self.flat(x, x.numel(), purpose).as_strided(x.shape, x.stride())


scratch = Scratch()
