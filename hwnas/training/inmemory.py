"""Augmenting small images kept in memory, a batch at a time and in this process.

The order is timm's: crop, flip, policy on uint8 images, normalise, erase. Everything random is
drawn for the whole batch first, so that each rank can take its piece of the draws. The policy's
operations are timm's own, on Pillow images; images that no operation touches never become one.
"""

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hwnas.training.augment import Augmentation, make_policy
from hwnas.training.draws import borrowed_globals, seeded_globals
from hwnas.training.vision import import_timm

Pixels = NDArray[np.uint8]
# Changes one image under one seed of the global generators, which are set before the call.
Change = Callable[[Image.Image], Image.Image]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draws:
    """What happens to each image of a batch; all arrays have one row per image."""

    offsets: NDArray[np.int64]
    flips: NDArray[np.bool_]
    seeds: NDArray[np.int64]
    # Numbers of the policy's operations, -1 where none is applied; no columns: it draws itself.
    operations: NDArray[np.int64]
    erases: NDArray[np.bool_]

    def take(self, piece: slice) -> "Draws":
        """Return the draws of some of the images."""
        return Draws(
            offsets=self.offsets[piece],
            flips=self.flips[piece],
            seeds=self.seeds[piece],
            operations=self.operations[piece],
            erases=self.erases[piece],
        )


class PixelAugmenter:
    """Turns uint8 images into augmented, normalised float32 ones."""

    def __init__(
        self,
        augmentation: Augmentation,
        *,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        side: int,
    ) -> None:
        self.augmentation = augmentation
        self.mean, self.std = mean, std
        padding = augmentation.crop_padding
        self.padding = max(1, round(side / 8)) if padding is None else padding
        self._whole_policy: Change | None = None
        self._operations: list[Change] = []
        self._layers, self._probability = 0, 0.0
        if augmentation.policy:
            self._read_policy(
                make_policy(
                    augmentation.policy,
                    mean=mean,
                    side=side,
                    interpolation=augmentation.interpolation,
                )
            )
        self._erase = None
        if augmentation.erasing:
            self._erase = import_timm("data.random_erasing").RandomErasing(
                probability=1.0, mode=augmentation.erasing_mode, device="cpu"
            )

    def _read_policy(self, policy: Any) -> None:  # noqa: ANN401 - timm is untyped
        """Keep the operations of a RandAugment, whose choices we draw; other policies whole."""
        if getattr(policy, "choice_weights", 0) is not None:
            self._whole_policy = policy
            return
        self._layers, self._probability = policy.num_layers, policy.ops[0].prob
        for operation in policy.ops:
            certain = copy.copy(operation)
            certain.prob = 1.0
            self._operations.append(certain)

    def draw(self, count: int, randomness: np.random.Generator) -> Draws:
        """Return the draws for a whole batch of `count` images."""
        wanted = self.augmentation
        operations = np.full((count, self._layers), -1, np.int64)
        if self._layers:
            chosen = randomness.integers(len(self._operations), size=operations.shape)
            applied = randomness.random(operations.shape) < self._probability
            operations = np.where(applied, chosen, operations)
        return Draws(
            offsets=randomness.integers(2 * self.padding + 1, size=(count, 2)),
            flips=randomness.random(count) < wanted.flip,
            seeds=randomness.integers(2**32, size=count),
            operations=operations,
            erases=randomness.random(count) < wanted.erasing,
        )

    def __call__(self, pixels: Pixels, draws: Draws) -> Tensor:
        """Return the images (NCHW) with the draws applied to them; `pixels` is left alone."""
        shifted = _crop_and_flip(pixels, draws, padding=self.padding)
        if self._operations or self._whole_policy is not None:
            with borrowed_globals():
                self._apply_policy(shifted, draws)
        images = normalised(shifted, mean=self.mean, std=self.std)
        if self._erase is not None:
            for index in np.flatnonzero(draws.erases):
                with seeded_globals(int(draws.seeds[index])):
                    self._erase(images[index])
        return images

    def _apply_policy(self, pixels: Pixels, draws: Draws) -> None:
        for index in range(len(pixels)):
            changes = (
                [self._operations[number] for number in draws.operations[index] if number >= 0]
                if self._whole_policy is None
                else [self._whole_policy]
            )
            if not changes:
                continue
            seed = int(draws.seeds[index])
            random.seed(seed)
            np.random.seed(seed)
            grey = pixels.shape[-1] == 1
            image = Image.fromarray(pixels[index, ..., 0] if grey else pixels[index])
            for change in changes:
                image = change(image)
            pixels[index] = np.asarray(image).reshape(pixels.shape[1:])


def normalised(pixels: Pixels, *, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return uint8 (N, H, W, C) as float32 NCHW (channels last in memory), normalised."""
    scale = torch.tensor([1 / (255 * value) for value in std], dtype=torch.float32)
    shift = torch.tensor(
        [-middle / value for middle, value in zip(mean, std, strict=True)], dtype=torch.float32
    )
    images = torch.from_numpy(pixels).to(torch.float32)
    # A row at a time: broadcasting over an innermost axis of 3 takes several times as long.
    width = pixels.shape[2]
    images.view(*pixels.shape[:2], -1).mul_(scale.repeat(width)).add_(shift.repeat(width))
    return images.permute(0, 3, 1, 2)


def _crop_and_flip(pixels: Pixels, draws: Draws, *, padding: int) -> Pixels:
    """Return the images shifted by up to `padding` pixels over black, some mirrored."""
    count, side = pixels.shape[0], pixels.shape[1]
    padded = np.zeros((count, side + 2 * padding, side + 2 * padding, pixels.shape[3]), np.uint8)
    padded[:, padding : padding + side, padding : padding + side] = pixels
    out = np.empty_like(pixels)
    # One slice per image is faster than one gather with index arrays.
    for index, ((top, left), flip) in enumerate(
        zip(draws.offsets.tolist(), draws.flips.tolist(), strict=True)
    ):
        crop = padded[index, top : top + side, left : left + side]
        out[index] = crop[:, ::-1] if flip else crop
    return out
