"""Accuracies of subnets on the held-out part, with batch norms calibrated for each."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from hwnas.spaces import Arch
from hwnas.supernet import Supernet, calibrate, count_right
from hwnas.training.datasets import Data
from hwnas.training.distributed import Ranks
from hwnas.training.loader import Batches, Piece, evaluation_batches, training_batches
from hwnas.training.recipe import Recipe

T = TypeVar("T")
_SUBNETS = 7
# The held-out images of ImageNet would fill any memory; these are kept between subnets.
_KEPT_BYTES = 1 << 30


class Replay(Generic[T]):
    """Batches that can be gone through again: kept while they are small, else made again."""

    def __init__(
        self, make: Callable[[], Iterator[T]], *, size: Callable[[T], int], most: int = _KEPT_BYTES
    ) -> None:
        self._make, self._size, self._most = make, size, most
        self._kept: list[T] | None = None

    def __iter__(self) -> Iterator[T]:
        if self._kept is not None:
            yield from self._kept
            return
        kept: list[T] | None = []
        size = 0
        for batch in self._make():
            size += self._size(batch)
            if kept is not None:
                kept.append(batch)
            if size > self._most:
                kept = None
            yield batch
        self._kept = kept


def calibration_images(data: Data, recipe: Recipe) -> list[Tensor]:
    """Return batches of training images, augmented as in training, always the same."""
    return list(_calibration_batches(data, recipe))


def _calibration_batches(data: Data, recipe: Recipe) -> Iterator[Tensor]:
    size = min(recipe.evaluation.batch_size, len(data.train))
    batches: Batches = training_batches(
        data,
        batch_size=size,
        augmentation=recipe.augmentation.model_copy(update={"repeats": 1}),
        seed=recipe.process.seed,
    )
    wanted = max(1, recipe.evaluation.calibration_images // size)
    return (images for images, _ in islice(batches.batches(0), wanted))


def subnet_accuracies(
    supernet: Supernet, data: Data, recipe: Recipe, *, device: torch.device, ranks: Ranks
) -> dict[str, float]:
    """Return top-1 accuracies of the smallest, the largest and some random subnets.

    A space of one architecture has just one: "subnet".
    """
    space = supernet.space
    drawn = space.sample(
        recipe.evaluation.random_subnets,
        np.random.default_rng([recipe.process.seed, _SUBNETS]),
    )
    named = {"smallest": space.smallest(), "largest": space.largest()}
    named.update({f"random {index}": arch for index, arch in enumerate(drawn)})
    if space.count() == 1:
        named = {"subnet": space.largest()}
    values = accuracies(supernet, list(named.values()), data, recipe, device=device, ranks=ranks)
    return dict(zip(named, values, strict=True))


def accuracies(
    supernet: Supernet,
    archs: Sequence[Arch],
    data: Data,
    recipe: Recipe,
    *,
    device: torch.device,
    ranks: Ranks = Ranks(),  # noqa: B008 - a frozen value
) -> Iterator[float]:
    """Yield the top-1 accuracy of each subnet on the held-out part."""
    calibration = Replay(
        lambda: (images.to(device) for images in _calibration_batches(data, recipe)),
        size=lambda images: images.nbytes,
    )
    heldout = evaluation_batches(
        data,
        "heldout",
        batch_size=recipe.evaluation.batch_size,
        limit=recipe.evaluation.images,
        piece=Piece(rank=ranks.rank, world=ranks.world),
    )
    batches = Replay(
        lambda: ((images.to(device), labels.to(device)) for images, labels in heldout.batches(0)),
        size=lambda batch: batch[0].nbytes,
    )
    for arch in archs:
        network = supernet.extract(arch)
        calibrate(network, calibration)
        right, seen = count_right(network, batches)
        counts = ranks.total(torch.tensor([right, seen], dtype=torch.float64, device=device))
        yield float(counts[0] / counts[1])
