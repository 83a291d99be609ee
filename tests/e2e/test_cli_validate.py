"""`hwnas validate` as a command: exit codes, what it prints, what it writes."""

import json
import shutil
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from hwnas.cli.main import main
from hwnas.cli.validate import _lines
from hwnas.errors import UnreliableError
from hwnas.export import validate_model
from hwnas.export.artifact import MANIFEST_FILE, REFERENCE_FILE
from hwnas.export.validate_types import VERDICT_SCHEMA
from hwnas.io import read_json
from hwnas.testing.exported import MODEL_FILE, change_weight, write_artifact, write_images

QUICK = ("--no-speed",)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return write_artifact(tmp_path_factory.mktemp("exported") / "artifact")


@pytest.fixture
def artifact(exported, tmp_path):
    return shutil.copytree(exported.folder, tmp_path / "artifact")


@pytest.mark.usefixtures("own_lock")
def test_everything_at_once(hwnas, exported, tmp_path):
    pictures = write_images(exported, tmp_path / "images")
    child = hwnas(
        "validate", str(exported.folder), "--data", str(pictures), "--min-accuracy", "90%",
        "--max-latency", "10s", "--max-p99", "60s", "--max-memory", "2GB", "--max-size", "40MB",
        "--max-seconds", "0.3", "--report", "verdict.json", "--junit", "verdict.xml",
        cwd=tmp_path,
    )  # fmt: skip
    assert child.returncode == 0, child.stdout + child.stderr
    verdict = read_json(tmp_path / "verdict.json", VERDICT_SCHEMA)
    states = {gate["name"]: gate["state"] for gate in verdict["gates"]}
    for name in ("parity", "accuracy", "p50", "p99", "memory", "size"):
        assert states[name] == "passed", name
        assert name in child.stdout
    speed = verdict["figures"]["speed"]
    assert 0 < speed["latency"]["median_ms"] <= speed["latency"]["p99_ms"]
    assert speed["memory_peak_bytes"] > speed["memory_before_bytes"] > 10e6
    cases = ElementTree.parse(tmp_path / "verdict.xml").getroot().findall("testsuite/testcase")
    assert [case.get("name") for case in cases] == list(states)
    assert all(len(case) == 0 for case in cases)


def test_a_failed_gate_is_exit_code_4(artifact, tmp_path, capsys):
    change_weight(artifact / MODEL_FILE)
    report, junit = tmp_path / "out" / "v.json", tmp_path / "out" / "v.xml"
    code = main(["validate", str(artifact), *QUICK, "--report", str(report), "--junit", str(junit)])
    printed = capsys.readouterr()
    assert code == 4
    error, hint = printed.err.splitlines()
    assert error.startswith(f"error: {artifact / MODEL_FILE}: hashes: ")
    assert "; parity: at batch" in error
    assert hint.startswith("hint: ")
    assert "FAILED" in printed.out
    assert read_json(report, VERDICT_SCHEMA)["exit_code"] == 4
    suite = ElementTree.parse(junit).getroot().find("testsuite")
    assert suite.get("failures") == "2"


def test_a_machine_too_noisy_to_tell_is_exit_code_5(artifact, capsys, monkeypatch):
    def busy(*_arguments, **_options):
        raise UnreliableError("another profiler is measuring on this device")

    monkeypatch.setattr(validate_model, "measure_file", busy)
    assert main(["validate", str(artifact), "--max-latency", "5ms"]) == 5
    printed = capsys.readouterr()
    assert "p50: another profiler" in printed.err
    assert "too noisy to tell" in printed.out
    assert main(["validate", str(artifact), "--max-memory", "1MB"]) == 5
    assert "memory: another profiler" in capsys.readouterr().err
    # Nobody asked for a latency, so nothing is in doubt.
    assert main(["validate", str(artifact)]) == 0
    # What failed for certain counts more.
    (artifact / REFERENCE_FILE).unlink()
    assert main(["validate", str(artifact), "--max-latency", "5ms"]) == 4


