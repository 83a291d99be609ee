"""Accuracy of a file itself, on labelled images, with the preprocessing that it carries."""

import math
import tomllib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError, HwnasError, UsageError, unknown_name
from hwnas.export.validate_run import Feeding, Runner, batched
from hwnas.export.validate_types import Examples, Gate, failed, listed, passed
from hwnas.io.paths import resolved
from hwnas.io.preprocessing import CHANNELS

_BATCH = 32
_RECIPE = "config.toml"  # in the folder of a run
_Z = 1.959964  # of a two-sided interval of 95 %
_PARTS = {"train", "val", "valid", "validation", "test"}

# Called with (images done, images in all).
Progress = Callable[[int, int], None]


def open_examples(source: str | Path, *, channels: str, in_order: bool = False) -> Examples:
    """Return the images of a folder of class folders, or the test part of a data set or a run.

    Of data sets known by name those that need no torch are accepted. `in_order`: the classes are
    to come in the order of a model's logits, as only their names tell; raises UsageError for
    folders whose names have two usual orders.
    """
    from hwnas.training.data import BUILTIN, DataSettings
    from hwnas.training.datasets import MemoryImages
    from hwnas.training.folders import labelled_folder

    folder, name = Path(source), str(source)
    if (folder / _RECIPE).is_file():
        return _test_part(folder / _RECIPE)
    if folder.is_dir():
        classes, part = labelled_folder(folder, channels=CHANNELS[channels])
        if in_order:
            _check_order(name, classes)
        return Examples(name=name, classes=classes, images=part.images, labels=part.labels)
    if name not in BUILTIN:
        if isinstance(source, Path) or "/" in name or "." in name:
            raise UsageError(f"{name} is not a folder", "name a folder of class folders")
        raise unknown_name(
            "data", name, BUILTIN, hint="for images of your own name a folder of class folders"
        )
    known = BUILTIN[name]
    pixels, labels = known.read(DataSettings(name=name), None).test
    images = MemoryImages(pixels=pixels)
    return Examples(name=f"{name}, test part", classes=known.classes, images=images, labels=labels)


def _check_order(name: str, classes: Sequence[str]) -> None:
    """Raise UsageError where sorting plainly gives another order than sorting as people do.

    torchvision and Keras do the one, timm the other: a guess could count right answers as wrong.
    """
    for ours, plain in zip(classes, sorted(classes), strict=True):
        if ours != plain:
            raise UsageError(
                f"{name}: two orders of the class folders are usual, {ours!r} before {plain!r} and "
                "the reverse, and nobody says which is that of the logits",
                "name the classes in the order of the logits, one a line: --classes FILE",
            )


