"""Manifests: every file is bound by its hash, and nothing outside of the folder is trusted."""

import json

import numpy as np
import onnx
import pytest

from hwnas.errors import FormatError, GateError, UsageError
from hwnas.export.artifact import (
    MANIFEST_FILE,
    Manifest,
    ModelEntry,
    check_external_data,
    read_manifest,
    verify,
    write_manifest,
)
from hwnas.export.metadata import PLANES
from hwnas.export.reference import Reference, differences, read_reference, write_reference
from hwnas.io import digest_file, write_tensors
from hwnas.io.preprocessing import Preprocessing
from hwnas.pipeline.exporting import Wish, checked
from hwnas.testing.onnx_models import conv_stack

# As version 1 was written; must stay readable for good.
STORED = {
    "schema": "hwnas/artifact", "version": 1,
    "arch": {"schema": "hwnas/arch", "version": 1, "space": "nano", "genes": {"side": 24}},
    "options": {"classes": 2, "channels": 1}, "digest": "ab", "weights": "cd",
    "supernet": {"step": 3}, "data": {"name": "digits"},
    "preprocessing": {"size": 8, "crop": 8, "resize": 8, "interpolation": "bicubic",
                      "mean": [0.3], "std": [0.4], "channels": "L"},
    "input": "float32 NCHW", "classes": ["0", "1"],
    "models": [{"file": "model.onnx", "precision": "fp32", "opset": 17, "batch": None,
                "difference": 1e-6, "agreement": 1.0, "accuracy": 0.9, "images": 100,
                "latency": {"median_ms": 1.5}}],
    "recommended": "model.onnx", "promised": {}, "measured": {},
    "versions": {"hwnas": "0.1.0"}, "created": "2026-01-01T00:00:00+00:00",
    "files": {"model.onnx": {"sha256": "00", "size_bytes": 5}},
}  # fmt: skip


def manifest() -> Manifest:
    return Manifest(
        arch={}, options={}, digest="ab", weights="cd", supernet=None, data={},
        preprocessing=Preprocessing(
            size=8, crop=8, resize=8, interpolation="bicubic", mean=(0.3,), std=(0.4,),
            channels="L",
        ),
        input=PLANES,
        classes=("0", "1"),
        models=(
            ModelEntry(
                file="model.onnx", precision="fp32", opset=17, batch=None, difference=0.0,
                agreement=1.0, accuracy=1.0, images=3,
            ),
        ),
        recommended="model.onnx", promised={}, measured={}, versions={}, created="now",
    )  # fmt: skip


@pytest.fixture
def artifact(tmp_path):
    folder = tmp_path / "artifact"
    (folder / "ort").mkdir(parents=True)
    (folder / "model.onnx").write_bytes(conv_stack())
    (folder / "ort" / "run.py").write_text("pass\n")
    write_manifest(folder, manifest())
    return folder


def test_the_stored_form_is_read(tmp_path):
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(STORED))
    found = read_manifest(tmp_path)
    assert found.preprocessing.mean == (0.3,)
    assert found.files["model.onnx"].size_bytes == 5
    assert found.model("model.onnx").latency == {"median_ms": 1.5}
    with pytest.raises(FormatError, match=r"it has: model\.onnx"):
        found.model("other.onnx")


def test_it_is_read_back_as_written(artifact):
    found = verify(artifact)
    assert set(found.files) == {"model.onnx", "ort/run.py"}
    assert found == verify(artifact / "model.onnx") == verify(artifact / MANIFEST_FILE)


@pytest.mark.parametrize("name", ["model.onnx", "ort/run.py"])
def test_one_changed_byte_is_noticed(artifact, name):
    path = artifact / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(GateError, match=f"{name} was changed"):
        verify(artifact)


def test_a_missing_file_is_named(artifact):
    (artifact / "ort" / "run.py").unlink()
    with pytest.raises(GateError, match=r"ort/run\.py is missing"):
        verify(artifact)


def test_files_that_are_not_listed_are_not_read(artifact, monkeypatch):
    (artifact / "film.mp4").write_bytes(b"somebody else's")
    read = []

    def digest(path):
        read.append(path.relative_to(artifact).as_posix())
        return digest_file(path)

    monkeypatch.setattr("hwnas.export.artifact.digest_file", digest)
    verify(artifact)
    assert sorted(read) == ["model.onnx", "ort/run.py"]


