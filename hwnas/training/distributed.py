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

from hwnas.errors import HwnasError, UsageError, memory_shortage
from hwnas.training.loader import readers_ended


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
            with _together():
                dist.all_reduce(vector)
            vector.div_(self.world)

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of `values` over the ranks."""
        if self.world > 1:
            with _together():
                dist.all_reduce(values)
        return values

    def gather(self, vector: Tensor) -> Tensor:
        """Return the vectors of all ranks as rows, the same on every rank."""
        if self.world == 1:
            return vector[None]
        rows = [torch.empty_like(vector) for _ in range(self.world)]
        with _together():
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
        with _together():
            dist.all_reduce(raised, op=dist.ReduceOp.MAX)
        return tuple(bool(flag) for flag in raised.tolist())

    def wait(self) -> None:
        """Wait for all ranks."""
        if self.world > 1:
            with _together():
                dist.barrier()

    def own(self, device: torch.device) -> torch.device:
        """Return the GPU of this process, if the run is on GPUs; `device` if it is alone."""
        if self.world == 1 or device.type != "cuda":
            return device
        return torch.device("cuda", self.local_rank)


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    # gloo's and NCCL's errors: another process failed, said why, and closed its connections.
    except RuntimeError as error:
        if memory_shortage(error) is not None or readers_ended(error) is not None:
            raise  # of this process
        raise HwnasError(
            f"another process of the training ended ({str(error).strip().splitlines()[0]})",
            "what it said is the cause; then the same command goes on",
        ) from error


@contextmanager
def ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the other processes if torchrun started this one, and leave them at the end."""
    world, local_rank = _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0)
    if world == 1:
        yield Ranks()
        return
    gpus = torch.cuda.device_count() if device.type == "cuda" else 0
    if device.type == "cuda" and local_rank >= gpus:
        raise UsageError(
            f"LOCAL_RANK is {local_rank}, and torch finds {gpus} GPUs; accepted: below that",
            f"torchrun --nproc-per-node {gpus} -m hwnas ...",
        )
    try:
        if device.type == "cuda":
            # Before the first barrier: it uses the current GPU, the first one in every process.
            torch.cuda.set_device(local_rank)
            dist.init_process_group("nccl", device_id=torch.device("cuda", local_rank))
        else:
            dist.init_process_group("gloo")
    except (ValueError, RuntimeError) as error:
        raise HwnasError(
            f"WORLD_SIZE is {world}, and this process cannot join the others "
            f"({str(error).strip().splitlines()[0]})",
            "torchrun --nproc-per-node N -m hwnas ... starts all of them; for one process: "
            "unset WORLD_SIZE",
        ) from error
    try:
        yield Ranks(rank=dist.get_rank(), world=world, local_rank=local_rank)
    except BaseException:
        # Leaving in good order waits for the others, who may wait for what will not come.
        if dist.group.WORLD is not None:
            dist.group.WORLD.abort()
        raise
    dist.destroy_process_group()


def _number(variable: str, default: int) -> int:
    given = os.environ.get(variable, "").strip() or str(default)
    if not given.isdecimal():
        raise UsageError(
            f"the environment variable {variable} is {given!r}; accepted: a number, as torchrun "
            "sets it"
        )
    return int(given)
