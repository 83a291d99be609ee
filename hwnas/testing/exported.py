"""A small exported artifact with real outputs of torch, and ways to break it, for tests.

The network is random. Labels are what it answers, so a file that computes the same is always
right, and one that does not is not.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hwnas.export import OPSET, to_onnx
from hwnas.export.artifact import (
    REFERENCE_FILE,
    Manifest,
    ModelEntry,
    read_manifest,
    write_manifest,
)
from hwnas.export.metadata import PLANES, ModelMetadata
from hwnas.export.reference import Reference, write_reference
from hwnas.io.preprocessing import Preprocessing
from hwnas.nets import PlainNetwork
from hwnas.spaces import Arch, Space, space
from hwnas.supernet.calibrate import calibrate
from hwnas.testing.supernets import randomised_supernet

CLASSES = ("bag", "boot", "coat", "dress")
MODEL_FILE = "model.onnx"
_STORED = 8


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Exported:
    """An artifact and images that its network was asked about: squares and its answers."""

    folder: Path
    metadata: ModelMetadata
    squares: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @property
    def model(self) -> Path:
        """The model file."""
        return self.folder / MODEL_FILE


def write_artifact(
    folder: Path,
    *,
    batch: int | None = None,
    images: int = 80,
    crop: int = 28,
    latency: Mapping[str, Any] | None = None,
) -> Exported:
    """Write an artifact of the smallest network of `nano`, which is for 24 pixels.

    Images are squares of `crop` pixels, of multiples of 4, that are scaled if they have another
    size. `latency` is what the manifest says of it.
    """
    of = space("nano", classes=len(CLASSES), channels=1)
    arch = of.smallest()
    preprocessing = Preprocessing(
        size=of.network(arch).side, crop=crop, resize=crop, interpolation="bicubic", mean=(0.45,),
        std=(0.31,), channels="L",
    )  # fmt: skip
    squares = _patterns(images, crop)
    planes = torch.from_numpy(preprocessing.normalise(squares))
    network = _balanced(randomised_supernet(of).extract(arch).eval(), planes)
    folder.mkdir(parents=True, exist_ok=True)
    metadata = _metadata(of, arch, preprocessing, batch)
    to_onnx(network, folder / MODEL_FILE, batch=batch, metadata=metadata.as_props())
    with torch.no_grad():
        labels = network(planes).argmax(1).numpy()
        sizes = (1, 2, _STORED) if batch is None else (batch,)
        logits = {size: network(planes[:size]).numpy() for size in sizes}
    most = max(sizes)
    reference = Reference(images=squares[:most], labels=labels[:most], logits=logits)
    write_reference(folder / REFERENCE_FILE, reference)
    write_manifest(folder, _manifest(metadata, images, latency))
    return Exported(folder=folder, metadata=metadata, squares=squares, labels=labels)


def write_images(exported: Exported, folder: Path) -> Path:
    """Write the images as PNG files in class folders named as the classes; return the folder."""
    from PIL.Image import fromarray

    for index, (square, label) in enumerate(zip(exported.squares, exported.labels, strict=True)):
        path = folder / CLASSES[label] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        fromarray(square[..., 0]).save(path)
    return folder


def set_metadata(model: Path, changes: Mapping[str, Any]) -> ModelMetadata:
    """Change fields of what a model file says about itself, and nothing else."""
    import onnx

    from hwnas.export.metadata import read_metadata

    found = read_metadata(model)
    assert found is not None
    changed = dataclasses.replace(found, **changes)
    proto = onnx.load(str(model))
    onnx.helper.set_model_props(proto, changed.as_props())
    onnx.save(proto, str(model))
    return changed


def change_weight(model: Path, *, factor: float = 2.0) -> str:
    """Multiply one value, the largest of the last weight of the head; return its tensor's name."""
    import onnx

    proto = onnx.load(str(model))
    tensor = max(
        (one for one in proto.graph.initializer if one.name.startswith("head/")),
        key=lambda one: len(one.raw_data),
    )
    values = onnx.numpy_helper.to_array(tensor).copy()
    values.flat[int(np.abs(values).argmax())] *= factor
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    onnx.save(proto, str(model))
    return str(tensor.name)


def seal(folder: Path, changes: Mapping[str, Any] | None = None) -> None:
    """Write the manifest anew for the files as they are, with some fields changed."""
    write_manifest(folder, dataclasses.replace(read_manifest(folder), **(changes or {})))


def _patterns(count: int, side: int) -> NDArray[np.uint8]:
    """Return images (count, side, side, 1) of coarse and fine noise."""
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 200, (count, 4, 4)).repeat(side // 4, 1).repeat(side // 4, 2)
    pixels: NDArray[np.uint8] = (coarse + rng.integers(0, 56, coarse.shape)).astype(np.uint8)
    return pixels[..., None]


def _balanced(network: PlainNetwork, planes: torch.Tensor) -> PlainNetwork:
    """Return the network, calibrated, with a bias that lets it answer every class."""
    calibrate(network, [planes])
    network.eval()
    bias = network.get_parameter("blocks.head.classify.bias")
    with torch.no_grad():
        bias.sub_(network(planes).mean(0))
    return network


def _metadata(
    of: Space, arch: Arch, preprocessing: Preprocessing, batch: int | None
) -> ModelMetadata:
    return ModelMetadata(
        preprocessing=preprocessing,
        input=PLANES,
        classes=CLASSES,
        arch=arch.to_json(),
        options=dict(of.options),
        digest=arch.digest,
        weights="0" * 64,
        precision="fp32",
        opset=OPSET,
        batch=batch,
        hwnas="test",
    )


def _manifest(metadata: ModelMetadata, images: int, latency: Mapping[str, Any] | None) -> Manifest:
    entry = ModelEntry(
        file=MODEL_FILE, precision="fp32", opset=OPSET, batch=metadata.batch, difference=1e-6,
        agreement=1.0, accuracy=1.0, images=images,
        latency=None if latency is None else dict(latency),
    )  # fmt: skip
    return Manifest(
        arch=metadata.arch,
        options=metadata.options,
        digest=metadata.digest,
        weights=metadata.weights,
        supernet=None,
        data={"name": "patterns"},
        preprocessing=metadata.preprocessing,
        input=metadata.input,
        classes=metadata.classes,
        models=(entry,),
        recommended=MODEL_FILE,
        promised={},
        measured={},
        versions={},
        created="2026-01-01T00:00:00+00:00",
    )
