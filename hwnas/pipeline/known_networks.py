"""Networks that others designed, by name: any of timm's, with arguments where a name is not enough.

`resnet10t` is a name; `vit_tiny_patch16_224:patch_size=4:depth=4` is one with arguments.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from typing import Any

import torch
from torch import nn

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.io import digest
from hwnas.training.vision import import_timm

DEFAULT_COUNT = 5
# In a range of MACs twice as wide as that of a space, to both sides.
_WIDER = 2.0
_OURS = ("num_classes", "in_chans", "img_size", "pretrained")
# What networks raise that cannot be built, or cannot take images of a size.
_REFUSALS = (
    RuntimeError, ValueError, TypeError, AssertionError, ArithmeticError, LookupError,
    AttributeError,
)  # fmt: skip
_SMALL_VIT = "vit_tiny_patch16_224:patch_size=4:embed_dim=64:depth=4:num_heads=4"


# What is compared with unless somebody names others, by kind; those of timm's tests and the small
# transformer are for small images, whole transformers for large ones.
_ANY: Mapping[str, tuple[str, ...]] = {
    "mobile": (
        "mobilenetv2_050", "mobilenetv2_100", "mobilenetv3_small_050", "mobilenetv3_small_100",
        "mobilenetv3_large_100", "mobilenetv4_conv_small", "mobilenetv4_conv_medium",
        "efficientnet_b0",
    ),
    "residual": ("resnet10t", "resnet18", "regnetx_002", "regnety_008"),
    "hybrid": ("mobilevit_xxs", "efficientvit_b0", "efficientvit_b1"),
}  # fmt: skip
_SMALL: Mapping[str, tuple[str, ...]] = {"residual": ("test_resnet",), "transformer": (_SMALL_VIT,)}
_LARGE: Mapping[str, tuple[str, ...]] = {
    "residual": ("resnet50",),
    "transformer": ("deit_tiny_patch16_224", "deit_small_patch16_224"),
}
_SMALL_SIDE, _LARGE_SIDE = 64, 128


@dataclass(frozen=True, kw_only=True, slots=True)
class Images:
    """What a network is built for."""

    classes: int
    channels: int
    side: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """The shape of one image, as torch has it."""
        return (self.channels, self.side, self.side)


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A network as it was named; `macs` and `params` of the one that was built."""

    entry: str
    macs: int
    params: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _Parsed:
    model: str
    arguments: dict[str, Any] = field(default_factory=dict)


def folder_name(entry: str) -> str:
    """Return a name for files about a network; different entries have different ones."""
    plain = entry.replace(":", "+")
    safe = re.sub(r"[^\w.+=-]", "-", plain)
    return safe if safe == plain else f"{safe}-{digest(entry)[:6]}"


def build(entry: str, images: Images, *, seed: int) -> nn.Module:
    """Return the network of an entry, with the weights of a seed; raises if it does not fit."""
    parsed = _parse(entry)
    timm = import_timm("models")
    if not timm.is_model(parsed.model):
        raise unknown_name(
            "network", parsed.model, timm.list_models(), hint=f"names are timm's; try {_SMALL_VIT}"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            network = _created(timm.create_model, parsed, images)
            _try_out(network, images)
        except _REFUSALS as error:
            raise UsageError(
                f"{entry} does not take {images.channels} channels of {images.side} pixels: "
                f"{_first_line(error)}",
                f"another network, or other arguments, such as {_SMALL_VIT}",
            ) from error
    return network


def known(entry: str, images: Images) -> Known:
    """Return what a network costs for one image."""
    network = build(entry, images, seed=0)
    params = sum(parameter.numel() for parameter in network.parameters())
    return Known(entry=entry, macs=count_macs(network, images), params=params)


def count_macs(network: nn.Module, images: Images) -> int:
    """Return the multiply-accumulates of convolutions, linears and attention for one image."""
    from torch.utils.flop_counter import FlopCounterMode

    was_training = network.training
    network.eval()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(1, *images.shape))
    network.train(was_training)
    return int(counter.get_total_flops()) // 2


