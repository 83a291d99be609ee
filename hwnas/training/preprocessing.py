"""What evaluation does to an image, as a value that goes with a network wherever it goes."""

import hashlib
from math import floor
from typing import Any

from hwnas.errors import UsageError
from hwnas.io.preprocessing import Preprocessing
from hwnas.training.datasets import Data, FileImages, MemoryImages, Part, PartName

_PARTS: tuple[PartName, ...] = ("train", "heldout", "test")


def preprocessing_of(data: Data, *, side: int) -> Preprocessing:
    """Return how images of `data` enter a network for images of `side` pixels.

    Batches have images of `data.image_size` pixels, which networks for other sizes scale.
    """
    described = data.preprocessing
    return Preprocessing(
        size=side,
        crop=data.image_size,
        resize=floor(data.image_size / described["crop_pct"]),
        interpolation=described["interpolation"],
        mean=data.mean,
        std=data.std,
        channels=described["channels"],
    )


def describe_data(data: Data) -> dict[str, Any]:
    """Return what identifies a data set: its name, and images and digest of each part."""
    parts = {name: data.part(name) for name in _PARTS if name != "test" or data.test is not None}
    return {
        "name": data.name,
        "parts": {
            name: {"images": len(part), "digest": part_digest(part)} for name, part in parts.items()
        },
    }


def part_digest(part: Part) -> str:
    """Return the SHA-256 of a part: labels, and pixels of images in memory.

    Of images in files the names and sizes enter, not the content, which may be a terabyte.
    """
    state = hashlib.sha256(part.labels.astype("<i8").tobytes())
    images = part.images
    if isinstance(images, MemoryImages):
        state.update(repr(images.pixels.shape).encode())
        state.update(images.pixels.tobytes())
    elif isinstance(images, FileImages):
        for index, name in enumerate(images.names):
            state.update(bytes(name) + f":{_size(images, index)}\n".encode())
    else:
        state.update(images.name.encode() + images.indices.astype("<i8").tobytes())
    return state.hexdigest()


def _size(images: FileImages, index: int) -> int:
    try:
        return images.path(index).stat().st_size
    except OSError as error:
        raise UsageError(f"{images.path(index)}: cannot be read ({error.strerror})") from error
