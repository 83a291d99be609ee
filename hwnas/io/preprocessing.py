"""From an image to a network's input, just as in the evaluation of the network.

Five steps: the colours of `channels`; the shorter side becomes `resize` pixels; the middle square
of `crop` pixels is cut out; (x / 255 - mean) / std; and, where the network is for another size,
the square is scaled to `size` pixels as the supernet scales its input (cubic convolution with
a = -0.75, pixel centres, no smoothing, `Resize` of ONNX with half_pixel coordinates).
Needs numpy alone for arrays that already are the square, Pillow for everything else.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError, MissingPackageError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

CHANNELS = {"L": 1, "RGB": 3}
INTERPOLATIONS = ("bicubic", "bilinear", "nearest")
LARGEST_SIDE = 4096
_CUBIC_A = -0.75


@dataclass(frozen=True, kw_only=True, slots=True)
class Preprocessing:
    """How an image enters a network. `mean` and `std` are those of values from 0 to 1."""

    size: int
    crop: int
    resize: int
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: str

    def __post_init__(self) -> None:
        if self.channels not in CHANNELS:
            raise UsageError(f"channels is {self.channels!r}; accepted: {', '.join(CHANNELS)}")
        if self.interpolation not in INTERPOLATIONS:
            raise UsageError(
                f"interpolation is {self.interpolation!r}; accepted: {', '.join(INTERPOLATIONS)}"
            )
        for name, side in (("size", self.size), ("crop", self.crop)):
            if not 1 <= side <= LARGEST_SIDE:
                raise UsageError(f"{name} is {side}; accepted: pixels from 1 to {LARGEST_SIDE}")
        if self.crop > self.resize:
            raise UsageError(f"crop is {self.crop}; accepted: at most resize, {self.resize}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != CHANNELS[self.channels]:
                raise UsageError(
                    f"{name} has {len(values)} values; accepted: {CHANNELS[self.channels]}, "
                    f"one for each channel of {self.channels}"
                )
            if not all(map(math.isfinite, values)):
                raise UsageError(f"{name} is {values}; accepted: finite numbers")
        if min(self.std) <= 0:
            raise UsageError(f"std is {self.std}; accepted: greater than 0")

    def square(self, image: "Image | NDArray[np.uint8]") -> NDArray[np.uint8]:
        """Return the cropped square (crop, crop, channels) of an image.

        An array is (height, width) or (height, width, channels) of uint8.
        """
        if isinstance(image, np.ndarray):
            pixels = image[..., None] if image.ndim == 2 else image
            if pixels.dtype != np.uint8 or pixels.ndim != 3:
                raise UsageError(
                    f"image is {image.dtype} of shape {image.shape}; "
                    "accepted: uint8 (height, width) or (height, width, channels)"
                )
            wanted = (self.crop, self.crop, CHANNELS[self.channels])
            if pixels.shape == wanted and self.resize == self.crop:
                return np.ascontiguousarray(pixels)
            image = _image_of(pixels)
        drawn = self._cropped(in_mode(image, self.channels))
        return np.asarray(drawn).reshape(self.crop, self.crop, -1).copy()

    def _cropped(self, image: "Image") -> "Image":
        from PIL.Image import Resampling

        width, height = image.size
        short, long = min(width, height), max(width, height)
        if short != self.resize:
            longer = int(self.resize * long / short)
            size = (self.resize, longer) if width <= height else (longer, self.resize)
            image = image.resize(size, Resampling[self.interpolation.upper()])
            width, height = size
        left, top = round((width - self.crop) / 2), round((height - self.crop) / 2)
        return image.crop((left, top, left + self.crop, top + self.crop))

    def normalise(self, squares: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the input (N, C, size, size) of squares (N, crop, crop, C)."""
        values = squares.astype(np.float32) / np.float32(255)
        values -= np.array(self.mean, np.float32)
        values /= np.array(self.std, np.float32)
        planes = np.ascontiguousarray(values.transpose(0, 3, 1, 2))
        if self.size == self.crop:
            return planes
        weights = cubic_weights(self.crop, self.size)
        scaled: NDArray[np.float32] = weights @ planes @ weights.T
        return scaled

    def apply(self, image: "Image | NDArray[np.uint8]") -> NDArray[np.float32]:
        """Return the input (channels, size, size) of one image."""
        planes: NDArray[np.float32] = self.normalise(self.square(image)[None])[0]
        return planes

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {**asdict(self), "mean": list(self.mean), "std": list(self.std)}


def preprocessing_from(document: Mapping[str, Any], origin: str) -> Preprocessing:
    """Return the preprocessing of a JSON document; keys of other things in it are ignored."""
    try:
        return Preprocessing(
            size=int(document["size"]),
            crop=int(document["crop"]),
            resize=int(document["resize"]),
            interpolation=str(document["interpolation"]),
            mean=tuple(float(value) for value in document["mean"]),
            std=tuple(float(value) for value in document["std"]),
            channels=str(document["channels"]),
        )
    except KeyError as error:
        raise FormatError(f"{origin}: preprocessing lacks {error}") from error
    except (TypeError, ValueError) as error:
        raise FormatError(f"{origin}: preprocessing is damaged ({error})") from error
    except UsageError as error:
        raise FormatError(f"{origin}: preprocessing: {error.message}") from error


def in_mode(image: "Image", mode: str) -> "Image":
    """Return the image with 8 bits per channel; Pillow alone would clip deeper ones to white.

    Raises ValueError for 32 bits per pixel, of which no range is known.
    """
    if image.mode.startswith("I;16"):
        image = _image_of((np.asarray(image) >> 8).astype(np.uint8)[..., None])
    check_depth(image.mode)
    if image.mode == "P" and "transparency" in image.info:
        # Pillow warns of the direct way, which gives the same.
        image = image.convert("RGBA")
    return image.convert(mode)


def check_depth(mode: str) -> None:
    """Raise ValueError for images of a mode with 32 bits per pixel."""
    if mode in ("I", "F"):
        raise ValueError("it has 32 bits per pixel, of which no range is known")


@cache
def cubic_weights(source: int, target: int) -> NDArray[np.float32]:
    """Return the matrix (target, source) that scales a line by cubic convolution."""
    places = (np.arange(target) + 0.5) * (source / target) - 0.5
    first = np.floor(places).astype(np.int64)
    fraction = places - first
    weights = np.zeros((target, source), np.float64)
    for tap in range(-1, 3):
        column = np.clip(first + tap, 0, source - 1)
        np.add.at(weights, (np.arange(target), column), _cubic(np.abs(fraction - tap)))
    return weights.astype(np.float32)


def _cubic(distance: NDArray[np.float64]) -> NDArray[np.float64]:
    a, x = _CUBIC_A, distance
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, far)


def _image_of(pixels: NDArray[np.uint8]) -> "Image":
    try:
        from PIL.Image import fromarray
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "resizing images needs Pillow, which is not installed", "pip install pillow"
        ) from error
    return fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
