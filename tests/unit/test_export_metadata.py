"""What a model file says about itself, read without onnx and torch."""

import dataclasses
import json
import subprocess
import sys

import onnxruntime
import pytest

import hwnas
from hwnas.errors import FormatError
from hwnas.export import onnx_from_description
from hwnas.export.metadata import (
    METADATA_KEY,
    PIXELS,
    PLANES,
    ModelMetadata,
    metadata_from,
    read_metadata,
)
from hwnas.io import onnxwire
from hwnas.io.preprocessing import Preprocessing
from hwnas.testing.onnx_models import conv_stack

# As version 1 was written; must stay readable for good.
STORED = (
    '{"arch":{"genes":{"side":24},"schema":"hwnas/arch","space":"nano","version":1},"batch":null,'
    '"classes":["cat","dog"],"digest":"ab","hwnas":"0.1.0","opset":17,"options":{"classes":2},'
    '"precision":"fp32","preprocessing":{"channels":"RGB","crop":24,"input":"float32 NCHW",'
    '"interpolation":"bicubic","mean":[0.5,0.4,0.3],"resize":28,"size":24,"std":[0.2,0.25,0.3]},'
    '"schema":"hwnas/model","version":1,"weights":"cd"}'
)
METADATA = ModelMetadata(
    preprocessing=Preprocessing(
        size=24, crop=24, resize=28, interpolation="bicubic", mean=(0.5, 0.4, 0.3),
        std=(0.2, 0.25, 0.3), channels="RGB",
    ),
    input=PLANES,
    classes=("cat", "dog"),
    arch={"schema": "hwnas/arch", "version": 1, "space": "nano", "genes": {"side": 24}},
    options={"classes": 2},
    digest="ab",
    weights="cd",
    precision="fp32",
    opset=17,
    batch=None,
    hwnas="0.1.0",
)  # fmt: skip


def test_the_stored_form_is_read_and_written():
    assert metadata_from({METADATA_KEY: STORED}, "here") == METADATA
    assert METADATA.as_props() == {METADATA_KEY: STORED}


def test_a_file_carries_it(tmp_path):
    space = hwnas.space("nano")
    data = onnx_from_description(space.network(space.smallest()), metadata=METADATA.as_props())
    (tmp_path / "model.onnx").write_bytes(data)
    assert read_metadata(tmp_path / "model.onnx") == METADATA
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    assert metadata_from(session.get_modelmeta().custom_metadata_map, "here") == METADATA
    assert onnxwire.opsets(data) == {"": 17}


def test_a_foreign_model_has_none(tmp_path):
    (tmp_path / "model.onnx").write_bytes(conv_stack())
    assert read_metadata(tmp_path / "model.onnx") is None


@pytest.mark.parametrize("content", [b"", b"not a model", b"\x00" * 40])
def test_what_is_no_model_is_named(tmp_path, content):
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(FormatError, match=r"model\.onnx: not an ONNX file"):
        read_metadata(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2 of hwnas/model"),
        ({"schema": "other"}, "'other'"),
        ({"classes": "cat"}, "classes"),
        ({"opset": "17"}, "opset"),
        ({"colour": 1}, "colour"),
        ({"preprocessing": None}, "preprocessing"),
        ({"preprocessing": {**json.loads(STORED)["preprocessing"], "input": "int8"}}, "input"),
        ({"preprocessing": {**json.loads(STORED)["preprocessing"], "channels": "XYZ"}}, "'XYZ'"),
        ({"preprocessing": {"input": "float32 NCHW"}}, "size"),
    ],
)
def test_damaged_metadata_is_refused(change, message):
    text = json.dumps({**json.loads(STORED), **change})
    with pytest.raises(FormatError, match=message):
        metadata_from({METADATA_KEY: text}, "here")


def test_metadata_that_is_no_json_is_refused():
    with pytest.raises(FormatError, match="not JSON"):
        metadata_from({METADATA_KEY: "{"}, "here")


def test_pixels_are_fed_as_they_are():
    import numpy as np

    squares = np.arange(24 * 24 * 3, dtype=np.uint8).reshape(1, 24, 24, 3)
    assert METADATA.feed(squares).shape == (1, 3, 24, 24)
    assert METADATA.feed(squares).dtype == np.float32
    assert dataclasses.replace(METADATA, input=PIXELS).feed(squares) is squares


def test_reading_needs_neither_torch_nor_onnx():
    script = (
        "import sys, hwnas.export.metadata, hwnas.export.artifact, hwnas.export.reference;"
        "assert not {'torch', 'onnx', 'PIL', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
