"""The training loop: epochs of steps, evaluation, checkpoints; resumes bit for bit on a CPU.

Everything random depends on (seed, epoch, step), and a checkpoint holds all that changes, so a
run that was killed and resumed equals one that was not. Where files go is the keeper's business.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hwnas.errors import HwnasError, UsageError
from hwnas.supernet import Supernet
from hwnas.training.bank import Bank
from hwnas.training.datasets import Data, fingerprint
from hwnas.training.distributed import Ranks
from hwnas.training.draws import seeded_torch
from hwnas.training.failures import (
    Whereabouts,
    explaining_failures,
    explaining_writes,
    not_finite,
)
from hwnas.training.flat import FlatParameters
from hwnas.training.loader import Batches
from hwnas.training.measure import subnet_accuracies
from hwnas.training.optimise import Average, Cosine, LossScale
from hwnas.training.plans import Moment, Plan, Task
from hwnas.training.recipe import Recipe
from hwnas.training.step import Stepper, StepResult

LOG_EVERY = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """All that changes during training, after `step` steps."""

    step: int
    arrays: Mapping[str, np.ndarray[Any, Any]]
    numbers: Mapping[str, float] = field(default_factory=dict)


class Keeper(Protocol):
    """Where a run keeps its checkpoints and events."""

    def latest(self) -> Checkpoint | None:
        """Return the newest checkpoint, with the events after it forgotten; None at the start."""

    def save(self, checkpoint: Checkpoint, supernet: Supernet) -> None:
        """Keep a checkpoint, and the weights that search will use."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Keep one record of what happened."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """What is told to whoever watches."""

    step: int
    steps: int
    epoch: int
    epochs: float
    images_per_second: float
    seconds_left: float
    losses: Mapping[str, float]
    accuracy: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Training:
    """A prepared run: what the recipe asks for, built."""

    recipe: Recipe
    data: Data
    supernet: Supernet
    flat: FlatParameters
    stepper: Stepper
    plan: Plan
    bank: Bank | None = None
    batches: Batches
    mix: Callable[..., tuple[Tensor, Tensor]] | None
    learning_rate: Cosine
    device: torch.device
    ranks: Ranks

    @property
    def steps(self) -> int:
        """How many steps there are in all."""
        return self.recipe.schedule.steps(len(self.batches))


