"""Trains a few steps on this process's piece of each batch; run by test_distributed.py.

One space is declared here, with blocks of its own and no batch norm, so that two processes can
be compared exactly with one; the other is `nano`, with synchronised batch norms.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hwnas.nets import build
from hwnas.spaces import Part, Placed, Space
from hwnas.spaces.blocks import Operation, Transformer
from hwnas.spaces.catalog.nano import nano
from hwnas.supernet import Supernet
from hwnas.training.distributed import Ranks, ranks
from hwnas.training.flat import FlatParameters
from hwnas.training.loader import Piece
from hwnas.training.losses import kl
from hwnas.training.merges import Merge
from hwnas.training.optimise import LossScale, make_optimiser
from hwnas.training.plans import Moment, sandwich
from hwnas.training.step import NonFiniteLossError, Stepper, StepSettings


@dataclass(frozen=True)
class Patches:
    dim: int

    def side_after(self, side: int) -> int:
        return side // 4

    def operations(self, side: int) -> Iterator[Operation]:
        yield Operation("conv", 48 * self.dim * (side // 4) ** 2, 49 * self.dim, 0)


@dataclass(frozen=True)
class Mean:
    dim: int

    def side_after(self, side: int) -> int:
        return 1

    def operations(self, side: int) -> Iterator[Operation]:
        yield Operation("linear", 10 * self.dim, 11 * self.dim, 10)


class PatchModule(nn.Module):
    AXES = {"conv.weight": ("dim", "-", "-", "-"), "conv.bias": ("dim",)}

    def __init__(self, block: Patches) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, block.dim, 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x)


class MeanModule(nn.Module):
    AXES = {"linear.weight": ("-", "dim"), "linear.bias": ("-",)}

    def __init__(self, block: Mean) -> None:
        super().__init__()
        self.linear = nn.Linear(block.dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x.mean((2, 3)))


def token_space() -> Space:
    build.MODULES = {**build.MODULES, Patches: PatchModule, Mean: MeanModule}

    def first(genes) -> tuple[Placed, ...]:
        return (Placed("patches", Patches(genes["dim"]), 16),)

    def middle(genes) -> tuple[Placed, ...]:
        block = Transformer(dim=genes["dim"], side=4, joint_norm=False)
        return tuple(Placed(f"layer_{i}", block, 4) for i in range(genes["depth"]))

    def last(genes) -> tuple[Placed, ...]:
        return (Placed("mean", Mean(genes["dim"]), 4),)

    return Space(
        "tokens",
        genes={"dim": (16, 24, 32), "depth": (1, 2, 3)},
        parts=(
            Part("in", ("dim",), first),
            Part("layers", ("dim", "depth"), middle),
            Part("out", ("dim",), last),
        ),
        side=16,
        options={"classes": 10, "channels": 3},
    )


def _meet_a_broken_image(stepper: Stepper, tasks, out: str, here: Ranks) -> None:
    """Let one rank's images make its losses infinite; both have to end, and to say so."""
    images = torch.randn(4, 3, 16, 16, dtype=torch.double)
    if here.rank == 1:
        images[0] = float("nan")
    before = stepper.flat.weights.clone()
    said = ""
    try:
        stepper(images, torch.zeros(4, dtype=torch.int64), tasks, learning_rate=1e-2)
    except NonFiniteLossError as error:
        said = error.message
    torch.save((torch.equal(before, stepper.flat.weights), said), out)


def main(space_name: str, merge: str, out: str) -> None:
    torch.set_num_threads(1)
    priority = {"sum": "none", "project": "subnets", "broken": "subnets"}[merge]
    with ranks(torch.device("cpu")) as here:
        space = token_space() if space_name == "tokens" else nano()
        supernet = Supernet(space).double().train()
        flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
        optimiser = make_optimiser(
            "adamw", flat, weight_decay=0.01, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
        )
        settings = StepSettings(
            distillation=kl, merge=Merge(priority=priority), clip=0.5,
            synchronises_norms=space_name == "nano-synchronised",
        )  # fmt: skip
        stepper = Stepper(
            supernet, flat, optimiser, settings,
            average=None, loss_scale=LossScale(enabled=False), ranks=here,
        )  # fmt: skip
        plan = sandwich(space, random=2, distils=True)
        generator = torch.Generator().manual_seed(0)
        if merge == "broken":
            _meet_a_broken_image(stepper, plan(Moment(0, 0, 0)), f"{out}.{here.rank}", here)
            return
        conflicts = []
        for step in range(4):
            images = torch.randn(16, 3, 16, 16, generator=generator, dtype=torch.double)
            labels = torch.randint(0, 10, (16,), generator=generator)
            mine = Piece(rank=here.rank, world=here.world).of(16)
            result = stepper(
                images[mine], labels[mine], plan(Moment(0, 0, step)),
                learning_rate=1e-2, measures_conflicts=True,
            )  # fmt: skip
            conflicts.append(result.conflict_ratio)
        torch.save((flat.weights, conflicts), f"{out}.{here.rank}")


if __name__ == "__main__":
    main(*sys.argv[1:])
