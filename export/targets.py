"""What a model is served from besides the bare file: a folder for each kind of server.

Each target is a function that fills a folder and raises HwnasError if it cannot. What it wrote is
checked like the model itself where a runtime is at hand.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import MissingPackageError, UsageError, unknown_name
from hwnas.export.checks import check_difference, parity_limit
from hwnas.export.metadata import PIXELS, ModelMetadata
from hwnas.export.onnx import INPUT, OUTPUT
from hwnas.export.ortsettings import SETTINGS_FILE, find_settings, write_settings
from hwnas.export.reference import Reference, differences
from hwnas.export.runscript import run_script
from hwnas.io import write_atomic
from hwnas.io.preprocessing import CHANNELS

MOST_IN_A_BATCH = 32
_QUEUE_MICROSECONDS = 500
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployed:
    """The model that a target is made of. `measured`: whether settings are found by measuring."""

    model: Path
    metadata: ModelMetadata
    reference: Reference
    name: str
    measured: bool = True


def triton(folder: Path, deployed: Deployed) -> None:
    """Write a model repository of Triton: `<name>/config.pbtxt` and `<name>/1/model.onnx`."""
    check_name(deployed.name)
    place = folder / deployed.name
    write_atomic(place / "1" / "model.onnx", deployed.model.read_bytes())
    write_atomic(place / "labels.txt", "\n".join(deployed.metadata.classes) + "\n")
    write_atomic(place / "config.pbtxt", triton_config(deployed.name, deployed.metadata))


def check_name(name: str) -> None:
    """Raise UsageError for a name that is no folder's of a model repository."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"model name {name!r}; accepted: letters, digits, '_', '-' and '.'")


def triton_config(name: str, metadata: ModelMetadata) -> str:
    """Return the configuration of a model in protobuf's text format.

    A model for any batch is batched by the server; one for a fixed batch has it in its shapes.
    """
    fixed = [] if metadata.batch is None else [metadata.batch]
    shape, dtype = input_of(metadata)
    lines = [
        f"name: {json.dumps(name)}",
        'platform: "onnxruntime_onnx"',
        f"max_batch_size: {0 if fixed else MOST_IN_A_BATCH}",
        f'input [ {{ name: "{INPUT}" data_type: TYPE_{"UINT8" if dtype == "uint8" else "FP32"} '
        f"dims: {[*fixed, *shape]} }} ]",
        f'output [ {{ name: "{OUTPUT}" data_type: TYPE_FP32 '
        f'dims: {[*fixed, len(metadata.classes)]} label_filename: "labels.txt" }} ]',
    ]
    if not fixed:
        lines.append(f"dynamic_batching {{ max_queue_delay_microseconds: {_QUEUE_MICROSECONDS} }}")
    return "\n".join(lines) + "\n"


def input_of(metadata: ModelMetadata) -> tuple[tuple[int, int, int], str]:
    """Return shape and type of one image of the graph's input."""
    channels = CHANNELS[metadata.preprocessing.channels]
    if metadata.input == PIXELS:
        return (metadata.preprocessing.crop, metadata.preprocessing.crop, channels), "uint8"
    return (channels, metadata.preprocessing.size, metadata.preprocessing.size), "float32"


def ort(folder: Path, deployed: Deployed) -> None:
    """Write the best settings of ONNX Runtime and a script that classifies images with them."""
    found = find_settings(deployed.model, batch=deployed.metadata.batch or 1,
                          measured=deployed.measured)  # fmt: skip
    write_settings(folder / SETTINGS_FILE, found, model=f"../{deployed.model.name}")
    write_atomic(folder / "run.py", run_script(deployed.metadata))


def openvino(folder: Path, deployed: Deployed) -> None:
    """Write OpenVINO's own format, `model.xml` and `model.bin`, checked on the reference."""
    import openvino as ov

    network = ov.convert_model(str(deployed.model))
    for key, text in deployed.metadata.as_props().items():
        network.set_rt_info(text, key)
    folder.mkdir(parents=True, exist_ok=True)
    ov.save_model(network, str(folder / "model.xml"), compress_to_fp16=False)
    compiled = ov.Core().compile_model(
        str(folder / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )

    def answer(squares: Any) -> Any:  # noqa: ANN401 - arrays
        fed = deployed.metadata.feed(squares)
        size = deployed.metadata.batch or len(fed)
        starts = range(0, len(fed), size)
        full = (np.resize(fed[start : start + size], (size, *fed.shape[1:])) for start in starts)
        return np.concatenate([compiled(part)[0] for part in full])[: len(fed)]

    worst = max(differences(deployed.reference, answer).values())
    precision = deployed.metadata.precision
    check_difference(worst, parity_limit(precision), origin=f"OpenVINO's {precision} model")


TARGETS: Mapping[str, Callable[[Path, Deployed], None]] = {
    "triton": triton,
    "ort": ort,
    "openvino": openvino,
}
_NEEDS = {"openvino": "openvino"}


def check_targets(names: tuple[str, ...]) -> None:
    """Raise unless every target is known and what it needs is installed."""
    for name in names:
        if name not in TARGETS:
            raise unknown_name("target", name, TARGETS)
        needed = _NEEDS.get(name)
        if needed is not None and find_spec(needed) is None:
            raise MissingPackageError(
                f"--target {name} needs {needed}, which is not installed",
                f"pip install 'hwnas[{needed}]'",
            )