def train(
    training: Training,
    keeper: Keeper,
    *,
    watch: Callable[[Progress], None],
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Train to the end of the recipe, from the newest checkpoint if there is one.

    `stop` is asked after each step; when it says so the state is kept and KeyboardInterrupt
    raised. Raises HwnasError with the step and the last good checkpoint on a non-finite loss, and
    where memory or the processes that read images fail.
    """
    done = _go_on(training, keeper.latest())
    at = Whereabouts(step=done, steps_per_epoch=len(training.batches), last_kept=done)
    with explaining_failures(at, training.recipe.optimiser):
        _train(training, keeper, at, watch=watch, stop=stop)


def _train(
    training: Training,
    keeper: Keeper,
    at: Whereabouts,
    *,
    watch: Callable[[Progress], None],
    stop: Callable[[], bool],
) -> None:
    steps_per_epoch, done = at.steps_per_epoch, at.step
    epochs = training.recipe.schedule.epochs
    clock = _Clock(done, training.steps, training.recipe.optimiser.batch_size)
    training.supernet.train()
    for epoch, position, batch in batches_from(training, done):
        step = epoch * steps_per_epoch + position
        result = _one_step(training, epoch, position, step, batch)
        if step % LOG_EVERY == 0 or result.conflict_ratio is not None:
            with explaining_writes(at):
                keeper.event(_step_event(training, step, epoch, result))
        ends_epoch = position + 1 == steps_per_epoch or step + 1 == training.steps
        accuracy = _evaluate(training, keeper, epoch, step + 1) if ends_epoch else {}
        speed = clock.tick(step + 1)
        due = clock.since_kept() > training.recipe.process.checkpoint_seconds
        stops, due = training.ranks.agreed(stop(), due, device=training.device)
        if ends_epoch or stops or due:
            if not bool(torch.isfinite(training.flat.weights).all()):
                raise not_finite()
            with explaining_writes(at):
                _keep_with_speed(training, keeper, step + 1, speed=speed)
            at.last_kept = step + 1
            clock.kept()
        at.step = step + 1
        # After keeping: whoever listens may be gone, and what is reached must not go with it.
        watch(Progress(step=step + 1, steps=clock.steps, epoch=epoch, epochs=epochs,
                       images_per_second=speed, seconds_left=clock.left(step + 1),
                       losses=_mean_losses(result), accuracy=accuracy))  # fmt: skip
        if stops and step + 1 < clock.steps:
            raise KeyboardInterrupt
    if at.last_kept == 0:
        _keep(training, keeper, done)


def _go_on(training: Training, checkpoint: Checkpoint | None) -> int:
    """Restore a checkpoint if there is one; return how many steps are done."""
    if checkpoint is None:
        return 0
    if checkpoint.step < training.steps:
        check_images(training.data, checkpoint.arrays.get(IMAGES))
    restore(training, checkpoint)
    return checkpoint.step


def batches_from(training: Training, step: int) -> Iterator[tuple[int, int, tuple[Tensor, Tensor]]]:
    """Yield epoch, number within the epoch and batch of each step that is left at `step`."""
    per_epoch = len(training.batches)
    epoch, start = divmod(step, per_epoch)
    while epoch * per_epoch + start < training.steps:
        left = training.steps - epoch * per_epoch
        batches = islice(training.batches.batches(epoch, start=start), left - start)
        for position, batch in enumerate(batches, start):
            yield epoch, position, batch
        epoch, start = epoch + 1, 0


def _one_step(
    training: Training, epoch: int, position: int, step: int, batch: tuple[Tensor, Tensor]
) -> StepResult:
    recipe = training.recipe
    images, targets = batch
    if training.mix is not None:
        images, targets = training.mix(images, targets, epoch=epoch, batch=position)
    images = images.to(training.device, non_blocking=True)
    targets = targets.to(training.device, non_blocking=True)
    every = recipe.merge.measure_conflicts_every
    moment = Moment(recipe.process.seed, epoch, position)
    seeds = moment.rng(_DROPOUT)  # the ranks', in order, so that a single process has the first
    own_seed = [int(seeds.integers(2**31)) for _ in range(training.ranks.rank + 1)][-1]
    with seeded_torch(own_seed, device=training.device):
        if training.bank is not None and training.bank.is_due(position, len(training.batches)):
            training.bank.refresh(partial(training.stepper.loss_of, images, targets))
        tasks = training.plan(moment)
        result = training.stepper(
            images,
            targets,
            tasks,
            learning_rate=training.learning_rate(step),
            merges=epoch >= recipe.merge.from_epoch,
            measures_conflicts=bool(every) and step % every == 0,
        )
    if training.bank is not None:
        _offer(training, training.bank, tasks, result)
    return result


def _offer(training: Training, bank: Bank, tasks: Sequence[Task], result: StepResult) -> None:
    own = torch.tensor([loss for _, loss in result.losses], device=training.device)
    losses = training.ranks.gather(own).mean(0).tolist()
    for task, loss in zip(tasks, losses, strict=True):
        if task.level is not None:
            bank.offer(task.level, task.arch, loss)


_DROPOUT = 3
IMAGES = "images"


def _step_event(training: Training, step: int, epoch: int, result: StepResult) -> dict[str, Any]:
    event: dict[str, Any] = {
        "kind": "step",
        "step": step,
        "epoch": epoch,
        "learning_rate": training.learning_rate(step),
        "losses": _mean_losses(result),
        "updated": result.updated,
    }
    if result.conflict_ratio is not None:
        event["conflict_ratio"] = result.conflict_ratio
    return event


def _mean_losses(result: StepResult) -> dict[str, float]:
    roles: dict[str, list[float]] = {}
    for role, loss in result.losses:
        roles.setdefault(role, []).append(loss)
    return {role: sum(losses) / len(losses) for role, losses in roles.items()}


def _evaluate(training: Training, keeper: Keeper, epoch: int, step: int) -> dict[str, float]:
    settings = training.recipe.evaluation
    last = step == training.steps
    due = settings.every_epochs and (epoch + 1) % settings.every_epochs == 0
    if not (due or last):
        return {}
    with averaged_weights(training):
        accuracy = subnet_accuracies(
            training.supernet,
            training.data,
            training.recipe,
            device=training.device,
            ranks=training.ranks,
        )
    keeper.event({"kind": "evaluation", "step": step, "epoch": epoch, "accuracy": accuracy})
    return accuracy


class averaged_weights:  # noqa: N801 - reads as a verb where it is used
    """For the body, the supernet has the averaged weights, if an average is kept."""

    def __init__(self, training: Training) -> None:
        self._flat, self._average = training.flat, training.stepper.average

    def __enter__(self) -> None:
        if self._average is not None:
            self._present = self._flat.weights.clone()
            self._flat.weights.copy_(self._average.weights)

    def __exit__(self, *_: object) -> None:
        if self._average is not None:
            self._flat.weights.copy_(self._present)


def _keep(training: Training, keeper: Keeper, step: int) -> None:
    if training.ranks.leads:
        checkpoint = snapshot(training, step)
        with averaged_weights(training):
            keeper.save(checkpoint, training.supernet)
    training.ranks.wait()


def _keep_with_speed(training: Training, keeper: Keeper, step: int, *, speed: float) -> None:
    keeper.event({"kind": "speed", "step": step, "images_per_second": round(speed, 1)})
    _keep(training, keeper, step)


def snapshot(training: Training, step: int) -> Checkpoint:
    """Return the checkpoint of the present state."""
    stepper = training.stepper
    arrays = {"weights": training.flat.weights}
    if stepper.average is not None:
        arrays["average"] = stepper.average.weights
    for part, state in enumerate(stepper.optimiser.states()):
        arrays.update({f"optimiser.{part}.{name}": value for name, value in state.items()})
    scale: LossScale = stepper.loss_scale
    bank = training.bank.state() if training.bank is not None else {}
    return Checkpoint(
        step=step,
        arrays={
            **{name: tensor.detach().cpu().numpy().copy() for name, tensor in arrays.items()},
            **{f"bank.{name}": array for name, array in bank.items()},
            IMAGES: fingerprint(training.data),
        },
        numbers={"loss_scale": scale.value, "good_steps": float(scale.good_steps)},
    )


def check_images(data: Data, began_with: NDArray[Any] | None) -> None:
    """Refuse other images than a training began with: those held out may have been trained on.

    `began_with`: what a checkpoint says under IMAGES; those of earlier versions say nothing.
    """
    if began_with is not None and not np.array_equal(began_with, fingerprint(data)):
        raise UsageError(
            f"the images of {data.name} are not those that this training began with; now "
            f"{len(data.train)} to train on and {len(data.heldout)} held out",
            "bring the old ones back, or train with the new ones in another folder (--run)",
        )


def restore(training: Training, checkpoint: Checkpoint) -> None:
    """Set the state of a checkpoint, of which every array must fit."""
    stepper, flat = training.stepper, training.flat
    arrays = {name: torch.from_numpy(array) for name, array in checkpoint.arrays.items()}
    if "weights" not in arrays or arrays["weights"].shape != flat.weights.shape:
        raise HwnasError(
            "the checkpoint is of another supernet", "start again in another run folder"
        )
    flat.weights.copy_(arrays["weights"])
    if isinstance(stepper.average, Average):
        stepper.average.weights.copy_(arrays["average"])
    for part, state in enumerate(stepper.optimiser.states()):
        for name, value in state.items():
            # A checkpoint of before the first step has no state of the optimiser.
            if f"optimiser.{part}.{name}" in arrays:
                # Files were written with scalars as arrays of one.
                value.copy_(arrays[f"optimiser.{part}.{name}"].view_as(value))
    if training.bank is not None:
        kept = {
            name.removeprefix("bank."): array
            for name, array in checkpoint.arrays.items()
            if name.startswith("bank.")
        }
        training.bank.restore(kept)
    stepper.loss_scale.value = checkpoint.numbers["loss_scale"]
    stepper.loss_scale.good_steps = int(checkpoint.numbers["good_steps"])


class _Clock:
    """Speed and time left, from the steps of this process."""

    def __init__(self, done: int, steps: int, batch_size: int) -> None:
        self.steps, self._batch_size = steps, batch_size
        self._first, self._start = done, time.monotonic()
        self._kept = self._start

    def tick(self, step: int) -> float:
        """Return images per second so far."""
        return (step - self._first) * self._batch_size / max(1e-9, time.monotonic() - self._start)

    def left(self, step: int) -> float:
        """Return the seconds that the remaining steps will take."""
        per_step = (time.monotonic() - self._start) / max(1, step - self._first)
        return per_step * (self.steps - step)

    def since_kept(self) -> float:
        """Return the seconds since the last checkpoint."""
        return time.monotonic() - self._kept

    def kept(self) -> None:
        """Note that a checkpoint was written now."""
        self._kept = time.monotonic()