def candidates_for(side: int) -> dict[str, tuple[str, ...]]:
    """Return well-known networks for images of a size, by kind."""
    sized = _SMALL if side <= _SMALL_SIDE else _LARGE if side >= _LARGE_SIDE else {}
    kinds = dict.fromkeys((*_ANY, *sized))
    return {kind: (*_ANY.get(kind, ()), *sized.get(kind, ())) for kind in kinds}


def usual(
    images: Images,
    macs: tuple[float, float],
    *,
    count: int = DEFAULT_COUNT,
    candidates: Mapping[str, Sequence[str]] | None = None,
    note: Callable[[str], None] = lambda _: None,
) -> list[Known]:
    """Return well-known networks that cost about as much as a space's, by MACs.

    `macs`: those of the smallest and of the largest of the space. One of each kind of
    `candidates` is in the middle of the range, the others are as far from these as can be.
    """
    low, high = macs[0] / _WIDER, macs[1] * _WIDER
    kinds = candidates_for(images.side) if candidates is None else candidates
    found: list[list[Known]] = []
    for entries in kinds.values():
        fitting = _fitting(entries, images, note)
        found.append([one for one in fitting if low <= one.macs <= high])
    if not any(found):
        raise HwnasError(
            f"no network that is known here costs {low:.3g} to {high:.3g} MACs for "
            f"{images.side} pixels",
            "name some: hwnas landmarks --run RUN resnet18 mobilenetv3_small_100",
        )
    middle = sqrt(low * high)
    chosen = [min(kind, key=lambda one: _apart(one.macs, middle)) for kind in found if kind]
    chosen = chosen[:count]
    rest = [one for kind in found for one in kind if one not in chosen]
    while rest and len(chosen) < count:
        chosen.append(max(rest, key=lambda one: min(_apart(one.macs, c.macs) for c in chosen)))
        rest.remove(chosen[-1])
    return sorted(chosen, key=lambda one: (one.macs, one.entry))


def _fitting(
    entries: Sequence[str], images: Images, note: Callable[[str], None]
) -> Iterator[Known]:
    for entry in entries:
        try:
            yield known(entry, images)
        except UsageError as error:
            note(f"left out: {error.message}")


def _apart(first: float, second: float) -> float:
    return abs(log(first / second))


def for_inference(network: nn.Module) -> nn.Module:
    """Return the network with branches merged that only training needs, where it has such."""
    merged: nn.Module = import_timm("utils.model").reparameterize_model(network)
    return merged.eval()


def _parse(entry: str) -> _Parsed:
    model, *rest = entry.split(":")
    arguments: dict[str, Any] = {}
    for part in rest:
        name, equals, text = part.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(
                f"{part!r} in {entry!r}; accepted: NAME:ARGUMENT=VALUE", f"such as {_SMALL_VIT}"
            )
        if name in _OURS:
            raise UsageError(
                f"{name} in {entry!r} follows from the data of the run", "leave it out"
            )
        try:
            arguments[name] = json.loads(text)
        except ValueError:
            arguments[name] = text
    return _Parsed(model=model, arguments=arguments)


def _created(create: Callable[..., nn.Module], parsed: _Parsed, images: Images) -> nn.Module:
    """Return the network; only some have to know the size of images."""
    given = {"num_classes": images.classes, "in_chans": images.channels, **parsed.arguments}
    try:
        return create(parsed.model, img_size=images.side, **given)
    except TypeError:
        return create(parsed.model, **given)


def _try_out(network: nn.Module, images: Images) -> None:
    """Run a batch forth and back: some networks can be built, and nothing more."""
    batch = torch.randn(2, *images.shape)
    logits = network.train()(batch)
    if tuple(logits.shape) != (2, images.classes):
        raise ValueError(f"it answers with {tuple(logits.shape)}")
    logits.sum().backward()
    network.zero_grad(set_to_none=True)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
