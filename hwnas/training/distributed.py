"""Several processes that train one supernet: no wrapper, two all_reduces of flat gradients a step.

Started by torchrun; NCCL on GPUs, gloo on CPUs. All ranks train the same subnets and see their
own piece of every batch. Gradients of supernet and subnets are averaged apart, before they are
merged, so that the projection is that of the whole batch.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process writes files and progress."""
        return self.rank == 0

    def average(self, vector: Tensor) -> None:
        """Replace `vector` by its mean over the ranks."""
        if self.world > 1:
            dist.all_reduce(vector)
            vector.div_(self.world)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def gather(self, vector: Tensor) -> Tensor:
        """Return the vectors of all ranks as rows, the same on every rank."""
        if self.world == 1:
            return vector[None]
        rows = [torch.empty_like(vector) for _ in range(self.world)]
        dist.all_gather(rows, vector)
        return torch.stack(rows)

    def agreed(self, *flags: bool, device: torch.device) -> tuple[bool, ...]:
        """Return for each flag whether any rank has raised it.

        Clocks and signals differ between ranks; what depends on them has to be decided together,
        or one rank waits for a checkpoint while another trains on.
        """
        if self.world == 1:
            return flags
        raised = torch.tensor(flags, dtype=torch.int32, device=device)
        dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes if torchrun started this one, and leave them at the end."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield Ranks()
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield Ranks(
            rank=dist.get_rank(), world=world, local_rank=int(os.environ.get("LOCAL_RANK", "0"))
        )
    finally:
        dist.destroy_process_group()
