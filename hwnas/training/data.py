"""Loading a data set: `load_data(settings)` gives classes and three parts that share no image.

`train` is trained on, `heldout` serves search, `test` is touched by neither. A test part that is
absent stays absent: nothing else takes its place.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from hwnas.errors import MissingPackageError, UsageError, unknown_name
from hwnas.training.builtin import Labels, Pixels, RawData, cifar10, fashion_mnist
from hwnas.training.datasets import (
    GREY_MEAN,
    GREY_STD,
    IMAGENET_MEAN,
    IMAGENET_STD,
    Data,
    DataSettings,
    MemoryImages,
    Part,
    Progress,
)
from hwnas.training.folders import read_folder
from hwnas.training.named import PREFIXES, STREAMS, read_named
from hwnas.training.split import split

__all__ = ["BUILTIN", "Data", "DataSettings", "Part", "load_data"]

_TEST_OF_DIGITS = 0.2


@dataclass(frozen=True, kw_only=True, slots=True)
class _Builtin:
    """A data set known by name; mean and std are those of its training images."""

    read: Callable[[DataSettings, Progress | None], RawData]
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    flips: bool


def _digits(_settings: DataSettings, _progress: Progress | None) -> RawData:
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "the digits come with scikit-learn, which is not installed", 'pip install "hwnas[all]"'
        ) from error
    bunch = load_digits()
    pixels = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    labels = bunch.target.astype(np.int64)
    # Its own constant: another seed of the held-out split must not move test images.
    kept, aside = split(
        labels, BUILTIN["digits"].classes, part="test", wanted=_TEST_OF_DIGITS, seed=0
    )
    return RawData(train=(pixels[kept], labels[kept]), test=(pixels[aside], labels[aside]))


BUILTIN = {
    "digits": _Builtin(
        read=_digits,
        classes=tuple("0123456789"),
        mean=(0.3052,),
        std=(0.3760,),
        flips=False,
    ),
    "fashion-mnist": _Builtin(
        read=fashion_mnist,
        classes=(
            "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
            "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
        ),
        mean=(0.2860,),
        std=(0.3530,),
        flips=True,
    ),
    "cifar10": _Builtin(
        read=cifar10,
        classes=(
            "airplane", "automobile", "bird", "cat", "deer",
            "dog", "frog", "horse", "ship", "truck",
        ),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        flips=True,
    ),
}  # fmt: skip


def load_data(settings: DataSettings, *, progress: Progress | None = None) -> Data:
    """Return the data that `settings` name; raises HwnasError naming the file or class at fault.

    `progress` is told about transfers and long checks.
    """
    name = settings.name
    if name is None:
        return _from_folder(settings, progress)
    if name in BUILTIN:
        return _from_builtin(name, settings, progress)
    prefix = name.lower().partition("/")[0] if "/" in name else ""
    if prefix in PREFIXES:
        return _from_named(name, settings)
    if prefix in STREAMS:
        raise UsageError(
            f"{name} is a stream: it can neither be shuffled reproducibly nor split",
            "use hfds/... of the same data, or save it as a folder of class folders",
        )
    raise unknown_name(
        "data set",
        name,
        [*BUILTIN, *(f"{prefix}/..." for prefix in PREFIXES)],
        hint="for a folder of images set data.path and leave data.name out",
    )


def _from_folder(settings: DataSettings, progress: Progress | None) -> Data:
    channels = settings.channels or 3
    parts = read_folder(settings, channels=channels, progress=progress)
    return _described(
        settings,
        name=str(settings.path),
        classes=parts.classes,
        parts=(parts.train, parts.heldout, parts.test),
        side=settings.image_size or 224,
        statistics=(IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else (GREY_MEAN, GREY_STD),
        notes=parts.notes,
    )


def _from_named(name: str, settings: DataSettings) -> Data:
    channels = settings.channels or 3
    classes, whole, test, notes = read_named(name, settings, channels=channels)
    kept, aside = split(
        whole.labels, classes, part="heldout", wanted=settings.heldout, seed=settings.seed
    )
    return _described(
        settings,
        name=name,
        classes=classes,
        parts=(whole.take(kept, name="train"), whole.take(aside, name="heldout"), test),
        side=settings.image_size or 224,
        statistics=(IMAGENET_MEAN, IMAGENET_STD) if channels == 3 else (GREY_MEAN, GREY_STD),
        notes=notes,
    )


def _from_builtin(name: str, settings: DataSettings, progress: Progress | None) -> Data:
    known = BUILTIN[name]
    if settings.test is not None:
        raise UsageError(f"{name} has its own test part", "remove data.test")
    raw = known.read(settings, progress)
    channels = settings.channels or len(known.mean)
    side = settings.image_size or raw.train[0].shape[1]
    (train_pixels, train_labels), (test_pixels, test_labels) = (
        _fitted(part, channels=channels, side=side, interpolation=settings.interpolation)
        for part in (raw.train, raw.test)
    )
    kept, aside = split(
        train_labels, known.classes, part="heldout", wanted=settings.heldout, seed=settings.seed
    )
    whole = Part(name="train", images=MemoryImages(pixels=train_pixels), labels=train_labels)
    test = Part(name="test", images=MemoryImages(pixels=test_pixels), labels=test_labels)
    return _described(
        settings,
        name=name,
        classes=known.classes,
        parts=(whole.take(kept, name="train"), whole.take(aside, name="heldout"), test),
        side=side,
        statistics=_statistics(known, channels),
        flips=known.flips,
        crop_pct=1.0,
    )


def _statistics(known: _Builtin, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if channels == len(known.mean):
        return known.mean, known.std
    if channels == 3:
        return known.mean * 3, known.std * 3
    return (float(np.mean(known.mean)),), (float(np.mean(known.std)),)


def _fitted(
    part: tuple[Pixels, Labels], *, channels: int, side: int, interpolation: str
) -> tuple[Pixels, Labels]:
    """Return the part with images of this size and number of channels."""
    pixels, labels = part
    if pixels.shape[1:3] != (side, side) or (channels == 1 and pixels.shape[-1] == 3):
        pixels = _redrawn(
            pixels, side=side, mode="L" if channels == 1 else "RGB", interpolation=interpolation
        )
    if channels == 3 and pixels.shape[-1] == 1:
        pixels = np.repeat(pixels, 3, axis=-1)
    return np.ascontiguousarray(pixels), labels


def _redrawn(pixels: Pixels, *, side: int, mode: str, interpolation: str) -> Pixels:
    images = MemoryImages(pixels=pixels)
    filters = Image.Resampling[interpolation.upper()]
    out = np.empty((len(pixels), side, side, 1 if mode == "L" else 3), np.uint8)
    for index in range(len(pixels)):
        drawn = images.read(index).convert(mode).resize((side, side), filters)
        out[index] = np.asarray(drawn).reshape(side, side, -1)
    return out


def _described(
    settings: DataSettings,
    *,
    name: str,
    classes: tuple[str, ...],
    parts: tuple[Part, Part, Part | None],
    side: int,
    statistics: tuple[tuple[float, ...], tuple[float, ...]],
    flips: bool = True,
    crop_pct: float | None = None,
    notes: tuple[str, ...] = (),
) -> Data:
    mean = settings.mean or statistics[0]
    std = settings.std or statistics[1]
    channels = len(statistics[0])
    for field, values in (("mean", mean), ("std", std)):
        if len(values) != channels:
            raise UsageError(
                f"data.{field} has {len(values)} values, the images have {channels} channels",
                f"give {channels} values between 0 and 1",
            )
    preprocessing: dict[str, Any] = {
        "size": [side, side],
        "crop_pct": settings.crop_pct if crop_pct is None else crop_pct,
        "interpolation": settings.interpolation,
        "mean": list(mean),
        "std": list(std),
        "channels": "RGB" if channels == 3 else "L",
        "range": [0.0, 1.0],
    }
    train, heldout, test = parts
    return Data(
        name=name,
        classes=classes,
        channels=channels,
        image_size=side,
        mean=mean,
        std=std,
        flips=flips,
        train=train,
        heldout=heldout,
        test=test,
        preprocessing=preprocessing,
        workers=settings.workers,
        notes=notes,
    )
