"""Counting right answers of exported files, and of files that carry no metadata of ours."""

import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hwnas.errors import UsageError
from hwnas.export.quantise import quantise_dynamic
from hwnas.export.validate_model import validate
from hwnas.export.validate_run import Flags
from hwnas.export.validate_types import Limits, Running
from hwnas.testing.exported import CLASSES, write_artifact, write_images
from hwnas.testing.onnx_models import mean_colours


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return write_artifact(tmp_path_factory.mktemp("exported") / "artifact")


@pytest.fixture(scope="module")
def artifact(exported):
    return exported.folder


@pytest.fixture
def images(exported, tmp_path):
    return write_images(exported, tmp_path / "images")


def examine(path, **asked):
    return validate(path, **{"running": Running(measured=False), **asked})


def failing(verdict):
    return {gate.name: gate.reason for gate in verdict.of("failed")}


def test_images_are_matched_to_classes_by_name(artifact, images):
    (images / "bag").rename(images / "satchel")
    found = failing(examine(artifact, data=images))
    assert "unknown to the model: 'satchel'" in found["data"]


def test_a_part_has_to_be_named(artifact, images, tmp_path):
    for name in ("train", "test"):
        shutil.copytree(images / "bag", tmp_path / "root" / name / "bag")
    verdict = examine(artifact, data=tmp_path / "root")
    assert verdict.gate("data").hint.endswith("root/test")


def test_missing_classes_are_told_and_may_be_accepted(artifact, images):
    shutil.rmtree(images / "boot")
    found = failing(examine(artifact, data=images))
    assert found == {"data": "no images of 1 of the model's 4 classes: 'boot'"}
    verdict = examine(artifact, data=images, allow_missing_classes=True)
    assert verdict.exit_code == 0
    assert verdict.figures["accuracy"]["accuracy"] == 1.0


def test_one_class_may_do_and_folders_may_be_empty(artifact, images):
    for path in (images / "boot").iterdir():
        path.unlink()
    for name in ("coat", "dress"):
        shutil.rmtree(images / name)
    found = failing(examine(artifact, data=images))
    assert found == {"data": "no images of 3 of the model's 4 classes: 'boot', 'coat', 'dress'"}
    shutil.rmtree(images / "boot")
    verdict = examine(artifact, data=images, allow_missing_classes=True)
    assert (verdict.exit_code, verdict.figures["accuracy"]["accuracy"]) == (0, 1.0)


def test_unreadable_images_are_named(artifact, images):
    broken = next((images / "coat").iterdir())
    broken.write_bytes(b"no image")
    verdict = examine(artifact, data=images)
    assert broken.name in failing(verdict)["images"]
    assert verdict.figures["accuracy"]["unreadable"] == 1
    assert verdict.figures["accuracy"]["accuracy"] == 1.0


@pytest.mark.parametrize("folders", [[], CLASSES])
def test_folders_without_images_are_told(artifact, tmp_path, folders):
    for name in folders:
        (tmp_path / "none" / name).mkdir(parents=True)
    (tmp_path / "none").mkdir(exist_ok=True)
    with pytest.raises(UsageError, match="no image in" if folders else "0 class folders"):
        examine(artifact, data=tmp_path / "none")


def test_wrong_answers_count(artifact, images):
    wrong = sorted((images / "dress").iterdir())[:8]
    for path in wrong:
        path.rename(images / "bag" / f"moved-{path.name}")
    limits = Limits(min_accuracy=0.95)
    verdict = examine(artifact, data=images, limits=limits)
    assert verdict.figures["accuracy"]["right"] == 72
    assert failing(verdict)["accuracy"].startswith("72 of 80 right, 90.00%")
    # The exporter counted no mistake, and eight are more than chance.
    assert set(failing(verdict)) == {"accuracy", "exported accuracy"}
    easier = examine(artifact, data=images, limits=Limits(min_accuracy=0.9))
    assert easier.gate("accuracy").state == "passed"


