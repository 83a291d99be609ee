"""External teachers: timm models, their checkpoints, or subnets of earlier runs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hwnas.errors import HwnasError, UsageError, unknown_name
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
        return _subnet(Path(entry), classes=classes, channels=channels)
    name, _, checkpoint = entry.partition("@")
    timm = import_timm("models")
    if not timm.is_model(name):
        raise unknown_name("teacher", name, timm.list_models(), hint=f"accepted: {_ACCEPTED}")
    if checkpoint and not Path(checkpoint).is_file():
        raise UsageError(f"teacher {name}: {checkpoint} is no file")
    if pretrained and not checkpoint:
        _check_classes(timm.get_pretrained_cfg(name), name, classes)
    try:
        model: nn.Module = timm.create_model(
            name,
            pretrained=pretrained and not checkpoint,
            num_classes=classes,
            in_chans=channels,
            checkpoint_path=checkpoint,
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise HwnasError(
            f"teacher {entry} cannot be loaded: {_first_line(error)}",
            'without internet: give a file, losses.teacher.models=["NAME@FILE"]; '
            f"accepted: {_ACCEPTED}",
        ) from error
    return model


def _subnet(folder: Path, *, classes: int, channels: int) -> nn.Module:
    network = load_subnet(folder)
    theirs = network.description
    for what, its, ours in (
        ("classes", theirs.classes, classes),
        ("channels", theirs.channels, channels),
    ):
        if its != ours:
            raise UsageError(f"teacher {folder} has {its} {what}, the data {ours}")
    return network


def _check_classes(config: Any, name: str, classes: int) -> None:  # noqa: ANN401 - untyped timm
    """Refuse a teacher whose classifier would start anew: it knows nothing of these classes."""
    theirs = getattr(config, "num_classes", classes)
    if theirs != classes:
        raise UsageError(
            f"teacher {name} was trained on {theirs} classes, the data have {classes}",
            f'fine-tune it on the data and give the file: losses.teacher.models=["{name}@FILE"]',
        )


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
