"""External teachers: timm models, their checkpoints, or subnets of earlier runs.

A teacher sees the same augmented images as the supernet, at the size of the data. Weights that
timm fetches, and subnets, get them normalised as they were trained with; a model for one size only
gets them scaled to it.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.interop.checkpoint import read_checkpoint, state_dict_of
from hwnas.supernet import load_subnet, read_card
from hwnas.supernet.card import CARD_FILE
from hwnas.training.datasets import Data
from hwnas.training.vision import import_timm

_ACCEPTED = "a timm model name, NAME@FILE with a checkpoint of it, or the folder of a subnet"
# Where training programs keep the weights that they evaluate, timm's first.
_KEYS = ("state_dict_ema", "model_ema", "state_dict", "model")


def load_teacher(
    models: Sequence[str],
    *,
    pretrained: bool,
    temperature: float,
    data: Data,
    device: torch.device,
) -> Callable[[Tensor], Tensor] | None:
    """Return a function from images to the teachers' mean probabilities; None without models.

    Each entry of `models` is a timm model name, such a name with `@` and a checkpoint file, or
    the folder of a subnet. A temperature below one sharpens. Raises HwnasError if a teacher does
    not know the classes of `data`, or cannot take its images.
    """
    if not models:
        return None
    teachers = []
    for name in models:
        teacher = _load(name, pretrained=pretrained, data=data).to(device)
        teacher.eval().requires_grad_(False)
        _check_takes(teacher, name, data, device)
        teachers.append(teacher)

    def probabilities(images: Tensor) -> Tensor:
        predictions = [(teacher(images) / temperature).softmax(-1) for teacher in teachers]
        return torch.stack(predictions).mean(0)

    return probabilities


def _load(entry: str, *, pretrained: bool, data: Data) -> nn.Module:
    if Path(entry).is_dir():
        return _subnet(Path(entry), data)
    name, _, checkpoint = entry.partition("@")
    timm = import_timm("models")
    if not timm.is_model(name):
        if Path(entry).is_file():
            raise UsageError(
                f"teacher {entry}: a file does not say which model its weights are of",
                f'losses.teacher.models=["NAME@{entry}"], NAME being the one of timm',
            )
        known = timm.list_models() + timm.list_pretrained()
        near = get_close_matches(name, known, n=3, cutoff=0.4)
        all_of_them = ["what timm.list_models() gives"]
        raise unknown_name("teacher", name, near or all_of_them, hint=f"accepted: {_ACCEPTED}")
    if checkpoint and not Path(checkpoint).is_file():
        raise UsageError(f"teacher {name}: {checkpoint} is no file")
    fetches = pretrained and not checkpoint
    if fetches:
        _check_classes(timm.get_pretrained_cfg(name), name, len(data.classes))
    model = _created(name, fetches=fetches, data=data)
    if checkpoint:
        _fill(model, name, Path(checkpoint))
    return _of_timm(model, data, normalises=fetches)


def _created(name: str, *, fetches: bool, data: Data) -> nn.Module:
    timm = import_timm("models")
    try:
        model: nn.Module = timm.create_model(
            name, pretrained=fetches, num_classes=len(data.classes), in_chans=data.channels
        )
    except (RuntimeError, OSError, ValueError) as error:
        raise HwnasError(
            f"teacher {name} cannot be loaded: {_first_line(error)}",
            'without internet: give a file, losses.teacher.models=["NAME@FILE"]; '
            f"accepted: {_ACCEPTED}",
        ) from error
    return model


def _fill(model: nn.Module, name: str, file: Path) -> None:
    """Set a model's weights to those of a checkpoint, of which nothing is executed."""
    wanted = model.state_dict()
    found = state_dict_of(read_checkpoint(file), _KEYS)
    for tensor in sorted(wanted):
        if tensor not in found:
            said = f"it has no tensor {tensor}"
        elif found[tensor].shape != wanted[tensor].shape:
            said = (
                f"its {tensor} is {tuple(found[tensor].shape)}, not {tuple(wanted[tensor].shape)}"
            )
        else:
            continue
        raise UsageError(
            f"teacher {name}@{file} cannot be loaded: {said}",
            "the file has to be of this model, for as many classes and channels as the data have",
        )
    model.load_state_dict({tensor: found[tensor] for tensor in wanted})


