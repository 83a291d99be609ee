"""Events of a training as TensorBoard scalars, when tensorboard is installed and asked for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hwnas.errors import MissingPackageError


def scalar_writer(folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """Return a function that writes the numbers of an event to `folder`.

    What an earlier session of the run wrote from the first event's step on is hidden, because a
    resumed run does it again.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "process.tensorboard is on, and tensorboard is not installed",
            "pip install 'hwnas[tensorboard]'",
        ) from error
    writers: list[Any] = []

    def write(event: Mapping[str, Any]) -> None:
        if not writers:
            writers.append(SummaryWriter(str(folder), purge_step=event["step"]))
        for name, value in _scalars(event):
            writers[0].add_scalar(name, value, event["step"])
        writers[0].flush()

    return write


def _scalars(event: Mapping[str, Any]) -> list[tuple[str, float]]:
    scalars = []
    for key, value in event.items():
        if isinstance(value, dict):
            scalars += [(f"{key}/{name}", float(number)) for name, number in value.items()]
        elif isinstance(value, float):
            scalars.append((key, value))
    return scalars