def test_a_model_without_a_hash_is_named(artifact):
    document = json.loads((artifact / MANIFEST_FILE).read_text())
    del document["files"]["model.onnx"]
    (artifact / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(GateError, match=r"model\.onnx has no hash"):
        verify(artifact)


@pytest.mark.parametrize("name", ["/etc/passwd", "../other", "a/../../b", "C:\\x", "..\\x"])
def test_files_outside_of_the_folder_are_refused(tmp_path, name):
    document = {**STORED, "files": {name: {"sha256": "00", "size_bytes": 5}}}
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(FormatError, match="outside of the folder"):
        read_manifest(tmp_path)


def with_external_data(location: str, *, nested: bool = False) -> bytes:
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[4])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="length", value="16")
    graph = onnx.GraphProto(name="g")
    if nested:
        graph.node.add(op_type="Constant", output=["w"]).attribute.append(
            onnx.AttributeProto(name="value", type=onnx.AttributeProto.TENSOR, t=tensor)
        )
        outer = onnx.GraphProto(name="outer")
        outer.node.add(op_type="If").attribute.append(
            onnx.AttributeProto(name="then_branch", type=onnx.AttributeProto.GRAPH, g=graph)
        )
        graph = outer
    else:
        graph.initializer.append(tensor)
    model = onnx.ModelProto(ir_version=8, graph=graph)
    model.opset_import.add(domain="", version=17)
    return model.SerializeToString()


@pytest.mark.parametrize("nested", [False, True])
def test_external_data_must_stay_in_the_folder(tmp_path, nested):
    path = tmp_path / "model.onnx"
    path.write_bytes(with_external_data("weights.bin", nested=nested))
    assert check_external_data(path) == {tmp_path / "weights.bin"}
    for name in ("../weights.bin", "/weights.bin"):
        path.write_bytes(with_external_data(name, nested=nested))
        with pytest.raises(FormatError, match="outside of the folder"):
            check_external_data(path)


def test_a_link_out_of_the_folder_is_outside(tmp_path):
    (tmp_path / "secret").write_bytes(b"x")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "weights.bin").symlink_to(tmp_path / "secret")
    (folder / "model.onnx").write_bytes(with_external_data("weights.bin"))
    with pytest.raises(FormatError, match="outside of the folder"):
        check_external_data(folder / "model.onnx")


def test_a_model_that_is_a_link_may_keep_tensors_where_it_lies(tmp_path):
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    (blobs / "ab12").write_bytes(with_external_data("model.onnx_data"))
    (blobs / "cd34").write_bytes(b"x")
    (snapshot / "model.onnx").symlink_to("../../blobs/ab12")
    (snapshot / "model.onnx_data").symlink_to("../../blobs/cd34")
    found = check_external_data(snapshot / "model.onnx")
    assert found == {snapshot / "model.onnx_data"}
    (tmp_path / "secret").write_bytes(b"x")
    (snapshot / "model.onnx_data").unlink()
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(FormatError, match="outside of the folder"):
        check_external_data(snapshot / "model.onnx")


def reference() -> Reference:
    rng = np.random.default_rng(0)
    return Reference(
        images=rng.integers(0, 256, (3, 4, 4, 1), dtype=np.uint8),
        labels=np.array([0, 1, 1]),
        logits={n: rng.standard_normal((n, 2)).astype(np.float32) for n in (1, 3)},
    )


def test_references_are_read_back(tmp_path):
    path = tmp_path / "reference.safetensors"
    write_reference(path, reference())
    found = read_reference(path)
    assert np.array_equal(found.images, reference().images)
    assert found.logits.keys() == {1, 3}


def test_differences_are_relative_to_the_largest_logit():
    stored = reference()
    scale = {n: np.abs(logits).max() for n, logits in stored.logits.items()}

    def answer(images):
        return stored.logits[len(images)] + 0.5 * scale[len(images)]

    assert differences(stored, answer) == pytest.approx({1: 0.5, 3: 0.5})
    assert differences(stored, lambda images: np.zeros((1, 5))) == {1: np.inf, 3: np.inf}
    assert differences(stored, lambda images: stored.logits[len(images)] * np.nan)[1] == np.inf


def test_a_damaged_reference_is_refused(tmp_path):
    path = tmp_path / "reference.safetensors"
    write_tensors(path, {"images": np.zeros((1, 2, 2, 1), np.uint8)})
    with pytest.raises(FormatError, match="no reference"):
        read_reference(path)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_refused(tmp_path, value):
    document = json.loads(json.dumps(STORED))
    document["models"][0]["difference"] = value
    (tmp_path / MANIFEST_FILE).write_text(json.dumps(document))
    with pytest.raises(FormatError, match="manifest.json: "):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("logits/0", np.zeros((0, 2), np.float32)),
        ("logits/1", np.full((1, 2), np.nan, np.float32)),
        ("logits/1", np.zeros((1, 2), np.int8)),
        ("logits/\u00b2", np.zeros((2, 2), np.float32)),
    ],
)
def test_references_that_prove_nothing_are_refused(tmp_path, name, values):
    images, labels = np.zeros((2, 8, 8, 1), np.uint8), np.zeros(2, np.int64)
    path = tmp_path / "reference.safetensors"
    write_tensors(path, {"images": images, "labels": labels, name: values})
    with pytest.raises(FormatError, match="logits"):
        read_reference(path)


def test_the_name_of_a_server_is_looked_at_before_anything_is_written():
    with pytest.raises(UsageError, match="model name 'a b'"):
        checked(Wish(targets=("triton",), name="a b"))
