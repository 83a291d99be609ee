"""Small runs to test with: a supernet trained for seconds, and one of imported weights."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.rundir import Run, create_run, save_supernet
from hwnas.pipeline.training_run import train_run
from hwnas.sharing.shared import Shared
from hwnas.spaces import space
from hwnas.supernet import Supernet
from hwnas.testing.supernets import randomised_supernet

# Ten steps on the digits, 28 pixels wide.
SMALL = (
    'data.name="digits"',
    "data.image_size=28",
    "data.heldout=100",
    "schedule.epochs=1",
    "optimiser.batch_size=128",
    "evaluation.calibration_images=256",
    "evaluation.random_subnets=0",
    "process.threads=1",
)


def small_run(folder: Path) -> Path:
    """Train the nano supernet on the digits in `folder`, and return it."""
    recipe = read_recipe("nano-fashion", SMALL)
    train_run(folder, recipe, start=None, note=_ignore, watch=_ignore, stop=lambda: False)
    return folder


def imported_run(folder: Path, *, statistics: bool = True) -> Run:
    """Return a run as `hwnas import` leaves it: random weights, no recipe."""
    of = space("nano", classes=10, channels=1)
    supernet = randomised_supernet(of)
    if statistics:
        _add_statistics(supernet)
    run = create_run(folder, of=of, origin={"importer": "test"})
    save_supernet(run, supernet, step=0)
    return run


def _add_statistics(supernet: Supernet) -> None:
    generator = torch.Generator().manual_seed(1)
    for slot, block in supernet.at(supernet.space.largest()).items():
        shared = supernet.blocks[slot]
        assert isinstance(shared, Shared)
        norms = [name for name, part in block.named_modules() if isinstance(part, nn.BatchNorm2d)]
        for name in norms:
            size = len(shared.get_parameter(f"{name}.weight"))
            mean, spread = torch.randn(2, size, generator=generator)
            shared.add_statistics(f"{name}.running_mean", mean)
            shared.add_statistics(f"{name}.running_var", 1 + spread.square())


def _ignore(_: Any) -> None:  # noqa: ANN401 - whatever is told
    return