def _test_part(recipe: Path) -> Examples:
    """Return the images that the recipe of a run keeps for the final test."""
    from hwnas.training.data import DataSettings, load_data

    try:
        data = tomllib.loads(recipe.read_text())["data"]
        if isinstance(data.get("path"), str):
            data["path"] = resolved(data["path"], recipe.parent)
        settings = DataSettings.model_validate(data)
    except (KeyError, ValueError, OSError) as error:
        raise FormatError(f"{recipe}: names no data ({error})") from error
    data = load_data(settings)
    if data.test is None:
        raise UsageError(
            f"{recipe.parent}: nothing of {data.name} is kept for the final test",
            "name a folder of class folders that was not trained on",
        )
    return Examples(
        name=f"{data.name}, test part",
        classes=data.classes,
        images=data.test.images,
        labels=data.test.labels,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Counted:
    """Right answers among images; `unreadable` says what is wrong with each that could not be."""

    right: int
    seen: int
    unreadable: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.right / self.seen

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the accuracy."""
        return wilson(self.right, self.seen)


def wilson(right: int, seen: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share; unlike the usual one it is right near 0 and 1."""
    share, z2 = right / seen, _Z * _Z
    centre = (share + z2 / (2 * seen)) / (1 + z2 / seen)
    half = _Z / (1 + z2 / seen) * math.sqrt(share * (1 - share) / seen + z2 / (4 * seen * seen))
    low = 0.0 if right == 0 else centre - half
    return low, 1.0 if right == seen else centre + half


def check_classes(classes: Sequence[str]) -> None:
    """Raise UsageError unless the classes of a model are told apart by their names."""
    hint = "name the class of each logit, one a line, as the folders of its images are named"
    if not classes:
        raise UsageError("--classes names no class", hint)
    repeated = [name for name, times in Counter(classes).items() if times > 1]
    if repeated:
        raise UsageError(f"--classes names twice: {listed(repeated)}", hint)


def matching(
    examples: Examples, classes: Sequence[str], *, logits: int, allow_missing: bool
) -> tuple[Gate, NDArray[np.int64] | None]:
    """Return whether the data has the model's classes, and each label's number in the model.

    The numbers are None if nothing can be counted: images have classes that the model does not
    know, or it has another number of `logits` than classes.
    """
    if logits != len(classes):
        reason = f"{examples.name}: {len(classes)} classes for a model with {logits} logits"
        return failed("data", reason, hint="are these the images it was trained for?"), None
    unknown = [name for name in examples.classes if name not in set(classes)]
    seen = {examples.classes[label] for label in np.unique(examples.labels)}
    absent = [name for name in classes if name not in seen]
    counts = f"{len(examples.classes)} classes, {len(examples.labels)} images"
    if unknown:
        reason = (
            f"{examples.name} has {len(examples.classes)} classes, the model {len(classes)}; "
            f"unknown to the model: {listed(unknown)}; it knows: {listed(classes)}"
        )
        return failed("data", reason, found=counts, hint=_hint(examples, unknown)), None
    order = {name: number for number, name in enumerate(classes)}
    numbers = np.array([order[name] for name in examples.classes], np.int64)
    if absent:
        reason = f"no images of {len(absent)} of the model's {len(classes)} classes: "
        reason += listed(absent)
        if not allow_missing:
            return (
                failed("data", reason, found=counts, hint="add them, or --allow-missing-classes"),
                numbers,
            )
        return passed("data", counts, reason=reason), numbers
    return passed("data", counts), numbers


def _hint(examples: Examples, unknown: Sequence[str]) -> str:
    parts = sorted((name for name in unknown if name.lower() in _PARTS), key=_trained_on)
    if parts:
        return f"name the part to test on: {examples.name}/{parts[0]}"
    return "class folders are named as the classes of the model"


def _trained_on(name: str) -> tuple[bool, str]:
    """Return a key that sorts test and validation parts before training parts."""
    return name.lower().startswith("train"), name


def count_right(
    runner: Runner,
    feeding: Feeding,
    examples: Examples,
    numbers: NDArray[np.int64],
    *,
    limit: int | None = None,
    progress: Progress | None = None,
) -> Counted:
    """Return how many images the file answers rightly; those that cannot be read are named.

    `limit` takes that many images, spread over all.
    """
    total = len(examples.labels)
    chosen = np.arange(total)
    if limit is not None and limit < total:
        chosen = np.linspace(0, total - 1, limit).astype(np.int64)
    size = runner.batch or _BATCH
    right = seen = 0
    unreadable: list[str] = []
    for start in range(0, len(chosen), size):
        squares, labels = [], []
        for index in chosen[start : start + size]:
            try:
                squares.append(feeding.preprocessing.square(examples.images.read(int(index))))
            except HwnasError as error:
                unreadable.append(error.message)
                continue
            labels.append(numbers[examples.labels[index]])
        if squares:
            logits = batched(np.stack(squares), runner, feeding)
            right += int((logits.argmax(axis=1) == np.array(labels)).sum())
            seen += len(squares)
        if progress is not None:
            progress(min(start + size, len(chosen)), len(chosen))
    return Counted(right=right, seen=seen, unreadable=tuple(unreadable))


def images_gate(counted: Counted) -> Gate | None:
    """Return the gate that names images that cannot be read, None if all can."""
    if not counted.unreadable:
        return None
    count = len(counted.unreadable)
    reason = f"{count} image{'' if count == 1 else 's'}: {'; '.join(counted.unreadable[:3])}"
    if count > 3:
        reason += f"; and {count - 3} more"
    return failed("images", reason, found=f"{count} unreadable", hint="replace or remove them")


def accuracy_gate(counted: Counted, least: float | None) -> Gate:
    """Return whether the file is right often enough."""
    if counted.seen == 0:
        return failed("accuracy", "no image could be read")
    low, high = counted.interval
    found = f"{counted.accuracy:.2%} ({low:.2%}..{high:.2%}, n={counted.seen})"
    if least is None:
        return Gate(name="accuracy", state="told", found=found)
    wanted = f">= {least:.2%}"
    if counted.accuracy >= least:
        near = f"the 95 % interval begins at {low:.2%}" if low < least else ""
        return passed("accuracy", found, wanted=wanted, reason=near)
    reason = f"{counted.right} of {counted.seen} right, {counted.accuracy:.2%}; wanted {wanted}"
    return failed("accuracy", reason, wanted=wanted, found=found)


def accuracy_figures(counted: Counted, source: str) -> dict[str, Any]:
    """Return the numbers as JSON."""
    if counted.seen == 0:
        return {"data": source, "seen": 0, "unreadable": len(counted.unreadable)}
    return {
        "data": source,
        "right": counted.right,
        "seen": counted.seen,
        "unreadable": len(counted.unreadable),
        "accuracy": counted.accuracy,
        "interval": list(counted.interval),
    }
