"""Reference outputs: real images and what the torch module answered, to check files without torch.

The logits are stored once per batch size: those of a batch of n are of the first n images.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError
from hwnas.io import read_tensors, write_tensors

Floats = NDArray[np.float32]
# Runs a model: the squares of pixels in, the logits out.
Answer = Callable[[NDArray[np.uint8]], NDArray[Any]]
_LOGITS = "logits/"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Reference:
    """`images` are cropped squares (N, crop, crop, channels); `logits[n]` has n rows."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    logits: Mapping[int, Floats]


def write_reference(path: Path, reference: Reference) -> None:
    """Write the reference to a safetensors file."""
    logits = {f"{_LOGITS}{batch}": values for batch, values in reference.logits.items()}
    write_tensors(path, {"images": reference.images, "labels": reference.labels, **logits})


def read_reference(path: Path) -> Reference:
    """Return the reference in a file."""
    arrays, _ = read_tensors(path)
    images, labels = arrays.get("images"), arrays.get("labels")
    logits = {
        int(name.removeprefix(_LOGITS)): values
        for name, values in sorted(arrays.items())
        if name.startswith(_LOGITS) and name.removeprefix(_LOGITS).isdecimal()
    }
    if images is None or labels is None or not logits:
        raise FormatError(f"{path}: no reference of a model (it has {', '.join(sorted(arrays))})")
    if images.dtype != np.uint8 or images.ndim != 4 or len(labels) != len(images):
        raise FormatError(f"{path}: images are {images.dtype} of shape {images.shape}")
    for batch, values in logits.items():
        if values.ndim != 2 or not 0 < batch == len(values) <= len(images) or not values.size:
            raise FormatError(f"{path}: logits of {batch} images have shape {values.shape}")
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise FormatError(f"{path}: logits of {batch} images are no finite numbers")
    return Reference(images=images, labels=labels, logits=logits)


def differences(reference: Reference, answer: Answer) -> dict[int, float]:
    """Return, for each batch size, the largest difference relative to the largest logit.

    Infinite where the answer has another shape or values that are not finite.
    """
    return {
        batch: relative_difference(answer(reference.images[:batch]), expected)
        for batch, expected in reference.logits.items()
    }


def relative_difference(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """Return the largest difference as a share of the largest expected value."""
    if found.shape != expected.shape or not np.isfinite(found).all():
        return float("inf")
    largest = max(float(np.abs(expected).max()), float(np.finfo(np.float32).tiny))
    return float(np.abs(found.astype(np.float64) - expected).max()) / largest
