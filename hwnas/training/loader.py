"""Batches of a part, for training and for evaluation.

A batch depends on (seed, epoch, batch index) alone: training that resumes in the middle of an epoch
sees the same batches without any saved state. Ranks share every batch: rank r of n gets the r-th
of n consecutive pieces, so that the ranks' pieces in order are the batch of a single process.
"""

import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from hwnas.errors import HwnasError, UsageError
from hwnas.training.augment import Augmentation, training_transform
from hwnas.training.datasets import Data, Images, MemoryImages, Part, PartName
from hwnas.training.draws import generator, number, seeded_globals
from hwnas.training.inmemory import PixelAugmenter, normalised
from hwnas.training.vision import import_timm

Batch = tuple[Tensor, Tensor]
Indices = NDArray[np.int64]


class Batches(Protocol):
    """A part in batches of images (float32, NCHW, normalised) and labels (int64)."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from the one numbered `start` on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """One of `world` consecutive pieces of every batch."""

    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world:
            raise UsageError(f"rank {self.rank} of {self.world} processes does not exist")

    def of(self, size: int) -> slice:
        """Return this rank's piece of a batch of `size`; the first ranks get the remainder."""
        small, more = divmod(size, self.world)
        start = self.rank * small + min(self.rank, more)
        return slice(start, start + small + (self.rank < more))


WHOLE = Piece()


def training_batches(
    data: Data,
    *,
    batch_size: int,
    augmentation: Augmentation,
    seed: int,
    piece: Piece = WHOLE,
    workers: int | None = None,
    pin_memory: bool = False,
) -> Batches:
    """Return shuffled, augmented batches of the training part; a last short batch is left out.

    `batch_size` counts the images of all ranks together; `workers` overrides the data's own.
    """
    part = data.train
    if batch_size % piece.world or batch_size < piece.world:
        raise UsageError(
            f"a batch of {batch_size} images cannot be shared by {piece.world} processes",
            f"choose a multiple of {piece.world}",
        )
    if len(part) < batch_size:
        raise UsageError(
            f"a batch of {batch_size} images is larger than the training part ({len(part)} images)",
            f"more images, or a smaller batch: --set optimiser.batch_size={max(1, len(part) // 2)}",
        )
    if not data.flips:
        augmentation = augmentation.model_copy(update={"flip": 0.0})
    order = ShuffledOrder(
        size=len(part), batch_size=batch_size, repeats=augmentation.repeats, seed=seed
    )
    if isinstance(part.images, MemoryImages):
        augmenter = PixelAugmenter(augmentation, mean=data.mean, std=data.std, side=data.image_size)
        return MemoryTraining(
            pixels=part.images.pixels,
            labels=part.labels,
            order=order,
            augmenter=augmenter,
            piece=piece,
        )
    transform = training_transform(augmentation, side=data.image_size, mean=data.mean, std=data.std)
    return FileBatches(
        part=part,
        order=order,
        transform=transform,
        piece=piece,
        workers=data.workers if workers is None else workers,
        pin_memory=pin_memory,
    )


def evaluation_batches(
    data: Data,
    part: PartName = "heldout",
    *,
    batch_size: int,
    limit: int | None = None,
    piece: Piece = WHOLE,
    workers: int | None = None,
    pin_memory: bool = False,
) -> Batches:
    """Return a part in fixed order without augmentation, every image once; the epoch is ignored.

    `limit` takes that many images, spread over the part. A rank's piece of a short last batch can
    be empty; empty pieces are left out.
    """
    found = data.part(part)
    if limit is not None and limit < len(found):
        chosen = np.linspace(0, len(found) - 1, max(limit, 1)).astype(np.int64)
        found = found.take(chosen, name=part)
    order = FixedOrder(size=len(found), batch_size=batch_size)
    if isinstance(found.images, MemoryImages):
        return MemoryEvaluation(
            pixels=found.images.pixels,
            labels=found.labels,
            order=order,
            mean=data.mean,
            std=data.std,
            piece=piece,
        )
    return FileBatches(
        part=found,
        order=order,
        transform=evaluation_transform(data),
        piece=piece,
        workers=data.workers if workers is None else workers,
        pin_memory=pin_memory,
    )


def evaluation_transform(data: Data) -> Any:  # noqa: ANN401 - timm is untyped
    """Return timm's transform of one image as `data.preprocessing` describes it."""
    return import_timm("data").create_transform(
        (data.channels, data.image_size, data.image_size),
        is_training=False,
        interpolation=data.preprocessing["interpolation"],
        mean=data.mean,
        std=data.std,
        crop_pct=data.preprocessing["crop_pct"],
    )


