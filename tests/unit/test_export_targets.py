"""Triton's configuration, read back by a parser of protobuf's text format, and the others."""

import dataclasses
import re
import sys

import numpy as np
import pytest
from PIL import Image

from hwnas.errors import MissingPackageError, UsageError
from hwnas.export import targets
from hwnas.export.metadata import PIXELS, PLANES, ModelMetadata
from hwnas.export.ortsettings import OrtSettings, find_settings, open_with
from hwnas.export.runscript import run_script
from hwnas.export.targets import Deployed, check_targets, triton, triton_config
from hwnas.io.preprocessing import Preprocessing
from hwnas.testing.onnx_models import write_conv_stack

METADATA = ModelMetadata(
    preprocessing=Preprocessing(
        size=24, crop=28, resize=28, interpolation="bicubic", mean=(0.5,), std=(0.2,), channels="L"
    ),
    input=PLANES, classes=("cat", "dog", "cow"), arch={}, options={}, digest="ab", weights="cd",
    precision="fp32", opset=17, batch=None, hwnas="0.1.0",
)  # fmt: skip

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[A-Za-z_][\w.]*|-?\d+|[{}\[\]:,]')


def parse(text: str) -> dict[str, list]:
    """Return a message of protobuf's text format: field -> values, each a text, number or dict."""
    assert _TOKENS.sub("", text).strip() == "", "characters that are no tokens"
    tokens = _TOKENS.findall(text)
    message, at = _message(tokens, 0)
    assert at == len(tokens), f"unexpected {tokens[at]!r}"
    return message


def _message(tokens: list[str], at: int) -> tuple[dict[str, list], int]:
    fields: dict[str, list] = {}
    while at < len(tokens) and tokens[at] != "}":
        name, at = tokens[at], at + 1
        assert name.isidentifier(), f"{name!r} is no field"
        colon = tokens[at] == ":"
        at += colon
        values, at = _values(tokens, at)
        assert colon or all(isinstance(value, dict) for value in values), f"{name} needs a colon"
        fields.setdefault(name, []).extend(values)
    return fields, at


def _values(tokens: list[str], at: int) -> tuple[list, int]:
    if tokens[at] != "[":
        value, at = _value(tokens, at)
        return [value], at
    values, at = [], at + 1
    while tokens[at] != "]":
        value, at = _value(tokens, at)
        values.append(value)
        at += tokens[at] == ","
    return values, at + 1


def _value(tokens: list[str], at: int):
    token = tokens[at]
    if token == "{":
        message, at = _message(tokens, at + 1)
        assert tokens[at] == "}"
        return message, at + 1
    if token.startswith('"'):
        return token[1:-1], at + 1
    return (int(token) if token.lstrip("-").isdigit() else token), at + 1


@pytest.mark.parametrize("depth", [np.uint8, np.uint16])
def test_the_script_prepares_images_as_hwnas_does(depth):
    how, text = METADATA.preprocessing, run_script(METADATA)
    names = {"np": np, "Image": Image, "how": how.to_json(), "sys": sys}
    exec(text[text.index("def square") : text.index("def feed")], names)
    pixels = np.random.default_rng(0).integers(0, np.iinfo(depth).max, (40, 70), depth)
    image = Image.fromarray(pixels)
    assert np.array_equal(names["square"](image), how.square(image))
    with pytest.raises(SystemExit, match="32 bits"):
        names["square"](image.convert("F"))


def test_any_batch_is_batched_by_the_server():
    config = parse(triton_config("model", METADATA))
    assert config["name"] == ["model"]
    assert config["platform"] == ["onnxruntime_onnx"]
    assert config["max_batch_size"] == [32]
    assert config["input"] == [{"name": ["images"], "data_type": ["TYPE_FP32"],
                                "dims": [1, 24, 24]}]  # fmt: skip
    assert config["output"] == [{"name": ["logits"], "data_type": ["TYPE_FP32"], "dims": [3],
                                 "label_filename": ["labels.txt"]}]  # fmt: skip
    assert config["dynamic_batching"] == [{"max_queue_delay_microseconds": [500]}]


