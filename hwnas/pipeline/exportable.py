"""What is exported, and what it is judged by: a subnet read back from its files, and its data."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import UsageError
from hwnas.export.reference import Answer, Reference
from hwnas.io.preprocessing import Preprocessing
from hwnas.pipeline.significance import most_lost

if TYPE_CHECKING:
    from hwnas.nets import PlainNetwork
    from hwnas.supernet import Card
    from hwnas.training.datasets import Data, Part

CONFIG_FILE = "config.toml"
REFERENCE_BATCHES = (1, 2, 5, 8)
_CALIBRATION_IMAGES, _CALIBRATION_BATCH = 128, 16
_JUDGED_AT_ONCE = 32
_ITS_RECIPE = "name the recipe it was extracted with: --recipe my.toml"

Squares = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Subject:
    """A subnet as a module, what its card says, and the data it is for.

    `described`: what identifies the data, as in the card.
    """

    module: "PlainNetwork"
    card: "Card"
    data: "Data"
    arch: dict[str, Any]
    preprocessing: Preprocessing
    classes: tuple[str, ...]
    described: Mapping[str, Any]

    def answer(self, squares: Squares) -> NDArray[np.float32]:
        """Return the module's logits for cropped squares of pixels."""
        import torch

        with torch.inference_mode():
            logits = self.module(torch.from_numpy(self.preprocessing.normalise(squares)))
        found: NDArray[np.float32] = logits.numpy().astype(np.float32)
        return found


def open_subject(subnet: Path, *, recipe: str | None = None) -> Subject:
    """Return the subnet in a folder; `recipe` names its data where the folder does not.

    Raises GateError if a file was changed since its card was written, UsageError if data are
    missing or others than those of the card.
    """
    from hwnas.pipeline.config import read_recipe
    from hwnas.supernet import load_subnet, read_arch, read_card
    from hwnas.training.data import load_data
    from hwnas.training.preprocessing import describe_data, preprocessing_of

    subnet = Path(subnet)
    if not subnet.is_dir():
        raise UsageError(f"{subnet}: no such folder", "hwnas extract --run RUN writes one")
    card = read_card(subnet)
    _, arch = read_arch(subnet)
    own = subnet / CONFIG_FILE
    if recipe is None and not own.is_file():
        raise UsageError(
            f"{subnet}: does not say what data it is for, and a model is judged on real images",
            "name a recipe with the data: --recipe my.toml",
        )
    module = load_subnet(subnet)
    data = load_data(read_recipe(recipe or str(own)).data)
    network = module.description
    preprocessing = preprocessing_of(data, side=network.side)
    for what, theirs, ours in (
        ("classes", len(data.classes), network.classes),
        ("channels", data.channels, network.channels),
        ("preprocessing", preprocessing, card.preprocessing or preprocessing),
        ("class names", data.classes, card.classes or data.classes),
    ):
        if theirs != ours:
            raise UsageError(
                f"{subnet}: the network has {what} {ours}, the data ({data.name}) {theirs}",
                _ITS_RECIPE,
            )
    described = describe_data(data)
    _check_parts(subnet, card.data or described, described)
    return Subject(
        module=module,
        card=card,
        data=data,
        arch=arch.to_json(),
        preprocessing=preprocessing,
        classes=data.classes,
        described=card.data or described,
    )


def _check_parts(subnet: Path, known: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Raise UsageError unless the images to judge and calibrate by are those that a card names.

    After another split the held-out ones may have been trained on.
    """
    for name in ("heldout", "train"):
        theirs = found["parts"][name]
        if known.get("parts", {}).get(name) != theirs:
            raise UsageError(
                f"{subnet}: the {name} images of the data ({theirs['images']}, digest "
                f"{theirs['digest'][:12]}) are not those that its card names",
                _ITS_RECIPE,
            )


def reference_of(subject: Subject, *, batch: int | None) -> Reference:
    """Return held-out images with the module's logits for several batch sizes and `batch`."""
    sizes = sorted({*REFERENCE_BATCHES, *(() if batch is None else (batch,))})
    chosen = np.resize(spread(sizes[-1], len(subject.data.heldout)), sizes[-1])
    images = squares_of(subject.data.heldout, chosen, subject.preprocessing)
    return Reference(
        images=images,
        labels=subject.data.heldout.labels[chosen],
        logits={size: subject.answer(images[:size]) for size in sizes},
    )


def calibration_squares(subject: Subject, *, batch: int | None) -> Iterator[Squares]:
    """Yield batches of training images, as evaluation sees them."""
    size = batch or _CALIBRATION_BATCH
    chosen = spread(max(size, _CALIBRATION_IMAGES), len(subject.data.train))
    for start in range(0, len(chosen), size):
        indices = np.resize(chosen[start : start + size], size)
        yield squares_of(subject.data.train, indices, subject.preprocessing)


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """Top-1 accuracy, and the share of images with the module's answer.

    `most_lost`: by how much the accuracy may be below the module's, with 95 % confidence.
    """

    accuracy: float
    most_lost: float
    agreement: float
    images: int


def judge(subject: Subject, answers: Mapping[str, Answer], *, images: int) -> dict[str, Judged]:
    """Return how models do on the same held-out images; the module's own entry is "module"."""
    heldout = subject.data.heldout
    chosen = spread(images, len(heldout))
    every: dict[str, Callable[[Squares], NDArray[Any]]] = {"module": subject.answer, **answers}
    right, same, lost = (dict.fromkeys(every, 0) for _ in range(3))
    for start in range(0, len(chosen), _JUDGED_AT_ONCE):
        indices = chosen[start : start + _JUDGED_AT_ONCE]
        squares = squares_of(heldout, indices, subject.preprocessing)
        said = {name: answer(squares).argmax(1) for name, answer in every.items()}
        wanted = heldout.labels[indices]
        for name, classes in said.items():
            right[name] += int((classes == wanted).sum())
            same[name] += int((classes == said["module"]).sum())
            lost[name] += int(((classes != wanted) & (said["module"] == wanted)).sum())
    count = len(chosen)
    gained = {name: right[name] - right["module"] + lost[name] for name in every}
    return {
        name: Judged(
            accuracy=right[name] / count,
            most_lost=most_lost(lost[name], gained[name], pairs=count),
            agreement=same[name] / count,
            images=count,
        )
        for name in every
    }


def spread(count: int, total: int) -> NDArray[np.int64]:
    """Return `count` numbers spread over those below `total`, fewer if there are not as many."""
    return np.linspace(0, total - 1, min(count, total)).astype(np.int64)


def squares_of(part: "Part", indices: NDArray[np.int64], preprocessing: Preprocessing) -> Squares:
    """Return images of a part as cropped squares of pixels."""
    return np.stack([preprocessing.square(part.images.read(int(index))) for index in indices])
