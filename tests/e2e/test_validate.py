"""Examining exported files: sound ones pass every gate, each kind of broken one is caught."""

import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwnas.errors import UsageError
from hwnas.export.artifact import MANIFEST_FILE, REFERENCE_FILE, read_manifest
from hwnas.export.validate_model import validate
from hwnas.export.validate_run import Flags
from hwnas.export.validate_types import Limits, Running
from hwnas.testing.exported import (
    CLASSES,
    MODEL_FILE,
    change_weight,
    seal,
    set_metadata,
    write_artifact,
    write_images,
)
from hwnas.testing.onnx_models import conv_stack

STILL = Running(measured=False)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return write_artifact(tmp_path_factory.mktemp("exported") / "artifact")


@pytest.fixture(scope="module")
def pictures(exported, tmp_path_factory):
    return write_images(exported, tmp_path_factory.mktemp("pictures"))


@pytest.fixture
def artifact(exported, tmp_path):
    return shutil.copytree(exported.folder, tmp_path / "artifact")


@pytest.fixture
def images(pictures, tmp_path):
    return shutil.copytree(pictures, tmp_path / "images")


def examine(path, **asked):
    return validate(path, **{"running": STILL, **asked})


def failing(verdict):
    return {gate.name: gate.reason for gate in verdict.of("failed")}


def test_a_sound_artifact_passes_every_gate(artifact, images):
    verdict = examine(artifact, data=images, limits=Limits(min_accuracy=1.0, max_size_bytes=4e6))
    assert (verdict.state, verdict.exit_code) == ("passed", 0)
    assert {gate.name for gate in verdict.of("passed")} == {
        "file", "external data", "operators", "hashes", "size", "metadata", "batch", "parity",
        "data", "accuracy", "exported accuracy",
    }  # fmt: skip
    assert verdict.figures["accuracy"]["accuracy"] == 1.0
    # Sizes that no file of the exporter was tried with.
    assert set(verdict.figures["parity"]["difference"]) >= {"1", "2", "3", "5", "7", "16"}
    assert max(verdict.figures["parity"]["difference"].values()) < 1e-5


def test_a_model_is_examined_alone_or_beside_its_manifest(artifact, tmp_path):
    assert examine(artifact / MODEL_FILE).gate("hashes").state == "passed"
    alone = shutil.copy(artifact / MODEL_FILE, tmp_path / "alone.onnx")
    verdict = examine(alone)
    assert verdict.exit_code == 0
    assert {gate.name for gate in verdict.of("skipped")} == {"hashes", "parity"}


# --- deliberately broken exports


def test_a_batch_size_baked_in_is_named(tmp_path):
    made = write_artifact(tmp_path / "fixed", batch=1)
    assert examine(made.folder).exit_code == 0  # it says so itself
    with pytest.raises(UsageError, match="--batch is 8, and .* is fixed to batches of 1"):
        examine(made.folder, running=Running(batch=8, measured=False))
    set_metadata(made.model, {"batch": None})
    seal(made.folder)
    found = failing(examine(made.folder))
    assert set(found) == {"batch"}
    assert "a batch size of 1 is baked in" in found["batch"]


def test_a_batch_size_baked_into_the_graph_is_named(artifact):
    model = onnx.load(artifact / MODEL_FILE)
    last = model.graph.node[-1]
    shape = onnx.numpy_helper.from_array(np.array([1, len(CLASSES)], np.int64), "baked")
    model.graph.initializer.append(shape)
    inner = last.output[0] + "/inner"
    model.graph.node.append(helper.make_node("Reshape", [inner, "baked"], [last.output[0]]))
    last.output[0] = inner
    onnx.save(model, artifact / MODEL_FILE)
    seal(artifact)
    found = failing(examine(artifact))
    assert "a batch size of 1 is baked in; a batch of 2 fails" in found["batch"]


def test_logits_that_are_no_numbers_are_said_so(artifact):
    model = onnx.load(artifact / MODEL_FILE)
    last = model.graph.node[-1]
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([np.nan], np.float32), "nothing")
    )
    inner = last.output[0] + "/inner"
    model.graph.node.append(helper.make_node("Add", [inner, "nothing"], [last.output[0]]))
    last.output[0] = inner
    onnx.save(model, artifact / MODEL_FILE)
    seal(artifact)
    found = failing(examine(artifact))
    assert found["batch"] == "at batch 1 the logits of 1 of 1 images are NaN or infinite"
    assert found["parity"] == found["batch"]