class Order(Protocol):
    """Which images a batch has, in which order."""

    @property
    def seed(self) -> int:
        """The seed of everything random about the batches."""

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""

    def of_epoch(self, epoch: int) -> Callable[[int], Indices]:
        """Return the function from a batch's number to its images."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FixedOrder:
    """Every image once, as they come."""

    size: int
    batch_size: int
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch size is {self.batch_size}; accepted: 1 or more")

    def __len__(self) -> int:
        return math.ceil(self.size / self.batch_size)

    def of_epoch(self, epoch: int) -> Callable[[int], Indices]:
        """Return the function from a batch's number to its images."""
        return lambda batch: np.arange(
            batch * self.batch_size, min((batch + 1) * self.batch_size, self.size)
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ShuffledOrder:
    """Another permutation in each epoch; with repeats, an image occurs so often in its batch.

    As in DeiT, repeats do not lengthen an epoch: it then shows a part of the images.
    """

    size: int
    batch_size: int
    repeats: int
    seed: int

    def __len__(self) -> int:
        return self.size // self.batch_size

    def of_epoch(self, epoch: int) -> Callable[[int], Indices]:
        """Return the function from a batch's number to its images."""
        shuffled = generator(self.seed, "order", epoch).permutation(self.size)
        distinct = math.ceil(self.batch_size / self.repeats)

        def images(batch: int) -> Indices:
            some = shuffled[batch * distinct : (batch + 1) * distinct]
            # Tiled, so that neighbours, which mixing mixes, are different images.
            return np.tile(some, self.repeats)[: self.batch_size]

        return images


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryTraining:
    """Augmented batches of images kept in memory, made in this process."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    order: ShuffledOrder
    augmenter: PixelAugmenter
    piece: Piece

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from the one numbered `start` on."""
        images_of = self.order.of_epoch(epoch)
        for batch in range(start, len(self)):
            whole = images_of(batch)
            piece = self.piece.of(len(whole))
            draws = self.augmenter.draw(
                len(whole), generator(self.order.seed, "images", epoch, batch)
            )
            indices = whole[piece]
            images = self.augmenter(self.pixels[indices], draws.take(piece))
            yield images, torch.from_numpy(self.labels[indices])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryEvaluation:
    """Normalised batches of images kept in memory."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int64]
    order: FixedOrder
    mean: tuple[float, ...]
    std: tuple[float, ...]
    piece: Piece

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield the batches from the one numbered `start` on."""
        images_of = self.order.of_epoch(epoch)
        for batch in range(start, len(self)):
            whole = images_of(batch)
            indices = whole[self.piece.of(len(whole))]
            if len(indices):
                images = normalised(self.pixels[indices], mean=self.mean, std=self.std)
                yield images, torch.from_numpy(self.labels[indices])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileBatches:
    """Batches of images that are decoded one by one, by worker processes if there are any."""

    part: Part
    order: Order
    transform: Callable[[Image.Image], Tensor]
    piece: Piece
    workers: int
    pin_memory: bool

    def __len__(self) -> int:
        return len(self.order)

    def batches(self, epoch: int, *, start: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch from the one numbered `start` on."""
        workers = min(self.workers, _cores())
        loader = DataLoader(
            _Seeded(self.part.images, self.part.labels, self.transform),
            batch_sampler=_Requests(self.order, self.piece, epoch, start),
            num_workers=workers,
            collate_fn=_collate,
            pin_memory=self.pin_memory,
            # A process that was spawned would spawn its own: those import torch anew for every
            # part, and hang or abort when they end.
            multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        )
        try:
            for images, labels, fault in loader:
                if fault is not None:
                    raise HwnasError(*fault)
                yield images, labels
        except RuntimeError as error:
            if (known := readers_ended(error)) is None:
                raise
            raise known from error


class ReadersEndedError(HwnasError):
    """A process that reads images ended without having been told to."""


def readers_ended(error: BaseException) -> ReadersEndedError | None:
    """Return what is told of an error of torch's if it is that of a reader that ended.

    A signal's handler raises it, so it can turn up wherever the program is at that moment.
    """
    said = str(error).strip()
    if not said.startswith("DataLoader worker"):
        return None
    return ReadersEndedError(
        f"a process that reads images ended ({said.splitlines()[0]})",
        "often the memory for what processes share is full: make /dev/shm larger (containers: "
        "--shm-size=8g), or read without such processes: --set data.workers=0; then the same "
        "command goes on",
    )


def _cores() -> int:
    """Return how many cores this process may use; torch warns of more workers than that."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


Request = tuple[int, int]
Sample = tuple[Tensor, int] | HwnasError


class _Requests:
    """Yields, for each batch, the (image, seed) of its samples."""

    def __init__(self, order: Order, piece: Piece, epoch: int, start: int) -> None:
        self.order, self.piece, self.epoch, self.start = order, piece, epoch, start

    def __len__(self) -> int:
        return max(0, len(self.order) - self.start)

    def __iter__(self) -> Iterator[list[Request]]:
        images_of = self.order.of_epoch(self.epoch)
        for batch in range(self.start, len(self.order)):
            whole = images_of(batch)
            mine = range(len(whole))[self.piece.of(len(whole))]
            if mine:
                yield [
                    (
                        int(whole[place]),
                        number(self.order.seed, "sample", self.epoch, batch, place),
                    )
                    for place in mine
                ]


class _Seeded(Dataset[Sample]):
    """Transforms an image under its own seed, whichever process does it."""

    def __init__(
        self, images: Images, labels: NDArray[np.int64], transform: Callable[[Image.Image], Tensor]
    ) -> None:
        self.images, self.labels, self.transform = images, labels, transform

    def __getitem__(self, request: Request) -> Sample:
        index, seed = request
        try:
            image = self.images.read(index)
        except HwnasError as error:
            # Returned: a worker's exceptions reach the parent as text with a traceback.
            return error
        with seeded_globals(seed):
            return self.transform(image), int(self.labels[index])


def _collate(samples: list[Sample]) -> tuple[Tensor, Tensor, tuple[str, str] | None]:
    for sample in samples:
        if isinstance(sample, HwnasError):
            return torch.empty(0), torch.empty(0), (sample.message, sample.hint)
    images = torch.stack([sample[0] for sample in samples if not isinstance(sample, HwnasError)])
    labels = [sample[1] for sample in samples if not isinstance(sample, HwnasError)]
    return images, torch.tensor(labels, dtype=torch.int64), None