def test_a_fixed_batch_is_part_of_the_shapes():
    config = parse(triton_config("model", dataclasses.replace(METADATA, batch=4)))
    assert config["max_batch_size"] == [0]
    assert config["input"][0]["dims"] == [4, 1, 24, 24]
    assert config["output"][0]["dims"] == [4, 3]
    assert "dynamic_batching" not in config


def test_pixels_are_bytes_of_the_square():
    config = parse(triton_config("model", dataclasses.replace(METADATA, input=PIXELS)))
    assert config["input"][0]["data_type"] == ["TYPE_UINT8"]
    assert config["input"][0]["dims"] == [28, 28, 1]


@pytest.mark.parametrize("name", ["../x", "", "a b", "/x"])
def test_names_that_are_no_folders_are_refused(tmp_path, name):
    deployed = Deployed(model=tmp_path, metadata=METADATA, reference=None, name=name)
    with pytest.raises(UsageError, match="model name"):
        triton(tmp_path, deployed)
    assert not list(tmp_path.iterdir())


def test_unknown_targets_and_absent_packages_are_named(monkeypatch):
    with pytest.raises(UsageError, match="did you mean triton"):
        check_targets(("tritn",))
    monkeypatch.setattr(targets, "find_spec", lambda name: None)
    check_targets(("triton", "ort"))
    with pytest.raises(MissingPackageError, match="needs openvino") as caught:
        check_targets(("openvino",))
    assert caught.value.hint == "pip install 'hwnas[openvino]'"


@pytest.mark.parametrize("how", [METADATA, dataclasses.replace(METADATA, input=PIXELS, batch=2)])
def test_the_script_is_python(how):
    compile(run_script(how), "run.py", "exec")


def test_settings_are_those_of_the_runtime(tmp_path):
    path = write_conv_stack(tmp_path / "model.onnx")
    settings = OrtSettings(threads=2, execution="ORT_PARALLEL", inter_threads=2, spinning=False)
    options = open_with(path, settings).get_session_options()
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 2)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_without_measuring_one_thread_is_taken(tmp_path):
    assert find_settings(tmp_path / "not-opened.onnx", measured=False).best == OrtSettings()


@pytest.mark.parametrize(
    ("problem", "idle_ms", "expected"),
    [
        ("has none", 5.95, OrtSettings(threads=2)),
        (None, 5.95, OrtSettings(threads=2, pages="huge")),
        (None, 5.0, OrtSettings(threads=2, spinning=False)),  # pages are not timed with that
    ],
)
def test_a_later_setting_has_to_be_clearly_faster(
    tmp_path, monkeypatch, problem, idle_ms, expected
):
    times = {OrtSettings(): 10.0, OrtSettings(threads=2): 6.0,
             OrtSettings(threads=2, spinning=False): idle_ms}  # fmt: skip

    def timed(model, candidates, batch):
        return [(settings, times.get(settings, 20.0)) for settings in candidates]

    def timed_apart(model, settings, batch):
        assert settings == OrtSettings(threads=2, pages=settings.pages)
        return 11.0 if settings.pages == "huge" else 12.0

    monkeypatch.setattr("hwnas.export.ortsettings._timed", timed)
    monkeypatch.setattr("hwnas.export.ortsettings._time_apart", timed_apart)
    monkeypatch.setattr("hwnas.export.ortsettings.huge_pages_problem", lambda: problem)
    monkeypatch.setattr("hwnas.export.ortsettings.available_cores", lambda: 4)
    found = find_settings(tmp_path / "model.onnx")
    assert found.best == expected
    assert bool(found.best.environment) == (expected.pages == "huge")
    huge = {OrtSettings(threads=2, pages="huge"): 5.5} if expected.pages == "huge" else {}
    assert {s: time for s, time in found.tried if time < 20.0} == times | huge
    assert {settings.threads for settings, _ in found.tried} == {1, 2, 4}