def test_images_that_influence_each_other_are_noticed(artifact):
    model = onnx.load(artifact / MODEL_FILE)
    last = model.graph.node[-1]
    inner = last.output[0] + "/inner"
    model.graph.node.append(helper.make_node("ReduceMean", [inner], ["mean"], axes=[0], keepdims=1))
    model.graph.node.append(helper.make_node("Add", [inner, "mean"], [last.output[0]]))
    last.output[0] = inner
    onnx.save(model, artifact / MODEL_FILE)
    seal(artifact)
    assert "depend on the batch" in failing(examine(artifact))["batch"]


@pytest.mark.parametrize("wrong", [{"mean": (0.5,)}, {"std": (0.25,)}])
def test_a_wrong_mean_or_std_is_caught(artifact, wrong):
    right = read_manifest(artifact).preprocessing
    set_metadata(artifact / MODEL_FILE, {"preprocessing": replace(right, **wrong)})
    seal(artifact)
    found = failing(examine(artifact))
    assert set(found) == {"metadata", "parity"}
    assert f"{next(iter(wrong))} is" in found["metadata"]
    assert "with the preprocessing of the manifest they agree" in found["parity"]
    # Also where the manifest is as wrong as the file.
    seal(artifact, {"preprocessing": replace(right, **wrong)})
    assert set(failing(examine(artifact))) == {"parity"}


def test_one_changed_weight_is_caught(artifact):
    change_weight(artifact / MODEL_FILE)
    assert set(failing(examine(artifact))) == {"hashes", "parity"}
    seal(artifact)
    found = failing(examine(artifact))
    assert set(found) == {"parity"}
    assert "weights or operators" in found["parity"]


@pytest.mark.parametrize("name", [MODEL_FILE, REFERENCE_FILE])
def test_one_changed_byte_is_named(artifact, name):
    content = bytearray((artifact / name).read_bytes())
    content[-20] ^= 1
    (artifact / name).write_bytes(content)
    verdict = examine(artifact)
    assert f"{name} was changed" in failing(verdict)["hashes"]
    assert verdict.exit_code == 4


@pytest.mark.parametrize(
    ("classes", "told"),
    [
        (CLASSES[:-1], "names 3 classes, the graph answers with 4 logits"),
        (CLASSES[::-1], "in another order than the manifest's: 'dress' where 'bag' belongs"),
        ((*CLASSES[:-1], "shirt"), "it has 'shirt', lacks 'dress'"),
        ((*CLASSES[:-1], CLASSES[0]), "named twice: 'bag'"),
    ],
)
def test_a_wrong_class_list_is_caught(artifact, classes, told):
    set_metadata(artifact / MODEL_FILE, {"classes": classes})
    seal(artifact)
    assert told in failing(examine(artifact))["metadata"]


def test_a_wrong_class_order_shows_in_the_accuracy(artifact, images):
    set_metadata(artifact / MODEL_FILE, {"classes": CLASSES[::-1]})
    seal(artifact, {"classes": CLASSES[::-1]})
    found = failing(examine(artifact, data=images, limits=Limits(min_accuracy=0.9)))
    assert set(found) == {"accuracy", "exported accuracy"}


@pytest.mark.parametrize("place", ["../secret.bin", "/etc/passwd", "sub/../../secret.bin"])
def test_external_data_outside_of_the_folder_is_not_opened(artifact, place):
    (artifact.parent / "secret.bin").write_bytes(bytes(1000))
    model = onnx.load(artifact / MODEL_FILE)
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    (artifact / MODEL_FILE).write_bytes(model.SerializeToString())
    verdict = examine(artifact, limits=Limits(max_size_bytes=1e9))
    assert f"{place!r} is outside of the folder" in failing(verdict)["external data"]
    assert "file" not in {gate.name for gate in verdict.gates}


def test_external_data_in_the_folder_counts(artifact, tmp_path):
    model = onnx.load(artifact / MODEL_FILE)
    folder = tmp_path / "external"
    folder.mkdir()
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.bin",
              size_threshold=0)  # fmt: skip
    verdict = examine(folder)
    assert verdict.gate("external data").found == "1 files in its folder"
    together = sum(path.stat().st_size for path in folder.iterdir())
    assert verdict.figures["file"]["size_bytes"] == together
    (folder / "m.bin").unlink()
    assert "'m.bin'" in failing(examine(folder))["external data"]