def test_some_of_the_images_may_do(artifact, images):
    assert examine(artifact, data=images, images=20).figures["accuracy"]["seen"] == 20


def test_a_fixed_batch_size_answers_all_images(tmp_path):
    made = write_artifact(tmp_path / "fixed", batch=3, images=40)
    verdict = examine(made.folder, data=write_images(made, tmp_path / "images"))
    assert verdict.exit_code == 0
    assert verdict.figures["accuracy"]["right"] == 40


# --- files of others

COLOURS = Flags(mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture
def colours(tmp_path):
    """A folder of images in three colours, which a model of `mean_colours` tells apart."""
    from PIL.Image import new

    for name, pixel in (("blue", "#00f"), ("green", "#0f0"), ("red", "#f00")):
        (tmp_path / "colours" / name).mkdir(parents=True)
        for number in range(2):
            new("RGB", (12, 12), pixel).save(tmp_path / "colours" / name / f"{number}.png")
    return tmp_path / "colours"


def written(folder, *arguments, **options):
    (folder / "m.onnx").write_bytes(mean_colours(*arguments, **options))
    return folder / "m.onnx"


def test_a_file_for_no_images_takes_none(colours, tmp_path):
    model = written(tmp_path, [0, 3, 8, 8], [0, 3])
    verdict = examine(model, data=colours, flags=COLOURS)
    assert set(failing(verdict)) == {"batch"}
    assert verdict.gate("accuracy").reason == "not looked at: batch failed"


def test_eight_bits_may_depend_on_the_batch_a_little(tmp_path):
    weight = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    whole = mean_colours(["batch", 3, 8, 8], ["batch", 5], weight=weight)
    (tmp_path / "m.onnx").write_bytes(quantise_dynamic(whole))
    verdict = examine(tmp_path / "m.onnx", flags=COLOURS)
    assert (verdict.gate("batch").state, verdict.exit_code) == ("passed", 0)


def test_a_manifest_of_somebody_else_says_nothing(tmp_path):
    written(tmp_path, ["batch", 3, 8, 8], ["batch", 3])
    (tmp_path / "manifest.json").write_text('{"name": "an app", "start_url": "/"}')
    for path in (tmp_path, tmp_path / "m.onnx"):
        verdict = examine(path)
        assert (verdict.state, verdict.gate("hashes").state) == ("passed", "skipped")


@pytest.mark.parametrize("classes", [None, ("red", "green", "blue", "white")])
def test_logits_are_counted_where_the_file_does_not_say_how_many(colours, tmp_path, classes):
    weight = np.ones((3, 10), np.float32)
    model = written(tmp_path, ["batch", 3, 8, 8], ["batch", "num_labels"], weight=weight)
    found = failing(examine(model, data=colours, flags=COLOURS, classes=classes))
    assert "classes for a model with 10 logits" in found["data"]


@pytest.mark.parametrize("names", [("1", "2", "10"), ("a", "B", "c")])
def test_classes_whose_order_nobody_says_are_asked_for(colours, tmp_path, names):
    model = written(tmp_path, ["batch", 3, 8, 8], ["batch", 3])
    for colour, name in zip(("red", "green", "blue"), names, strict=True):
        (colours / colour).rename(colours / name)
    with pytest.raises(UsageError, match="two orders of the class folders") as raised:
        examine(model, data=colours, flags=COLOURS)
    assert "--classes FILE" in raised.value.hint
    verdict = examine(model, data=colours, flags=COLOURS, classes=names)
    assert verdict.figures["accuracy"]["right"] == 6


@pytest.mark.usefixtures("own_lock")
@pytest.mark.parametrize("given", [["batch", 3], None])
def test_height_and_width_may_be_free(colours, tmp_path, given):
    model = written(tmp_path, ["batch", "num_channels", "height", "width"], given)
    running, limits = Running(seconds=0.05), Limits(max_latency_ms=1e5, max_memory_bytes=1e12)
    flags = replace(COLOURS, size=32)
    verdict = examine(model, data=colours, flags=flags, running=running, limits=limits)
    assert failing(verdict) == {}
    assert verdict.gate("p50").state == verdict.gate("memory").state == "passed"


def test_the_speed_of_a_file_of_no_size_is_not_measured(tmp_path):
    model = written(tmp_path, ["batch", 3, "height", "width"], ["batch", 3])
    verdict = examine(model, running=Running())
    assert (verdict.state, verdict.gate("p50").state) == ("passed", "skipped")
    assert "does not say its size" in verdict.gate("p50").reason
    with pytest.raises(UsageError, match="does not say its size"):
        examine(model, running=Running(), limits=Limits(max_latency_ms=5))


def test_an_output_of_no_shape_is_judged_by_running_it(tmp_path):
    model = written(tmp_path, ["batch", 3, 8, 8], None, weight=np.ones((3, 0), np.float32))
    found = failing(examine(model, flags=COLOURS))
    assert "a batch of 1 gives an output of shape [1, 0]" in found["batch"]


def test_a_model_without_our_metadata_is_examined_by_flags(exported, images, tmp_path):
    model = onnx.load(exported.model)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    stated = exported.metadata.preprocessing
    flags = Flags(mean=stated.mean, std=stated.std, channels="L")
    verdict = examine(tmp_path / "foreign.onnx", data=images, flags=flags)
    assert verdict.exit_code == 0
    assert verdict.gate("metadata").state == "skipped"
    # Its images are scaled to 24 pixels in another way than the network's own.
    assert verdict.figures["accuracy"]["accuracy"] > 0.7
    with pytest.raises(UsageError, match="--mean and --std are not given"):
        examine(tmp_path / "foreign.onnx", data=images)
    with pytest.raises(UsageError, match="does not take images of"):
        examine(tmp_path / "foreign.onnx", flags=replace(flags, size=28))
    shutil.rmtree(images / "boot")
    found = failing(examine(tmp_path / "foreign.onnx", data=images, flags=flags))
    assert "3 classes for a model with 4 logits" in found["data"]


def test_classes_of_a_foreign_model_may_be_named(exported, images, tmp_path):
    model = onnx.load(exported.model)
    del model.metadata_props[:]
    onnx.save(model, tmp_path / "foreign.onnx")
    stated = exported.metadata.preprocessing
    flags = Flags(mean=stated.mean, std=stated.std)
    asked = {"data": images, "flags": flags}
    named = examine(tmp_path / "foreign.onnx", classes=CLASSES, **asked).figures["accuracy"]
    turned = examine(tmp_path / "foreign.onnx", classes=CLASSES[::-1], **asked).figures["accuracy"]
    assert named["accuracy"] > turned["accuracy"]


def test_pixels_are_fed_to_a_graph_that_takes_them(tmp_path):
    """Sums of pixels: class 1 if the left half is brighter."""
    weight = np.zeros((2, 8 * 8 * 3), np.float32)
    columns = np.arange(8 * 8 * 3) // 3 % 8
    weight[1] = np.where(columns < 4, 1, -1)
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["numbers"], ["flat"]),
        helper.make_node("Gemm", ["flat", "weight"], ["logits"], transB=1),
    ]
    graph = helper.make_graph(
        nodes, "halves",
        [helper.make_tensor_value_info("images", TensorProto.UINT8, ["batch", 8, 8, 3])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 2])],
        [onnx.numpy_helper.from_array(weight, "weight")],
    )  # fmt: skip
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), tmp_path / "m.onnx")
    from PIL.Image import fromarray

    for name, bright in (("left", slice(0, 16)), ("right", slice(16, 32))):
        pixels = np.zeros((32, 32, 3), np.uint8)
        pixels[:, bright] = 200
        (tmp_path / "data" / name).mkdir(parents=True)
        fromarray(pixels).save(tmp_path / "data" / name / "1.jpg")
    verdict = examine(tmp_path / "m.onnx", data=tmp_path / "data", classes=("right", "left"))
    assert verdict.figures["accuracy"]["right"] == 2