class _Adapted(nn.Module):
    """A model that takes images as the data give them, and answers in the data's classes.

    `normalised`: mean and standard deviation of the images it was trained on; `side`: theirs, if
    it takes no others; `order`: where the classes of the data are among its own.
    """

    mean: Tensor
    std: Tensor
    its_mean: Tensor
    its_std: Tensor
    order: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        *,
        normalised: tuple[Sequence[float], Sequence[float]] | None = None,
        side: int | None = None,
        order: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self.model, self.side = model, side
        ours = (tuple(data.mean), tuple(data.std))
        theirs = ours if normalised is None else (tuple(normalised[0]), tuple(normalised[1]))
        self.differs = theirs != ours
        for name, values in zip(("mean", "std", "its_mean", "its_std"), ours + theirs, strict=True):
            self.register_buffer(name, torch.tensor(values)[:, None, None], persistent=False)
        places = None if order is None else torch.tensor(order)
        self.register_buffer("order", places, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits."""
        if self.differs:
            images = (images * self.std + (self.mean - self.its_mean)) / self.its_std
        if self.side is not None and images.shape[-1] != self.side:
            images = F.interpolate(images, (self.side, self.side), mode="bicubic", antialias=True)
        logits: Tensor = self.model(images)
        return logits if self.order is None else logits[:, self.order]


def _of_timm(model: nn.Module, data: Data, *, normalises: bool) -> nn.Module:
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    theirs = (config.get("mean", data.mean), config.get("std", data.std))
    return _Adapted(
        model,
        data,
        normalised=theirs if normalises and len(theirs[0]) == data.channels else None,
        side=int(config["input_size"][-1]) if config.get("fixed_input_size") else None,
    )


def _check_takes(teacher: nn.Module, name: str, data: Data, device: torch.device) -> None:
    side = data.image_size
    images = torch.zeros(1, data.channels, side, side, device=device)
    try:
        with torch.no_grad():
            teacher(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        raise UsageError(
            f"teacher {name} cannot take images of {side} pixels: {_first_line(error)}",
            "larger images (data.image_size), or another teacher",
        ) from error


def _subnet(folder: Path, data: Data) -> nn.Module:
    network = load_subnet(folder)
    theirs = network.description
    for what, its, ours in (
        ("classes", theirs.classes, len(data.classes)),
        ("channels", theirs.channels, data.channels),
    ):
        if its != ours:
            raise UsageError(f"teacher {folder} has {its} {what}, the data {ours}")
    if not (folder / CARD_FILE).is_file():
        return network
    card = read_card(folder)
    learned = card.preprocessing
    return _Adapted(
        network,
        data,
        normalised=None if learned is None else (learned.mean, learned.std),
        order=None if card.classes is None else _places(card.classes, folder, data),
    )


def _places(theirs: tuple[str, ...], folder: Path, data: Data) -> list[int] | None:
    """Return where the classes of the data are among a teacher's, None if in the same order."""
    if theirs == data.classes:
        return None
    if sorted(theirs) != sorted(data.classes):
        unknown = sorted(set(data.classes) - set(theirs))
        raise UsageError(
            f"teacher {folder} was trained on other classes than those of {data.name}: it does "
            f"not know {', '.join(unknown[:4])}{' and others' if len(unknown) > 4 else ''}",
            "a subnet that was trained on these classes; where only their names differ, folders "
            f"with the teacher's: {', '.join(theirs[:4])}{' ...' if len(theirs) > 4 else ''}",
        )
    return [theirs.index(name) for name in data.classes]


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
