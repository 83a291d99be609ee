"""`hwnas export` on a small trained run: what is written is the network, and mistakes are named."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from PIL import Image

from hwnas.cli.main import hwnas, main
from hwnas.errors import GateError, UsageError
from hwnas.export import verify
from hwnas.export.artifact import MANIFEST_FILE, REFERENCE_FILE
from hwnas.export.metadata import PIXELS, read_metadata
from hwnas.export.reference import differences, read_reference
from hwnas.export.validate_promises import exported_pace
from hwnas.pipeline import exporting, extracting
from hwnas.pipeline.config import read_recipe, to_toml
from hwnas.pipeline.exportable import Judged, judge, open_subject, squares_of
from hwnas.pipeline.exporting import Exported, Wish, export
from hwnas.pipeline.rundir import open_run, space_of
from hwnas.pipeline.significance import most_lost
from hwnas.profiling.machine import device
from hwnas.supernet import load_subnet
from hwnas.testing.runs import imported_run, small_run
from hwnas.training.data import load_data
from hwnas.training.datasets import DataSettings

ALL = ("fp32", "fp16", "int8_dynamic", "int8_static")
QUIET = Wish(measured=False, images=50)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run(tmp_path_factory.mktemp("runs") / "run")
    for name in ("smallest", "largest"):
        extracting.extract(open_run(folder), extracting.select(open_run(folder), arch=name))
    return folder


@pytest.fixture(scope="module")
def subnet(trained: Path) -> Path:
    return trained / "subnets" / space_of(open_run(trained)).smallest().digest[:12]


@pytest.fixture(scope="module")
def whole(subnet: Path, tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """All precisions and targets, not measured; tests must not change it."""
    wish = Wish(precisions=ALL, targets=("triton", "ort", "openvino"), measured=False, images=100)
    return export(subnet, wish=wish, out=tmp_path_factory.mktemp("out") / "whole")


def session(model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def answers(model: Path, squares: np.ndarray) -> np.ndarray:
    opened, about = session(model), read_metadata(model)
    return opened.run(None, {opened.get_inputs()[0].name: about.feed(squares)})[0]


def test_a_model_answers_as_the_module_does(whole: Exported, subnet: Path) -> None:
    import torch

    reference = read_reference(whole.folder / REFERENCE_FILE)
    how = whole.manifest.preprocessing
    assert (how.size, how.crop) == (24, 28)  # the square is scaled for this subnet
    module = load_subnet(subnet)
    for size in (1, 3, 7):
        with torch.inference_mode():
            expected = module(torch.from_numpy(how.normalise(reference.images[:size]))).numpy()
        found = answers(whole.folder / "model.onnx", reference.images[:size])
        assert np.abs(found - expected).max() < 1e-5 * np.abs(expected).max()
    assert set(reference.logits) == {1, 2, 5, 8}
    data = load_data(DataSettings(name="digits", image_size=28, heldout=100))
    assert (reference.images[0] == np.asarray(data.heldout.images.read(0))[..., None]).all()


def test_precisions_are_the_same_network_roughly(whole: Exported) -> None:
    entries = {entry.precision: entry for entry in whole.manifest.models}
    assert tuple(entries) == ALL
    assert entries["fp32"].difference < 1e-5
    assert entries["fp32"].agreement == 1.0
    assert entries["fp32"].accuracy == whole.manifest.measured["accuracy"]
    for precision in ALL[1:]:
        assert 0 < entries[precision].difference < 0.25
        assert entries[precision].agreement >= 0.9
        assert abs(entries[precision].accuracy - entries["fp32"].accuracy) <= 0.05
        sizes = whole.manifest.files
        assert sizes[f"model.{precision}.onnx"].size_bytes < 0.7 * sizes["model.onnx"].size_bytes
    assert whole.manifest.recommended == "model.onnx"


def test_a_file_says_what_it_is(whole: Exported, subnet: Path) -> None:
    card = json.loads((subnet / "card.json").read_text())
    for entry in whole.manifest.models:
        about = read_metadata(whole.folder / entry.file)
        assert about.precision == entry.precision
        assert about.classes == tuple("0123456789")
        assert about.digest == card["digest"] == whole.manifest.digest
        assert about.weights == card["files"]["weights.safetensors"]
        assert about.preprocessing == whole.manifest.preprocessing
        assert (about.opset, about.batch) == (17, None)
    assert whole.manifest.supernet == card["supernet"]
    assert whole.manifest.data == card["data"]
    assert {"hwnas", "torch", "onnx", "onnxruntime"} <= whole.manifest.versions.keys()


def test_one_changed_byte_is_noticed(whole: Exported, tmp_path: Path) -> None:
    folder = tmp_path / "artifact"
    shutil.copytree(whole.folder, folder)
    verify(folder)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    for name in set(names) - {MANIFEST_FILE}:
        content = (folder / name).read_bytes()
        changed = bytearray(content)
        changed[len(changed) // 2] ^= 1
        (folder / name).write_bytes(changed)
        with pytest.raises(GateError, match=f"{name} was changed"):
            verify(folder)
        (folder / name).write_bytes(content)


def test_the_script_for_onnxruntime_classifies(whole: Exported, tmp_path: Path) -> None:
    reference = read_reference(whole.folder / REFERENCE_FILE)
    expected = reference.logits[8].argmax(1)
    paths = []
    for index in range(4):
        paths.append(tmp_path / f"{index}.png")
        Image.fromarray(reference.images[index, ..., 0]).save(paths[-1])
    command = [sys.executable, str(whole.folder / "ort" / "run.py"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    told = [line.split(": ")[1].split()[0] for line in done.stdout.splitlines()]
    assert told == [str(index) for index in expected[:4]]


def test_triton_gets_the_file_itself(whole: Exported) -> None:
    (place,) = (whole.folder / "triton").iterdir()
    model = (place / "1" / "model.onnx").read_bytes()
    assert model == (whole.folder / "model.onnx").read_bytes()
    assert (place / "labels.txt").read_text().split() == list("0123456789")
    assert f'name: "{place.name}"' in (place / "config.pbtxt").read_text()


def test_openvino_gets_its_own_format(whole: Exported) -> None:
    import openvino

    reference = read_reference(whole.folder / REFERENCE_FILE)
    model = openvino.Core().read_model(str(whole.folder / "openvino" / "model.xml"))
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    about = read_metadata(whole.folder / "model.onnx")
    apart = differences(reference, lambda squares: compiled(about.feed(squares))[0])
    assert max(apart.values()) < 1e-4
    assert model.get_rt_info("hwnas").astype(str) == about.as_props()["hwnas"]


def test_opset_batch_and_pixels_are_as_asked(subnet: Path, tmp_path: Path) -> None:
    wish = Wish(
        precisions=("fp32", "int8_static"), opset=20, batch=3, embed_preprocessing=True,
        targets=("openvino", "ort"), measured=False, images=40,
    )  # fmt: skip
    found = export(subnet, wish=wish, out=tmp_path / "out")
    reference = read_reference(found.folder / REFERENCE_FILE)
    assert set(reference.logits) == {1, 2, 3, 5, 8}
    for entry in found.manifest.models:
        model = onnx.load(found.folder / entry.file)
        assert [(one.domain, one.version) for one in model.opset_import] == [("", 20)]
        shape = model.graph.input[0].type.tensor_type.shape
        assert [dim.dim_value for dim in shape.dim] == [3, 28, 28, 1]
        assert read_metadata(found.folder / entry.file).input == PIXELS
    logits = answers(found.folder / "model.onnx", reference.images[:3])
    assert np.abs(logits - reference.logits[3]).max() < 1e-4 * np.abs(reference.logits[3]).max()
    image = tmp_path / "image.png"
    Image.fromarray(reference.images[0, ..., 0]).save(image)
    command = [sys.executable, str(found.folder / "ort" / "run.py"), str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert f": {reference.logits[1].argmax()} " in done.stdout, done.stderr


def test_what_was_measured_is_of_the_recommended_file(
    subnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = exporting.judge

    def less_accurate(*arguments: Any, **options: Any) -> dict[str, Judged]:
        found = judge(*arguments, **options)
        return found | {"int8_dynamic": replace(found["int8_dynamic"], accuracy=0.25)}

    monkeypatch.setattr(exporting, "judge", less_accurate)
    monkeypatch.setattr(exporting, "recommend", lambda entries, _: (entries[1], "said so"))
    wish = replace(QUIET, precisions=("int8_dynamic",))
    found = export(subnet, wish=wish, out=tmp_path / "out")
    assert found.manifest.recommended == "model.int8_dynamic.onnx"
    assert found.manifest.measured == {"accuracy": 0.25}


def test_what_a_file_may_lose_is_told_by_the_images_that_changed(subnet: Path) -> None:
    subject = open_subject(subnet)

    def never_9(squares: np.ndarray) -> np.ndarray:
        return np.where(np.arange(10) == 9, -np.inf, subject.answer(squares))

    heldout = subject.data.heldout
    squares = squares_of(heldout, np.arange(len(heldout)), subject.preprocessing)
    was, now = (answer(squares).argmax(1) == heldout.labels for answer in (subject.answer, never_9))
    found = judge(subject, {"same": subject.answer, "never 9": never_9}, images=100)
    assert found["same"].most_lost == most_lost(0, 0, pairs=100)
    lost, gained = int((was & ~now).sum()), int((now & ~was).sum())
    assert found["never 9"].most_lost == most_lost(lost, gained, pairs=100)


@pytest.mark.usefixtures("own_lock")
def test_speed_is_measured_in_turns(subnet: Path, tmp_path: Path) -> None:
    wish = Wish(
        precisions=("fp16",), targets=("ort",), rounds=2, seconds=0.1, images=20
    )  # fmt: skip
    found = export(subnet, wish=wish, out=tmp_path / "out")
    first, second = found.manifest.models
    assert first.latency["ratio"] == 1.0
    assert second.latency["ratio"] > 0
    assert first.latency["median_ms"] > 0
    assert first.latency["grade"] in "ABCD"
    pace = exported_pace(first, device().fingerprint)
    assert pace is not None
    assert pace.reference_ms > 0
    settings = json.loads((found.folder / "ort" / "ort_settings.json").read_text())
    assert len(settings["tried"]) >= 2
    assert all(tried["median_ms"] > 0 for tried in settings["tried"])
    assert any(remark.startswith("fp16 is ") for remark in found.remarks)
    assert found.remarks[-1].startswith("deploy ")


@pytest.mark.usefixtures("own_lock")
def test_beside_another_profiler_it_says_so(subnet: Path, tmp_path: Path) -> None:
    from hwnas.profiling.locks import device_lock

    with device_lock():
        found = export(subnet, wish=Wish(images=20), out=tmp_path / "out")
    assert found.manifest.models[0].latency is None
    assert found.remarks[0].startswith("speed was not measured: another profiler")


# -- nothing half-written -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parity_limit", "check_model"])
def test_a_failed_check_publishes_nothing(
    subnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    out = tmp_path / "out" / "artifact"
    before = export(subnet, wish=QUIET, out=out)

    def fail(*_: object, **__: object) -> float:
        if name == "check_model":
            raise GateError("model.onnx: not valid ONNX")
        return 0.0

    monkeypatch.setattr(f"hwnas.pipeline.exporting.{name}", fail)
    with pytest.raises(GateError, match=r"model\.onnx: (logits differ|not valid)"):
        export(subnet, wish=QUIET, out=out)
    assert [path.name for path in out.parent.iterdir()] == ["artifact"]
    assert verify(out) == before.manifest
    with pytest.raises(GateError):
        export(subnet, wish=QUIET, out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_another_export_replaces_the_first(subnet: Path, tmp_path: Path) -> None:
    export(subnet, wish=Wish(precisions=("fp16",), measured=False, images=20), out=tmp_path / "out")
    export(subnet, wish=QUIET, out=tmp_path / "out")
    assert not (tmp_path / "out" / "model.fp16.onnx").exists()
    verify(tmp_path / "out")


# -- mistakes -----------------------------------------------------------------------------------


@pytest.fixture
def copied(subnet: Path, tmp_path: Path) -> Path:
    shutil.copytree(subnet, tmp_path / "subnets" / subnet.name)
    return tmp_path / "subnets" / subnet.name


@pytest.mark.parametrize("name", ["weights.safetensors", "arch.json"])
def test_a_corrupt_subnet_is_named(copied: Path, name: str) -> None:
    content = bytearray((copied / name).read_bytes())
    content[-2] ^= 1
    (copied / name).write_bytes(content)
    with pytest.raises(GateError, match=f"{name}: has changed"):
        export(copied, wish=QUIET)
    assert not (copied.parent.parent / "artifacts").exists()


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["export", *map(str, arguments)])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return code, errors


def test_mistakes_are_one_line(
    copied: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("x")
    shutil.copytree(copied, tmp_path / "elsewhere")
    cases: list[tuple[tuple[object, ...], int, str]] = [
        ((copied, "--precision", "int4"), 2, "unknown precision 'int4'"),
        ((copied, "--target", "tensort"), 2, "unknown target 'tensort'"),
        ((copied, "--opset", "16"), 2, "opset 16; accepted: 17 to 22"),
        ((copied, "--run", trained), 2, "another way to choose"),
        ((copied, "--family"), 2, "--family chooses"),
        ((tmp_path / "nowhere", "--out", tmp_path / "out"), 2, "no such folder"),
        ((copied, "--out", tmp_path / "mine"), 2, "no artifact of ours"),
        ((tmp_path / "elsewhere",), 2, "say where: --out"),
        (("--run", tmp_path), 2, "not a run folder"),
        (("--run", trained), 1, "nothing has been searched yet"),
        (("--run", trained, "--family"), 1, "nothing has been searched yet"),
    ]
    for arguments, expected, text in cases:
        code, errors = refused(capsys, *arguments)
        assert (code, text in errors) == (expected, True), (arguments, code, errors)
    assert (tmp_path / "mine" / "notes.txt").exists()


def test_a_subnet_without_data_asks_for_a_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = imported_run(tmp_path / "run")
    code, errors = refused(capsys, "--run", run.folder, "--arch", "smallest", "--no-speed")
    assert code == 2
    assert "--recipe" in errors
    told = exported("--run", run.folder, "--arch", "smallest", "--no-speed", "--images", 20,
                    "--recipe", recipe(tmp_path, 28))  # fmt: skip
    assert told["models"][0]["precision"] == "fp32"


def test_data_of_another_kind_are_refused(copied: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="preprocessing"):
        export(copied, wish=QUIET, recipe=str(recipe(tmp_path, 32)))


@pytest.mark.parametrize("change", ["data.seed=7", "data.heldout=120"])
def test_another_split_of_the_data_is_refused(copied: Path, tmp_path: Path, change: str) -> None:
    """Of the images that it would be judged by it may have been trained on some."""
    assert open_subject(copied, recipe=str(recipe(tmp_path, 28))).classes == tuple("0123456789")
    with pytest.raises(UsageError, match=r"the heldout images of the data \(1\d\d, digest"):
        open_subject(copied, recipe=str(recipe(tmp_path, 28, change)))


def recipe(folder: Path, side: int, *more: str) -> Path:
    changes = ('data.name="digits"', f"data.image_size={side}", "data.heldout=100", *more)
    path = folder / "recipe.toml"
    path.write_text(to_toml(read_recipe("nano-fashion", changes)))
    return path


# -- the command line ---------------------------------------------------------------------------


def exported(*arguments: object) -> dict:
    done = CliRunner().invoke(hwnas, ["export", *map(str, arguments), "--json", "--quiet"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


def test_a_run_exports_what_is_named(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained, tmp_path / "run")
    told = exported("--run", tmp_path / "run", "--arch", "largest", "--no-speed", "--images", 20)
    folder = Path(told["artifact"])
    digest = space_of(open_run(trained)).largest().digest
    assert folder.resolve() == (tmp_path / "run" / "artifacts" / digest[:12]).resolve()
    assert verify(folder).digest == digest
    assert Path(told["model"]).is_file()


def test_the_table_tells_of_each_file(subnet: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(hwnas, [
        "export", str(subnet), "--out", str(tmp_path / "out"), "--no-speed", "--images", "20",
        "--precision", "int8_dynamic", "--embed-preprocessing", "--batch", "2",
    ])  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "batches of 2, uint8 NHWC of 28 pixels" in done.stdout
    assert "model.int8_dynamic.onnx" in done.stdout
    assert "deploy model.onnx (fp32: speed was not measured)" in done.stdout
