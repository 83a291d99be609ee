"""The supernet's parameters, gradients and averages as flat vectors.

Optimiser, clipping, merging, averaging and all_reduce then work on a few long vectors instead of
a thousand short ones, and a step allocates nothing. Parameters with weight decay come first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.sharing.cut import add_back
from hwnas.sharing.shared import Lent, plant


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive entries of the flat vectors that belong to `name`."""

    name: str
    start: int
    size: int

    @property
    def entries(self) -> slice:
        """The entries as a slice."""
        return slice(self.start, self.start + self.size)


class FlatParameters:
    """One vector of weights that the supernet's parameters are views of.

    `gradients` are two vectors: of the subnets that learn from labels (the supernet, in a
    sandwich) and of those that learn from others. `attach` says which one autograd fills. The
    second has no memory between `zero` and its first use: the largest subnet runs then, which
    needs the most.
    """

    def __init__(self, supernet: nn.Module, *, decays: Callable[[str, Tensor], bool]) -> None:
        named = dict(supernet.named_parameters())
        order = sorted(named, key=lambda name: not decays(name, named[name]))
        self.decayed = sum(named[name].numel() for name in named if decays(name, named[name]))
        self.segments: list[Segment] = []
        start = 0
        for name in order:
            self.segments.append(Segment(name, start, named[name].numel()))
            start += named[name].numel()
        first = next(iter(named.values()))
        self.weights = torch.empty(start, device=first.device, dtype=first.dtype)
        self.gradients = (torch.zeros_like(self.weights), torch.zeros_like(self.weights))
        self._parameters: list[nn.Parameter] = []
        for segment in self.segments:
            old = named[segment.name]
            view = self.weights[segment.entries].view(old.shape)
            with torch.no_grad():
                view.copy_(old)
            # A detached view shares memory and version counter, so borrowed copies notice updates.
            parameter = nn.Parameter(view.detach(), requires_grad=old.requires_grad)
            plant(supernet, segment.name, parameter)
            self._parameters.append(parameter)
        self._places = {id(parameter): place for place, parameter in enumerate(self._parameters)}
        self._views = tuple(
            [
                gradient[segment.entries].view(parameter.shape)
                for segment, parameter in zip(self.segments, self._parameters, strict=True)
            ]
            for gradient in self.gradients
        )

    def attach(self, which: int) -> None:
        """Let autograd add into the gradient vector of that index."""
        if which == 1:
            self.complete()
        for parameter, view in zip(self._parameters, self._views[which], strict=True):
            parameter.grad = view

    def add(self, which: int, lent: Sequence[Lent], gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of what a subnet has borrowed to the gradient vector of that index."""
        if which == 1:
            self.complete()
        for one, gradient in zip(lent, gradients, strict=True):
            if gradient is not None:
                full = self._views[which][self._places[id(one.full)]]
                add_back(full, one.where, gradient)

    def zero(self) -> None:
        """Begin a step: both gradient vectors are zero, the second without taking memory."""
        self.gradients[0].zero_()
        self.gradients[1].untyped_storage().resize_(0)

    def complete(self) -> None:
        """Give the second gradient vector its memory, if it has none."""
        second = self.gradients[1]
        if second.untyped_storage().nbytes() == 0:
            second.untyped_storage().resize_(second.numel() * second.element_size())
            second.zero_()

    def parts(self) -> list[tuple[slice, bool]]:
        """Return the entries that decay and those that do not, where there are any."""
        size = self.weights.numel()
        parts = [(slice(0, self.decayed), True), (slice(self.decayed, size), False)]
        return [(entries, decays) for entries, decays in parts if entries.start < entries.stop]

    def named(self, vector: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yield the parts of a flat vector by parameter name, in the parameters' shapes."""
        for segment, parameter in zip(self.segments, self._parameters, strict=True):
            yield segment.name, vector[segment.entries].view(parameter.shape)


def scopes(segments: list[Segment], scope: str) -> list[list[Segment]]:
    """Return what is compared as one vector: each tensor, the tensors of a layer, or all."""
    if scope == "tensor":
        return [[segment] for segment in segments]
    if scope == "all":
        return [segments]
    layers: dict[str, list[Segment]] = {}
    for segment in segments:
        layers.setdefault(segment.name.rpartition(".")[0], []).append(segment)
    return list(layers.values())
