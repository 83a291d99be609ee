"""Training runs for benchmarks: in memory, several at once, each with one thread."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from hwnas.pipeline.config import read_recipe
from hwnas.spaces import Arch
from hwnas.supernet import Supernet, accuracy, calibrate
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks
from hwnas.training.loader import evaluation_batches
from hwnas.training.loop import Checkpoint, Progress, Training, batches_from, train
from hwnas.training.measure import calibration_images
from hwnas.training.plans import Task
from hwnas.training.prepare import prepare, space_for
from hwnas.training.recipe import Recipe

CPU = torch.device("cpu")


@dataclass
class MemoryKeeper:
    """Keeps events, and no checkpoints."""

    events: list[Mapping[str, Any]] = field(default_factory=list)

    def latest(self) -> Checkpoint | None:
        return None

    def save(self, checkpoint: Checkpoint, supernet: Supernet) -> None:
        return

    def event(self, event: Mapping[str, Any]) -> None:
        self.events.append(event)

    def conflict_ratio(self) -> float:
        """Return the mean over the second half of training, when it has settled."""
        ratios = [event["conflict_ratio"] for event in self.events if "conflict_ratio" in event]
        late = ratios[len(ratios) // 2 :]
        return sum(late) / len(late) if late else float("nan")


class Alone(nn.Module):
    """One plain network under the interface of a supernet."""

    def __init__(self, network: nn.Module, space: Any) -> None:
        super().__init__()
        self.network, self.space = network, space

    def forward(self, images: torch.Tensor, arch: Arch) -> torch.Tensor:
        return self.network(images)


def recipe_of(assignments: Sequence[str]) -> Recipe:
    return read_recipe("nano-fashion", [*assignments, "process.threads=1"])


def trained_supernet(
    assignments: Sequence[str], fixed: Mapping[str, Any] | None = None
) -> tuple[Training, MemoryKeeper]:
    """Return a trained supernet by the recipe `nano-fashion` with assignments.

    Genes that are `fixed` have one value in its space.
    """
    recipe = recipe_of(assignments)
    data = load_data(recipe.data)
    space = space_for(recipe, data)
    genes = {**space.genes, **{gene: (value,) for gene, value in (fixed or {}).items()}}
    supernet = Supernet(replace(space, genes=genes), seed=recipe.process.seed)
    training = prepare(recipe, data, supernet, device=CPU, ranks=Ranks())
    keeper = MemoryKeeper()
    train(training, keeper, watch=_print_now_and_then)
    return training, keeper


def _print_now_and_then(progress: Progress) -> None:
    if progress.step % max(1, progress.steps // 20) == 0:
        left = progress.seconds_left / 60
        print(f"  step {progress.step}/{progress.steps}, about {left:.0f} min left",
              file=sys.stderr)  # fmt: skip


def trained_alone(genes: Mapping[str, Any], assignments: Sequence[str]) -> float:
    """Return the held-out accuracy of one architecture trained on labels, as long as the rest."""
    from hwnas.nets import build_network

    recipe = recipe_of([*assignments, "evaluation.every_epochs=0"])
    data = load_data(recipe.data)
    space = space_for(recipe, data)
    arch = space.arch(genes)
    torch.manual_seed(recipe.process.seed)
    network = build_network(space.network(arch))
    alone: Any = Alone(network, space)
    training = prepare(recipe, data, alone, device=CPU, ranks=Ranks())
    plan = [Task(arch=arch, role="alone", is_supernet=True)]
    training = replace(training, plan=lambda moment: plan)
    alone.train()
    steps = len(training.batches)
    for epoch, position, (images, labels) in batches_from(training, 0):
        rate = training.learning_rate(epoch * steps + position)
        training.stepper(images, labels, plan, learning_rate=rate)
    calibrate(network, calibration_images(data, recipe))
    heldout = evaluation_batches(data, "heldout", batch_size=256, limit=recipe.evaluation.images)
    return accuracy(network, heldout.batches(0))


def in_processes(
    script: str, jobs: Sequence[Mapping[str, Any]], *, processes: int
) -> Iterator[tuple[Mapping[str, Any], Any]]:
    """Yield (job, result) of `python script --job JSON` for each job, several at once."""
    start = time.monotonic()

    def run(job: Mapping[str, Any]) -> Any:
        done = subprocess.run(
            [sys.executable, script, "--job", json.dumps(job)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(processes) as pool:
        for number, (job, result) in enumerate(zip(jobs, pool.map(run, jobs), strict=True), 1):
            left = (time.monotonic() - start) / number * (len(jobs) - number) / 60
            print(f"  {number}/{len(jobs)} about {left:.0f} min left: {result}", file=sys.stderr)
            yield job, result
