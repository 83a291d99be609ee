"""External teachers: timm models, their checkpoints, or subnets of earlier runs."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from hwnas.errors import HwnasError, UsageError
from hwnas.supernet import load_subnet
from hwnas.training.vision import import_timm

_ACCEPTED = "a timm model name, name@checkpoint-file, or the folder of a subnet"


def load_teacher(
    models: Sequence[str],
    *,
    pretrained: bool,
    temperature: float,
    classes: int,
    channels: int,
    device: torch.device,
) -> Callable[[Tensor], Tensor] | None:
    """Return a function from images to the teachers' mean probabilities; None without models.

    Each entry of `models` is a timm model name, such a name with `@` and a checkpoint file, or
    the folder of a subnet. A temperature below one sharpens.
    """
    if not models:
        return None
    teachers = [
        _load(name, pretrained=pretrained, classes=classes, channels=channels)
        .to(device)
        .eval()
        .requires_grad_(False)
        for name in models
    ]

    def probabilities(images: Tensor) -> Tensor:
        predictions = [(teacher(images) / temperature).softmax(-1) for teacher in teachers]
        return torch.stack(predictions).mean(0)

    return probabilities


def _load(entry: str, *, pretrained: bool, classes: int, channels: int) -> nn.Module:
    if Path(entry).is_dir():
        network = load_subnet(Path(entry))
        theirs = network.description
        for what, its, ours in (
            ("classes", theirs.classes, classes),
            ("channels", theirs.channels, channels),
        ):
            if its != ours:
                raise UsageError(f"teacher {entry} has {its} {what}, the data {ours}")
        return network
    name, _, checkpoint = entry.partition("@")
    timm = import_timm("models")
    if not timm.is_model(name):
        near = timm.list_models(f"*{name.split('_')[0]}*")[:5]
        raise UsageError(
            f"unknown teacher {entry!r}; accepted: {_ACCEPTED}",
            f"timm has for example {', '.join(near)}" if near else "",
        )
    if checkpoint and not Path(checkpoint).is_file():
        raise UsageError(f"teacher {name}: {checkpoint} is no file")
    try:
        model: nn.Module = timm.create_model(
            name,
            pretrained=pretrained and not checkpoint,
            num_classes=classes,
            in_chans=channels,
            checkpoint_path=checkpoint,
        )
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise HwnasError(
            f"teacher {entry} cannot be loaded: {reason}", f"accepted: {_ACCEPTED}"
        ) from error
    return model
