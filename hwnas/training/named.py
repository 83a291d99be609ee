"""Data sets that timm opens by name: `torch/...` of torchvision, `hfds/...` of Hugging Face."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from hwnas.errors import HwnasError, MissingPackageError, UsageError
from hwnas.training.datasets import DataSettings, MapImages, Part, PartName
from hwnas.training.vision import import_timm

PREFIXES = ("hfds", "torch")
STREAMS = ("hfids", "tfds", "wds")


def read_named(
    name: str, settings: DataSettings, *, channels: int
) -> tuple[tuple[str, ...], Part, Part | None, tuple[str, ...]]:
    """Return (classes, training images, test images or None, notes)."""
    library = name.partition("/")[0].lower()
    train_set = _create(name, settings, split=settings.train_split)
    classes = _classes(train_set, name)
    train = _part(train_set, name, classes, part="train", channels=channels)
    test_split = settings.test_split or ("validation" if library == "torch" else None)
    if test_split is None:
        note = f"no test part: data.test_split does not say which split of {name} it is"
        return classes, train, None, (note,)
    test_set = _create(name, settings, split=test_split)
    test = _part(test_set, name, classes, part="test", channels=channels)
    return classes, train, test, ()


def _create(name: str, settings: DataSettings, *, split: str) -> Any:  # noqa: ANN401
    root = None if settings.path is None else str(settings.path)
    if root is None and name.lower().startswith("torch/"):
        raise UsageError(f"{name} needs a folder", "set data.path to where it lies or shall lie")
    create = import_timm("data").create_dataset
    download = settings.download and name.lower().startswith("torch/")
    try:
        return create(name, root=root, split=split, download=download)
    except ImportError as error:
        raise MissingPackageError(
            f"{name} needs the package {error.name or error}, which is not installed",
            "pip install datasets",
        ) from error
    # What timm, torchvision and the hub raise for unknown names, splits and failed downloads.
    except (AssertionError, RuntimeError, ValueError, KeyError, OSError) as error:
        raise HwnasError(
            f"cannot open {name}, split {split!r}: {error}",
            "check data.name, data.path and data.train_split",
        ) from error


def _classes(dataset: Any, name: str) -> tuple[str, ...]:  # noqa: ANN401
    reader = getattr(dataset, "reader", None)
    mapping = getattr(reader or dataset, "class_to_idx", None)
    if mapping:
        return tuple(str(label) for label in sorted(mapping, key=lambda key: int(mapping[key])))
    if found := getattr(dataset, "classes", None):
        return tuple(str(label) for label in found)
    count = int(_labels(dataset, name).max()) + 1
    return tuple(str(label) for label in range(count))


def _part(
    dataset: Any,  # noqa: ANN401
    name: str,
    classes: tuple[str, ...],
    *,
    part: PartName,
    channels: int,
) -> Part:
    labels = _labels(dataset, name)
    if len(labels) == 0 or labels.min() < 0 or labels.max() >= len(classes):
        raise HwnasError(f"{name} has labels outside its {len(classes)} classes")
    images = MapImages(
        name=name,
        load=_loader(dataset),
        indices=np.arange(len(labels), dtype=np.int64),
        channels=channels,
    )
    return Part(name=part, images=images, labels=labels)


def _labels(dataset: Any, name: str) -> NDArray[np.int64]:  # noqa: ANN401
    reader = getattr(dataset, "reader", None)
    if reader is not None:
        found: Any = list(reader.iter_targets())
    else:
        found = getattr(dataset, "targets", None)
        if found is None:
            found = getattr(dataset, "labels", None)
    if found is None:
        raise UsageError(
            f"{name} does not list its labels, which a stratified split needs",
            "save it as a folder of class folders and set data.path",
        )
    return np.asarray(found, dtype=np.int64).reshape(-1)


def _loader(dataset: Any) -> Callable[[int], Image.Image]:  # noqa: ANN401
    """Return a function that worker processes can be sent."""
    reader = getattr(dataset, "reader", None)
    return partial(_first, dataset) if reader is None else partial(_opened, reader)


def _first(dataset: Any, index: int) -> Image.Image:  # noqa: ANN401
    image = dataset[index][0]
    assert isinstance(image, Image.Image)
    return image


def _opened(reader: Any, index: int) -> Image.Image:  # noqa: ANN401
    # Not through timm's dataset: it answers an unreadable image with its neighbour.
    with Image.open(reader[index][0]) as image:
        image.load()
        return image