def test_custom_operators_are_named(artifact):
    model = onnx.load(artifact / MODEL_FILE)
    model.graph.node[-1].domain = "my.company"
    model.opset_import.append(helper.make_opsetid("my.company", 1))
    onnx.save(model, artifact / MODEL_FILE)
    kind = model.graph.node[-1].op_type
    assert f"'my.company.{kind}'" in failing(examine(artifact))["operators"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"version": 99}, "version 99 of hwnas/model"),
        ({"std": [0.0]}, "std is (0.0,)"),
        ({"crop": 10**6, "resize": 10**6}, "crop is 1000000"),
        ({"size": 28}, "does not take images of (1, 28, 28)"),
    ],
)
def test_a_file_is_not_fed_as_its_metadata_cannot_mean(artifact, images, change, told):
    model = onnx.load(artifact / MODEL_FILE)
    document = json.loads(model.metadata_props[0].value)
    (document if "version" in change else document["preprocessing"]).update(change)
    model.metadata_props[0].value = json.dumps(document)
    onnx.save(model, artifact / MODEL_FILE)
    seal(artifact)
    verdict = examine(artifact, data=images, limits=Limits(min_accuracy=0.5))
    assert set(failing(verdict)) == {"metadata"}
    assert told in failing(verdict)["metadata"]
    assert verdict.gate("accuracy").reason == "not looked at: metadata failed"
    assert "batch" not in {gate.name for gate in verdict.gates}


def test_a_wrong_precision_is_noticed(artifact):
    set_metadata(artifact / MODEL_FILE, {"precision": "int8_dynamic"})
    seal(artifact)
    assert "no operators of 8 bits" in failing(examine(artifact))["metadata"]


def test_broken_documents_are_failed_gates(artifact):
    (artifact / MANIFEST_FILE).write_text("{}")
    assert "no schema" in failing(examine(artifact / MODEL_FILE))["hashes"]
    (artifact / MANIFEST_FILE).unlink()
    (artifact / REFERENCE_FILE).write_bytes(b"x")
    assert "not a complete safetensors" in failing(examine(artifact))["parity"]


# --- files that are no models


def two_inputs():
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 3, 8, 8])
        for name in ("left", "right", "sum")
    ]
    graph = helper.make_graph(
        [helper.make_node("Add", ["left", "right"], ["sum"])], "two", values[:2], values[2:]
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "is empty"),
        (b"hello, this is no model\n", "is a text file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "pointer of Git LFS"),
        (bytes(range(256)) * 4, "not an ONNX file"),
        (conv_stack()[:1000], "cut off"),
        (two_inputs(), "it has 2 inputs ('left' [batch, 3, 8, 8], 'right' [batch, 3, 8, 8])"),
    ],
)
def test_files_that_are_no_model_are_told_in_one_line(tmp_path, content, told):
    (tmp_path / "m.onnx").write_bytes(content)
    verdict = examine(tmp_path / "m.onnx", limits=Limits(max_latency_ms=5), running=Running())
    assert told in failing(verdict)["file"]
    assert "\n" not in failing(verdict)["file"]
    assert verdict.exit_code == 4
    assert verdict.gate("p50").state == "skipped"


def test_no_damage_is_a_crash(tmp_path):
    """Bytes changed anywhere: a verdict in one line per gate, nothing printed, no traceback."""
    whole, rng = conv_stack(width=4, size=8), np.random.default_rng(0)
    for number in range(60):
        damaged = bytearray(whole)
        for place in rng.integers(len(whole), size=1 + number % 3):
            damaged[place] = rng.integers(256)
        end = len(whole) if number % 4 else int(rng.integers(1, len(whole)))
        (tmp_path / "m.onnx").write_bytes(damaged[:end])
        verdict = examine(tmp_path / "m.onnx")
        assert all("\n" not in reason for reason in failing(verdict).values())


def test_names_that_are_no_text_are_told(tmp_path, capfd):
    whole = conv_stack(width=4, size=8)
    for name in (b"images", b"logits", b"batch", b"head.bias", b"block0/conv"):
        damaged = whole.replace(name, b"\xff" * len(name))
        (tmp_path / "m.onnx").write_bytes(damaged)
        assert set(failing(examine(tmp_path / "m.onnx"))) <= {"file", "operators", "external data"}
    assert capfd.readouterr().out == ""  # where --json is printed


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"path": "absent.onnx"}, "no such file"),
        ({"data": "absent/folder"}, "is not a folder"),
        ({"data": "fashion-minst"}, "did you mean fashion-mnist"),
        ({"limits": Limits(min_accuracy=0.5)}, "no images to count it on"),
        ({"limits": Limits(max_latency_ms=5)}, "nothing may be measured"),
        ({"running": Running(backend="torch", measured=False)}, "runs no files"),
        ({"running": Running(backend="onxruntime")}, "did you mean onnxruntime"),
        ({"flags": Flags(mean=(0.5,))}, "--mean would contradict it"),
    ],
)
def test_requests_that_make_no_sense(artifact, tmp_path, asked, told):
    path = asked.pop("path", artifact)
    with pytest.raises(UsageError, match=told):
        examine(tmp_path / path, **asked)


def test_the_verdict_is_json(artifact):
    document = examine(artifact).to_json()
    assert (document["schema"], document["version"]) == ("hwnas/verdict", 1)
    assert json.loads(json.dumps(document, allow_nan=False)) == document
