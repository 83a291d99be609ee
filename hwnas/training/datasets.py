"""What a data set is here: settings, labelled images in memory or in files, and their parts.

Loads neither torch nor timm, so that a recipe is read quickly.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from hwnas.errors import HwnasError, UsageError
from hwnas.io.preprocessing import LARGEST_SIDE, in_mode
from hwnas.training.settings import Settings

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
GREY_MEAN = (0.449,)
GREY_STD = (0.226,)

_MODES = {1: "L", 3: "RGB"}

PartName = Literal["train", "heldout", "test"]
Amount = Annotated[float, Field(gt=0)] | None
Brightness = Annotated[float, Field(ge=0, le=1)]
# Called with (what, done, total) in bytes or images.
Progress = Callable[[str, int, int], None]


class DataSettings(Settings):
    """Which images, how they are parted, and how they enter the network."""

    name: str | None = Field(
        default=None, description="digits, fashion-mnist, cifar10, or timm's name"
    )
    path: Path | None = Field(
        default=None,
        description="a folder of class folders, or where `name` lies; seen from the recipe's file",
    )
    heldout: Annotated[float, Field(gt=0)] = Field(
        default=0.1,
        description="part of the training images that serves search: share, or count from 1",
    )
    test: Amount = Field(
        default=None, description="part of a single folder kept for the final test"
    )
    val: Literal["heldout", "test"] = Field(
        default="heldout", description="what a folder val/ without test/ beside it serves as"
    )
    seed: int = Field(
        default=0, ge=0, lt=2**63, description="which images are held out; never moves test images"
    )
    image_size: int | None = Field(default=None, ge=4, le=LARGEST_SIDE)
    channels: Literal[1, 3] | None = None
    mean: tuple[Brightness, ...] | None = Field(
        default=None, description="of pixels from 0 to 1, per channel"
    )
    std: tuple[Annotated[float, Field(gt=0, le=1)], ...] | None = None
    crop_pct: Annotated[float, Field(gt=0, le=1)] = Field(default=0.875, description="files only")
    interpolation: Literal["bicubic", "bilinear", "nearest"] = "bicubic"
    workers: int = Field(default=2, ge=0, le=256, description="processes that read files")
    verify: bool = Field(default=False, description="decode every image before training")
    download: bool = True
    train_split: str = Field(default="train", description="of timm's data sets")
    test_split: str | None = Field(default=None, description="of timm's data sets")

    @field_validator("path", mode="before")
    @classmethod
    def _named(cls, path: Any) -> Any:  # noqa: ANN401 - as it is given
        if path == "":  # an unset variable of a shell, which would be this folder
            raise PydanticCustomError("path", "a folder")
        return path

    @field_validator("path")
    @classmethod
    def _home(cls, path: Path | None) -> Path | None:
        # No shell expands the ~ of --set data.path=~/images.
        return None if path is None else path.expanduser()

    @model_validator(mode="after")
    def _check(self) -> "DataSettings":
        if self.name is None and self.path is None:
            raise UsageError("no data is named", 'set data.path to a folder, or data.name="digits"')
        for field, value in (("heldout", self.heldout), ("test", self.test)):
            if value is not None and value >= 1 and value != int(value):
                raise UsageError(
                    f"data.{field} is {value}; accepted: a share below 1, or a whole number"
                )
        return self


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MemoryImages:
    """Small images as one array (count, height, width, channels) of uint8."""

    pixels: NDArray[np.uint8]

    def read(self, index: int) -> Image.Image:
        """Return one image."""
        pixels = self.pixels[index]
        return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FileImages:
    """Images in files; the names are bytes in one array, which forked workers do not copy."""

    root: Path
    names: NDArray[np.bytes_]
    channels: int

    def path(self, index: int) -> Path:
        """Return the path of one image."""
        return self.root / bytes(self.names[index]).decode("utf-8", "surrogateescape")

    def read(self, index: int) -> Image.Image:
        """Return one image, decoded; raises HwnasError naming the file."""
        path = self.path(index)
        try:
            with Image.open(path) as image:
                return in_mode(image, _MODES[self.channels])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise unreadable(path, error) from error


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MapImages:
    """Images of a data set that another library reads."""

    name: str
    load: Callable[[int], Image.Image]
    indices: NDArray[np.int64]
    channels: int

    def read(self, index: int) -> Image.Image:
        """Return one image, decoded; raises HwnasError naming the data set and the index."""
        source = int(self.indices[index])
        try:
            return in_mode(self.load(source), _MODES[self.channels])
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise unreadable(f"{self.name}, image {source}", error) from error


Images = MemoryImages | FileImages | MapImages


def unreadable(what: object, error: Exception) -> HwnasError:
    """Return the error for an image that cannot be decoded."""
    return HwnasError(
        f"cannot read {what}: {str(error) or type(error).__name__}",
        "replace or remove this image; data.verify=true finds all of them before training",
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Part:
    """Labelled images; `labels[i]` belongs to `images.read(i)`."""

    name: PartName
    images: Images
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: NDArray[np.int64], *, name: PartName) -> "Part":
        """Return the part that has these images, under another name."""
        return Part(name=name, images=_take(self.images, indices), labels=self.labels[indices])


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Data:
    """A data set in parts that have no image in common; `test` may be absent."""

    name: str
    classes: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool
    train: Part
    heldout: Part
    test: Part | None
    preprocessing: dict[str, Any]
    workers: int
    notes: tuple[str, ...] = ()

    def part(self, name: PartName) -> Part:
        """Return a part by name; raises if the data has no test part."""
        if name == "test" and self.test is None:
            raise UsageError(
                f"{self.name} has no test part",
                "add a folder test/, or set data.test to a share of the images",
            )
        found = {"train": self.train, "heldout": self.heldout, "test": self.test}[name]
        assert found is not None
        return found


def fingerprint(data: Data) -> NDArray[np.uint8]:
    """Return a digest of which images are trained on and held out, by name and class."""
    found = hashlib.sha256(repr(data.classes).encode("utf-8", "surrogateescape"))
    for part in (data.train, data.heldout):
        found.update(np.ascontiguousarray(part.labels).tobytes())
        if isinstance(part.images, FileImages):
            found.update(b"\0".join(part.images.names.tolist()))
        if isinstance(part.images, MapImages):
            found.update(part.images.indices.tobytes())
    return np.frombuffer(found.digest(), np.uint8).copy()


def _take(images: Images, indices: NDArray[np.int64]) -> Images:
    if isinstance(images, MemoryImages):
        return MemoryImages(pixels=images.pixels[indices])
    if isinstance(images, FileImages):
        return FileImages(root=images.root, names=images.names[indices], channels=images.channels)
    return MapImages(
        name=images.name,
        load=images.load,
        indices=images.indices[indices],
        channels=images.channels,
    )