@pytest.mark.usefixtures("own_lock")
@pytest.mark.parametrize(
    ("times", "code", "told", "asked"),
    [
        ([4.0], 0, "4.000 ms", 1),
        ([6.0, 4.5], 0, "4.500 ms", 2),
        ([6.0, 7.0, 4.8], 0, "4.800 ms", 3),
        ([6.0, 5.5, 7.0], 4, "5.500 ms", 3),
        # More memory than allowed is no noise.
        ([4.0], 4, "4.000 ms", 1),
    ],
)
def test_a_missed_latency_is_measured_again_and_the_best_counts(
    artifact, capsys, monkeypatch, times, code, told, asked
):
    real, made = validate_model.measure_file, []

    def measured(*arguments, **options):
        record = real(*arguments, **options)
        latency = replace(record.latency, median_ms=times[len(made)], scale=1.0)
        made.append(latency)
        return replace(record, latency=latency, grade="B")

    monkeypatch.setattr(validate_model, "measure_file", measured)
    memory = ["--max-memory", "1MB"] if code == 4 and asked == 1 else []
    model = str(artifact / MODEL_FILE)  # alone: nothing was promised of it
    (artifact / MANIFEST_FILE).unlink()
    limits = ["--max-latency", "5ms", "--max-seconds", "0.05", *memory]
    assert main(["validate", model, *limits]) == code
    assert told in capsys.readouterr().out
    assert len(made) == asked


@pytest.mark.usefixtures("own_lock")
def test_what_was_measured_counts_where_it_cannot_be_measured_again(artifact, capsys, monkeypatch):
    real, made = validate_model.measure_file, []

    def measured(*arguments, **options):
        if made:
            raise UnreliableError("another profiler is measuring on this device")
        made.append(real(*arguments, **options))
        return replace(made[0], grade="D")

    monkeypatch.setattr(validate_model, "measure_file", measured)
    limits = ["--max-latency", "1us", "--max-memory", "1MB", "--max-seconds", "0.05"]
    assert main(["validate", str(artifact / MODEL_FILE), *limits]) == 4
    assert "memory: " in capsys.readouterr().err


@pytest.mark.usefixtures("own_lock")
def test_a_measurement_that_keeps_all_limits_counts_more_than_a_faster_one(
    artifact, capsys, monkeypatch
):
    real, times = validate_model.measure_file, iter([(4.0, 9.0), (4.5, 7.0)])

    def measured(*arguments, **options):
        record, (median_ms, p99_ms) = real(*arguments, **options), next(times)
        latency = replace(record.latency, median_ms=median_ms, p99_ms=p99_ms, scale=1.0)
        return replace(record, latency=latency, grade="B")

    monkeypatch.setattr(validate_model, "measure_file", measured)
    (artifact / MANIFEST_FILE).unlink()
    limits = ["--max-latency", "5ms", "--max-p99", "8ms", "--max-seconds", "0.05"]
    assert main(["validate", str(artifact / MODEL_FILE), *limits]) == 0
    assert "4.500 ms" in capsys.readouterr().out


def test_json_is_the_only_output(artifact, capsys):
    assert main(["validate", str(artifact / MODEL_FILE), *QUICK, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "passed"
    assert document["file"].endswith(MODEL_FILE)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--max-latency", "25"], "has no unit"),
        (["--min-accuracy", "90"], "more than all"),
        (["--mean", "a,b"], "accepted: numbers such as"),
        (["--input-format", "nchw"], "float32-nchw"),
        (["--size", "28"], "--size would contradict it"),
        (["--min-accuracy", "0.9"], "add --data DIR"),
        (["--data", "nowhere/at/all"], "is not a folder"),
    ],
)
def test_requests_that_make_no_sense_are_exit_code_2(artifact, capsys, options, told):
    assert main(["validate", str(artifact), *QUICK, *options]) == 2
    printed = capsys.readouterr()
    assert told in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("content", "told"),
    [("", "--classes names no class"), ("crane\nmaillot\ncrane\n", "names twice: 'crane'")],
)
def test_class_names_tell_classes_apart(artifact, tmp_path, capsys, content, told):
    (tmp_path / "classes.txt").write_text(content)
    named = ["--classes", str(tmp_path / "classes.txt")]
    assert main(["validate", str(artifact), *QUICK, *named]) == 2
    assert told in capsys.readouterr().err


def test_a_byte_order_mark_is_no_part_of_a_class(tmp_path):
    (tmp_path / "classes.txt").write_text("cat\ndog\n", encoding="utf-8-sig")
    assert _lines(tmp_path / "classes.txt") == ["cat", "dog"]


def test_an_empty_folder_is_exit_code_2(tmp_path, capsys):
    assert main(["validate", str(tmp_path)]) == 2
    assert "holds no ONNX file" in capsys.readouterr().err


def test_data_sets_are_known_by_name(artifact, capsys):
    assert main(["validate", str(artifact), *QUICK, "--data", "digits"]) == 4
    error = capsys.readouterr().err
    assert "digits, test part has 10 classes, the model 4" in error
