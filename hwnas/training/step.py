"""One training step: run the subnets of the plan, merge their gradients, update the weights."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from hwnas.errors import HwnasError
from hwnas.nets.regularise import disturb
from hwnas.nets.synchronised import synchronised
from hwnas.sharing.shared import Lent
from hwnas.spaces import Arch
from hwnas.supernet import Supernet
from hwnas.training.distributed import Ranks
from hwnas.training.flat import FlatParameters, scopes
from hwnas.training.losses import Distillation, label_loss
from hwnas.training.merges import Merge, conflict_ratio
from hwnas.training.optimise import Average, LossScale, Optimiser, clip_factor
from hwnas.training.plans import Task
from hwnas.training.streams import Streams

Teacher = Callable[[Tensor], Tensor]
Passed = TypeVar("Passed")


_DIVERGED = "lower optimiser.lr, set optimiser.clip_norm, or use --init with good weights"
_IN_HALF_PRECISION = (
    "another run with more range, --set process.precision=bf16 or fp32, which can start from these "
    f"weights (hwnas train --init); else {_DIVERGED}"
)


class NonFiniteLossError(HwnasError):
    """A loss, or what follows from it, became infinite or not a number."""


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """What does not change from step to step.

    `clip`: greatest gradient norm, of the subnets' sum ("subnets", as the released code does it)
    or of the merged gradient ("all"); `clip_value`: greatest gradient of a single weight, limited
    before the norm. `teacher` gives probabilities for images; where it is set,
    the subnets that would learn from labels learn from it. `label_share` is how much of the loss
    of a subnet that is taught by others comes from the labels all the same. `drop_path_stages`
    are the only stages whose branches are left out, all without. `prepare_blocks` is shown the
    blocks of each subnet before it runs. With several `streams` subnets run side by side, on a CPU
    that has so many threads: faster where networks are small, at the price of memory.
    """

    distillation: Distillation
    label_smoothing: float = 0.1
    label_share: float = 0.0
    merge: Merge = field(default_factory=Merge)
    merge_scope: str = "tensor"
    clip: float | None = None
    clip_value: float | None = None
    clip_scope: str = "all"
    accumulate: int = 1
    teacher: Teacher | None = None
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext
    dropout: float = 0.0
    drop_path: float = 0.0
    drop_path_stages: tuple[str, ...] = ()
    synchronises_norms: bool = False
    prepare_blocks: Callable[[Iterable[nn.Module]], None] | None = None
    streams: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What a step reports: the loss of each task, and the conflict ratio if it was asked for."""

    losses: tuple[tuple[str, float], ...]
    conflict_ratio: float | None
    updated: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a batch that the subnets see at once. `taught`: what an external teacher says."""

    images: Tensor
    targets: Tensor
    taught: Tensor | None
    share: float


class Stepper:
    """Runs steps on a supernet; the state it changes is all in its arguments."""

    def __init__(
        self,
        supernet: Supernet,
        flat: FlatParameters,
        optimiser: Optimiser,
        settings: StepSettings,
        *,
        average: Average | None,
        loss_scale: LossScale,
        ranks: Ranks,
    ) -> None:
        self.supernet, self.flat, self.optimiser, self.settings = (
            supernet, flat, optimiser, settings,
        )  # fmt: skip
        self.average, self.loss_scale, self.ranks = average, loss_scale, ranks
        self._merge_scopes = scopes(flat.segments, settings.merge_scope)
        self._layers = scopes(flat.segments, "layer")
        joins = settings.synchronises_norms and ranks.world > 1
        self._gather = ranks.gather if joins else None
        self._streams = Streams(settings.streams) if settings.streams > 1 else None

    def __call__(
        self,
        images: Tensor,
        targets: Tensor,
        tasks: Sequence[Task],
        *,
        learning_rate: float,
        merges: bool = True,
        measures_conflicts: bool = False,
    ) -> StepResult:
        """Do one step on a batch; `merges` says whether the merge applies yet, else gradients add.

        Raises NonFiniteLossError before anything is changed by a loss that is not finite, or by
        gradients that no loss scale makes finite.
        """
        self.flat.zero()
        losses = [0.0] * len(tasks)
        failures: list[NonFiniteLossError] = []
        for piece in self._pieces(images, targets):
            run = self._side_by_side if self._several(tasks) else self._backward
            for index, loss in run(piece, tasks, failures):
                losses[index] += loss
        self._stop_together(failures)
        self.flat.complete()
        sup, sub = self.flat.gradients
        self.ranks.average(sup)
        self.ranks.average(sub)
        finite = self.loss_scale.unscale(sup, sub)
        if self.loss_scale.is_exhausted:
            raise NonFiniteLossError(
                "the gradients are not finite, whatever the loss is scaled by (at last "
                f"{2 * self.loss_scale.value:g})",
                _IN_HALF_PRECISION,
            )
        conflicts = None
        if finite:
            if measures_conflicts:
                conflicts = conflict_ratio(sup, sub, self._layers)
            self._update(merges=merges, learning_rate=learning_rate)
        named = tuple((task.role, loss) for task, loss in zip(tasks, losses, strict=True))
        return StepResult(losses=named, conflict_ratio=conflicts, updated=finite)

    def _several(self, tasks: Sequence[Task]) -> bool:
        """Return whether the subnets of these tasks can and shall run side by side."""
        if self._streams is None or self._streams.count < 2 or len(tasks) < 2:
            return False
        # Neither processes that wait for each other nor torch.compile can do with several threads.
        return self._gather is None and self.settings.prepare_blocks is None

    def _pieces(self, images: Tensor, targets: Tensor) -> Iterator[_Piece]:
        count = self.settings.accumulate
        for some, theirs in zip(images.chunk(count), targets.chunk(count), strict=True):
            share = len(theirs) / len(targets)
            yield _Piece(some, theirs, taught=self._taught(some), share=share)

    def _backward(
        self, piece: _Piece, tasks: Sequence[Task], failures: list[NonFiniteLossError]
    ) -> Iterator[tuple[int, float]]:
        predictions: dict[int, Tensor] = {}
        needed = {source for task in tasks for source in task.learns_from}
        attached = None
        for index, task in enumerate(tasks):
            group = 0 if task.is_supernet else 1
            if attached != group:
                self.flat.attach(group)
                attached = group
            teachers = [predictions[i] for i in task.learns_from]
            logits, loss = self._forward(piece, task, teachers)
            value = loss.item()
            self._check(value, task, failures)
            if index in needed:
                predictions[index] = logits.detach().softmax(-1)
            (loss * (piece.share * self.loss_scale.value)).backward()  # type: ignore[no-untyped-call]
            yield index, value * piece.share

    def _side_by_side(
        self, piece: _Piece, tasks: Sequence[Task], failures: list[NonFiniteLossError]
    ) -> Iterator[tuple[int, float]]:
        """Do as `_backward` does; what others learn from or what is disturbed runs first.

        Its forward pass has all threads, its backward pass runs beside the other subnets. Blocks
        of several subnets are the same modules, so gradients are returned instead of accumulated,
        and added in the order of tasks.
        """
        assert self._streams is not None
        predictions: dict[int, Tensor] = {}
        needed = {source for task in tasks for source in task.learns_from}
        self.flat.attach(0)
        # Borrowed here, so that threads only look them up.
        lent = [self.supernet.lent(task.arch) for task in tasks]
        scale = piece.share * self.loss_scale.value
        jobs: list[Callable[[], tuple[float, Sequence[Tensor | None]]]] = []
        for index, task in enumerate(tasks):
            teachers = [predictions[i] for i in task.learns_from]
            forward = partial(self._forward, piece, task, teachers)
            if index in needed or self._is_disturbed(task):
                done = forward()
                predictions[index] = done[0].detach().softmax(-1)
                forward = partial(_same, done)
            jobs.append(partial(_gradients, forward, lent[index], scale))
        sizes = self.supernet.space.cost([task.arch for task in tasks]).macs.tolist()
        results = self._streams.results(jobs, sizes=sizes)
        for index, (value, gradients) in enumerate(results):
            self._check(value, tasks[index], failures)
            self.flat.add(0 if tasks[index].is_supernet else 1, lent[index], gradients)
            yield index, value * piece.share

    def _taught(self, images: Tensor) -> Tensor | None:
        """Return what the external teacher says of images, if there is one."""
        with torch.no_grad():
            return self.settings.teacher(images) if self.settings.teacher else None

    def _forward(self, piece: _Piece, task: Task, teachers: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Return the logits of a task and its loss."""
        with self._regularised(task):
            logits = self._logits(piece.images, task.arch)
        return logits, self._loss(logits, piece.targets, piece.taught, teachers)

    def _check(self, value: float, task: Task, failures: list[NonFiniteLossError]) -> None:
        """Add a loss that is not finite to the failures, or raise it."""
        if math.isfinite(value):
            return
        failures.append(
            NonFiniteLossError(
                f"the loss of the {task.role} subnet {task.arch.digest[:12]} is {value}",
                _IN_HALF_PRECISION if self.loss_scale.enabled else _DIVERGED,
            )
        )
        # Other ranks wait for this one's part of the step, whatever it is.
        if self.ranks.world == 1:
            raise failures[0]

    def _stop_together(self, failures: Sequence[NonFiniteLossError]) -> None:
        """Raise on every rank if a loss was not finite on any."""
        (failed,) = self.ranks.agreed(bool(failures), device=self.flat.weights.device)
        if failures:
            raise failures[0]
        if failed:
            raise NonFiniteLossError("the loss of another process of the training is not finite")

    def loss_of(self, images: Tensor, targets: Tensor, arch: Arch) -> float:
        """Return the present loss of a subnet as if it learned by itself, over all ranks."""
        taught = self._taught(images)
        with torch.no_grad():
            loss = self._loss(self._logits(images, arch), targets, taught, [])
        return float(self.ranks.gather(loss.reshape(1)).mean())

    def _logits(self, images: Tensor, arch: Arch) -> Tensor:
        if self.settings.prepare_blocks is not None:
            self.settings.prepare_blocks(self.supernet.at(arch).values())
        with self.settings.autocast(), synchronised(self._gather):
            logits: Tensor = self.supernet(images, arch)
        half = logits.dtype in (torch.float16, torch.bfloat16)
        return logits.float() if half else logits

    @contextmanager
    def _regularised(self, task: Task) -> Iterator[None]:
        """Disturb the largest subnet, as AlphaNet does; its blocks are shared with others."""
        if not self._is_disturbed(task):
            yield
            return
        dropout, drop_path = self.settings.dropout, self.settings.drop_path
        blocks = self.supernet.at(task.arch)
        try:
            for index, (slot, block) in enumerate(blocks.items()):
                share = index / len(blocks) if self._drops_paths(slot) else 0.0
                disturb(block, dropout=dropout, drop_path=drop_path * share)
            yield
        finally:
            for block in blocks.values():
                disturb(block, dropout=0.0, drop_path=0.0)

    def _is_disturbed(self, task: Task) -> bool:
        return task.is_supernet and bool(self.settings.dropout or self.settings.drop_path)

    def _drops_paths(self, slot: str) -> bool:
        stages = self.settings.drop_path_stages
        return not stages or slot.partition("_")[0] in stages

    def _loss(
        self, logits: Tensor, targets: Tensor, taught: Tensor | None, sources: list[Tensor]
    ) -> Tensor:
        if sources:
            teacher = sources[0] if len(sources) == 1 else torch.stack(sources).mean(0)
            loss = self.settings.distillation(logits, teacher)
            share = self.settings.label_share
            if share:
                labels = label_loss(logits, targets, smoothing=self.settings.label_smoothing)
                loss = (1 - share) * loss + share * labels
            return loss
        if taught is not None:
            return -(taught * logits.log_softmax(-1)).sum(-1).mean()
        return label_loss(logits, targets, smoothing=self.settings.label_smoothing)

    def _update(self, *, merges: bool, learning_rate: float) -> None:
        sup, sub = self.flat.gradients
        settings = self.settings
        factor = self._clip(sub, "subnets")
        merge = settings.merge if merges else Merge()
        merge(sup, sub, self._merge_scopes, sub_factor=factor)
        factor = self._clip(sup, "all")
        if factor < 1:
            sup.mul_(factor)
        self.optimiser.step(learning_rate=learning_rate)
        # Fused optimisers do not count as a change, which autograd's safety check relies on.
        torch.autograd.graph.increment_version(self.flat.weights)
        if self.average is not None:
            self.average.update(self.flat.weights)

    def _clip(self, gradient: Tensor, scope: str) -> float:
        """Limit the values of a gradient in place; return the factor that limits its norm."""
        if self.settings.clip_scope != scope:
            return 1.0
        if self.settings.clip_value is not None:
            gradient.clamp_(-self.settings.clip_value, self.settings.clip_value)
        return clip_factor(gradient, self.settings.clip)


def _gradients(
    forward: Callable[[], tuple[Tensor, Tensor]], lent: Sequence[Lent], scale: float
) -> tuple[float, Sequence[Tensor | None]]:
    """Return the loss of a task and the gradients of what it has borrowed."""
    _, loss = forward()
    leaves = [one.leaf for one in lent]
    return loss.item(), torch.autograd.grad(loss * scale, leaves, allow_unused=True)


def _same(value: Passed) -> Passed:
    return value
