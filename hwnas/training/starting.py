"""Starting from the weights of another supernet, also of other classes or another space.

What both supernets have under the same name is carried over, each axis as far as it reaches in
both; the rest keeps its fresh start. The first convolution is adapted to images with another
number of channels. Everything is reported.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hwnas.errors import UsageError
from hwnas.nets.build import axes_of
from hwnas.sharing.cut import DEFAULT_PICKS, axes_of_tensor
from hwnas.supernet import Supernet


@dataclass(frozen=True, kw_only=True, slots=True)
class Carried:
    """Names of tensors by what became of them."""

    whole: tuple[str, ...] = ()
    partly: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    classifier_is_new: bool = False
    channels: tuple[int, int] | None = None
    unused: tuple[str, ...] = field(default=())

    @property
    def remarks(self) -> list[str]:
        """What a person should know, a line each."""
        if not (self.whole or self.partly or self.fresh):
            return []
        lines = [
            f"starting weights: {len(self.whole)} tensors carried over whole, "
            f"{len(self.partly)} in part, {len(self.fresh)} start anew"
        ]
        if self.classifier_is_new:
            lines.append("the number of classes differs, so the classifier starts anew")
        if self.channels is not None:
            mine, theirs = self.channels
            lines.append(
                f"images have {mine} channel{'s' if mine > 1 else ''} instead of {theirs}: the "
                f"first convolution is {'summed' if mine < theirs else 'spread'} over them"
            )
        for what, names in (("in part", self.partly), ("anew", self.fresh)):
            if names:
                lines.append(f"  {what}: {_some(names)}")
        if self.unused:
            lines.append(f"  not used: {_some(self.unused)}")
        return lines


def start_from(supernet: Supernet, source: Supernet) -> Carried:
    """Copy what fits from `source` into `supernet`; raises UsageError if nothing does."""
    ours: dict[str, Tensor] = dict(supernet.named_parameters())
    theirs: dict[str, Tensor] = dict(source.named_parameters())
    classes = supernet.space.options["classes"], source.space.options["classes"]
    new_classifier = set(_classifier(supernet)) if classes[0] != classes[1] else set()
    axes = _axes(supernet)
    channels = _channels(supernet, source)
    if channels is not None:
        theirs[channels.name] = channels.weight
    whole, partly, fresh = [], [], []
    for name, tensor in ours.items():
        other = theirs.get(name)
        if name in new_classifier or other is None or other.dim() != tensor.dim():
            fresh.append(name)
        elif other.shape == tensor.shape:
            _copy(tensor, other, axes[name], supernet)
            whole.append(name)
        else:
            _copy(tensor, other, axes[name], supernet)
            partly.append(name)
    if not whole and not partly:
        raise UsageError(
            f"no weight of space {source.space.name} fits space {supernet.space.name}",
            "start from a supernet of the same or a similar space",
        )
    return Carried(
        whole=tuple(whole),
        partly=tuple(partly),
        fresh=tuple(fresh),
        classifier_is_new=bool(new_classifier),
        channels=None if channels is None else channels.numbers,
        unused=tuple(name for name in theirs if name not in ours),
    )


@dataclass(frozen=True, slots=True)
class _FirstConvolution:
    name: str
    weight: Tensor
    numbers: tuple[int, int]


def _channels(supernet: Supernet, source: Supernet) -> _FirstConvolution | None:
    """Return the source's first convolution for our number of channels, if that differs.

    Three equal colours then give what one grey channel gives, and the other way round.
    """
    mine, yours = (of.space.options.get("channels") for of in (supernet, source))
    if mine == yours or mine is None or yours is None:
        return None
    first = next(iter(source.blocks))
    for name, tensor in source.named_parameters():
        if name.startswith(f"blocks.{first}.") and tensor.dim() == 4 and tensor.shape[1] == yours:
            grey = tensor.detach().sum(1, keepdim=True)
            weight = grey if mine == 1 else (grey / mine).expand(-1, mine, -1, -1)
            return _FirstConvolution(name, weight, (mine, yours))
    return None


def _classifier(supernet: Supernet) -> Iterable[str]:
    """Yield the tensors with an axis that counts classes."""
    classes = supernet.space.options["classes"]
    last = list(supernet.blocks)[-1]
    for name, tensor in supernet.named_parameters():
        if name.startswith(f"blocks.{last}.") and len(tensor) == classes:
            yield name


def _axes(supernet: Supernet) -> dict[str, tuple[str, ...]]:
    names = {}
    covering = supernet.space.covering()
    for name, _ in supernet.named_parameters():
        _, slot, inner = name.split(".", 2)
        table = axes_of(covering[slot][0])
        names[name] = axes_of_tensor(table, inner, slot)
    return names


def _copy(into: Tensor, other: Tensor, axes: tuple[str, ...], supernet: Supernet) -> None:
    """Copy the entries both have: cropped axes share their middle, others their beginning."""
    mine, yours = [], []
    for axis, size, their_size in zip(axes, into.shape, other.shape, strict=True):
        common = min(size, their_size)
        pick = supernet.space.picks.get(axis, DEFAULT_PICKS.get(axis, "ordinal"))
        start = ((size - common) // 2, (their_size - common) // 2) if pick == "centre" else (0, 0)
        mine.append(slice(start[0], start[0] + common))
        yours.append(slice(start[1], start[1] + common))
    with torch.no_grad():
        into[tuple(mine)].copy_(other[tuple(yours)])


def _some(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown
