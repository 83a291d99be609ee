"""`hwnas landmarks`: other networks are trained, exported and measured as a run's subnets are."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path

import pytest

from hwnas.cli.main import main
from hwnas.errors import FormatError, UsageError
from hwnas.io import Journal, read_journal
from hwnas.pipeline import landmark_measuring
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.deploying import stages_of
from hwnas.pipeline.deployments import Deployment
from hwnas.pipeline.fronts import latest_front, write_front
from hwnas.pipeline.landmark_measuring import way_here
from hwnas.pipeline.landmarks import Landmark, add_landmark, landmarks_path, read_landmarks
from hwnas.pipeline.rundir import open_run
from hwnas.pipeline.stages import Stage
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Settings
from hwnas.report.gather import gather
from hwnas.report.page import page
from hwnas.testing.finished_runs import DEVICE, made_up_run
from hwnas.testing.runs import imported_run, small_run

NETWORK, OTHER = "test_resnet", "mobilenetv3_small_050"

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_lock")]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def landmarks(capsys, run: Path, *words: str) -> dict:
    assert main(["landmarks", *words, "--run", str(run), "--force", "--json", "--quiet"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, code: int, *words: object) -> str:
    assert main(["landmarks", *map(str, words), "--quiet"]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def folder_of(run: Path, network: str) -> Path:
    (found,) = (run / "landmarks").glob(f"{network}-*")
    return found


def test_networks_are_trained_measured_and_done_once(run: Path, capsys) -> None:
    told = landmarks(capsys, run, NETWORK, OTHER, NETWORK)
    assert [one["network"] for one in told["landmarks"]] == [NETWORK, OTHER]
    profile = read_profile(run / "landmarks" / "measured.jsonl")
    for one in told["landmarks"]:
        folder = folder_of(run, one["network"])
        assert 0.05 < one["accuracy"] <= 1.0
        assert one["latency_ms"] > 0.01
        assert one["size_bytes"] == (folder / "model-b1-fp32.onnx").stat().st_size
        assert (one["precision"], one["device"]) == ("fp32", profile.header.device.name)
        document = json.loads((folder / "landmark.json").read_text())
        assert document["accuracy"] == one["accuracy"]
        # As many images as the supernet saw, and the same held-out part.
        assert (document["training"]["steps"], document["training"]["images"]) == (10, 1280)
        assert document["training"]["heldout"] == 100
        assert not (folder / "training").exists()
    files = [path for path in run.rglob("*") if path.is_file() and "landmarks" in str(path)]
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}
    assert landmarks(capsys, run, NETWORK, OTHER) == told or any(
        one["grade"] == "D"
        for one in told["landmarks"]  # what a busy machine spoiled is repeated
    )
    weights = [path for path in files if path.suffix in (".safetensors", ".onnx")]
    assert len(weights) == 4
    assert all(before[path][0] == path.stat().st_mtime_ns for path in weights)


@pytest.mark.usefixtures("modelled_latencies")
def test_another_recipe_is_another_training_and_the_last_result_counts(run: Path, capsys) -> None:
    first = landmarks(capsys, run, NETWORK)["landmarks"][0]
    second = landmarks(capsys, run, NETWORK, "--set", "optimiser.lr=1e-30")["landmarks"][0]
    assert second["accuracy"] < first["accuracy"]
    found = read_landmarks(landmarks_path(open_run(run)))
    assert [one.accuracy for one in found] == [second["accuracy"]]
    assert len(list((run / "landmarks").glob(f"{NETWORK}-*"))) == 2


def test_a_training_that_was_killed_goes_on_to_the_same_weights(
    run: Path, tmp_path: Path, capsys
) -> None:
    often = ("--set", "process.checkpoint_seconds=0.001", "--set", "schedule.epochs=3")
    straight = tmp_path / "straight"
    shutil.copytree(run, straight)
    expected = landmarks(capsys, straight, NETWORK, *often)["landmarks"][0]
    command = [sys.executable, "-m", "hwnas", "landmarks", NETWORK, "--run", str(run), "--force"]
    child = subprocess.Popen(
        [*command, *often], stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    deadline = time.monotonic() + 240
    while not list(run.glob("landmarks/*/training/LATEST")) and time.monotonic() < deadline:
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.communicate()
    folder = folder_of(run, NETWORK)
    assert not (folder / "landmark.json").exists()
    assert not landmarks_path(open_run(run)).exists()
    told = landmarks(capsys, run, NETWORK, *often)["landmarks"][0]
    assert told["accuracy"] == expected["accuracy"]
    weights = "weights.safetensors"
    assert (folder / weights).read_bytes() == (folder_of(straight, NETWORK) / weights).read_bytes()
    steps = [event["step"] for event in read_journal(folder / "events.jsonl")
             if event["kind"] == "step"]  # fmt: skip
    assert steps == [0, 10, 20]


@pytest.mark.usefixtures("busy_machine")
def test_a_busy_machine_keeps_what_was_trained(run: Path, capsys) -> None:
    words = [NETWORK, "--run", run]
    error = refused(capsys, 5, *words)
    assert "cannot be measured now" in error
    assert "--force" in error
    assert (folder_of(run, NETWORK) / "landmark.json").is_file()
    assert landmarks(capsys, run, NETWORK)["landmarks"][0]["grade"] in ("C", "D")


def test_without_names_a_dry_run_shows_what_would_be_trained(run: Path, capsys) -> None:
    assert main(["landmarks", "--run", str(run), "--dry-run", "--json", "--quiet"]) == 0
    networks = json.loads(capsys.readouterr().out)["networks"]
    assert len(networks) == 5
    assert all(one["params"] > 0 for one in networks)
    assert not (run / "landmarks").exists()


def test_mistakes_are_told(run: Path, tmp_path: Path, capsys) -> None:
    assert "unknown network" in refused(capsys, 2, "resnet10tt", "--run", run)
    assert "does not take 1 channels" in refused(capsys, 2, "convnext_atto", "--run", run)
    assert "optimiser" in refused(capsys, 2, NETWORK, "--run", run, "--set", "optimiser.rate=1")
    assert "not a run folder" in refused(capsys, 2, NETWORK, "--run", tmp_path)
    assert not (run / "landmarks").exists()
    imported = imported_run(tmp_path / "imported")
    assert "--recipe my.toml" in refused(capsys, 2, NETWORK, "--run", imported.folder)
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"classes": 10', '"classes": 7'))
    assert "have 7 classes, the data of the recipe (digits) 10" in refused(
        capsys, 2, NETWORK, "--run", run
    )


def test_the_way_to_run_is_that_of_the_recommended_subnets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_up_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is none that the run's latencies are of: Toy board"):
        way_here(run)

    def way(fingerprint: str, threads: int) -> Deployment:
        return Deployment(
            device=DEVICE, fingerprint=fingerprint, backend="onnxruntime",
            settings=Settings(threads=threads), predictors={},
        )  # fmt: skip

    here = landmark_measuring.this_device().fingerprint
    ways = [way("other", 1), way(here, 2), way(here, 1)]
    monkeypatch.setattr(landmark_measuring, "deployments", lambda _: ways)
    assert way_here(run).settings.threads == 1
    front = latest_front(run)
    settings = {"backend": "onnxruntime", "precision": "fp32", "threads": 2, "batch": 1}
    choices = tuple(replace(choice, settings=settings) for choice in front.choices)
    write_front(run, replace(front, choices=choices))
    assert way_here(run).settings.threads == 2
    monkeypatch.setattr(landmark_measuring, "deployments", lambda _: [])
    assert way_here(run).settings == Settings()


def test_the_journal_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    landmarks_path(run).unlink()
    settings = {"backend": "onnxruntime", "threads": 1, "batch": 1, "precision": "fp32"}
    first = Landmark(
        name="resnet10t", kind="timm", accuracy=0.9, latency=1.5, macs=2e7, params=5e6, size=2e7,
        device=DEVICE, settings=settings, precision="fp32", grade="A", training={"epochs": 2},
    )  # fmt: skip
    better = replace(first, accuracy=0.95)
    elsewhere = replace(first, device="Other board")
    for landmark in (first, elsewhere, better):
        add_landmark(run, landmark)
    assert read_landmarks(landmarks_path(run)) == (elsewhere, better)
    assert read_journal(landmarks_path(run))[0] == {"schema": "hwnas/landmarks", "version": 1}
    with Journal(landmarks_path(run)) as journal:
        journal.append({"name": "x", "accuracy": -0.1, "latency": 1})
    with pytest.raises(FormatError, match="line 5: not a landmark"):
        read_landmarks(landmarks_path(run))


def test_the_report_shows_what_is_comparable(tmp_path: Path) -> None:
    run = made_up_run(tmp_path / "run")
    landmarks_path(run).unlink()
    front = latest_front(run)
    settings = dict(front.choices[0].settings or {})
    middle = front.choices[len(front.choices) // 2].predicted
    near = Landmark(
        name="near", kind="timm", accuracy=middle["accuracy"].mean - 0.01,
        latency=middle["latency"].mean, device=DEVICE, settings=settings, macs=3e6, params=1e6,
    )  # fmt: skip
    shown = [
        near,
        replace(near, name="far_below", accuracy=0.2),
        replace(near, name="far_right", latency=100 * near.latency, accuracy=0.999),
        replace(near, name="named:depth=4"),
    ]
    hidden = [
        replace(near, name="two_threads", settings={**settings, "threads": 2}),
        replace(near, name="elsewhere", device="Other board"),
    ]
    devices = {"devices": {DEVICE: [settings]}}
    write_front(run, replace(front, provenance={**front.provenance, **devices}))
    for landmark in (*shown, *hidden):
        add_landmark(run, landmark)
    html = page(gather(run.folder))
    for landmark in shown:
        assert f'<th scope="row">{landmark.name}</th>' in html
    assert not any(landmark.name in html for landmark in hidden)
    drawn = html.count('class="landmark"')
    assert drawn == 2 * 2 + 1  # two networks, on wide and narrow pages, and the legend
    assert "Squares are 2 of 4 other networks" in html
    assert (
        "far_right is more accurate than every subnet that is as fast, the others are not" in html
    )
    assert "named…" in html


def _reads(stage: Stage, path: str) -> bool:
    return any(fnmatch(path, pattern) for pattern in stage.reads)


def test_a_recipe_can_make_it_a_stage(tmp_path: Path) -> None:
    def stages(*assignments: str) -> dict:
        recipe = read_recipe("nano-fashion", assignments)
        return {stage.name: stage for stage in stages_of(recipe, "x.toml", tmp_path, force=True)}

    assert "landmarks" not in stages()
    chosen = stages("deploy.landmarks=auto")
    assert stages('deploy.landmarks=["auto"]')["landmarks"] == chosen["landmarks"]
    assert list(chosen)[-2:] == ["landmarks", "report"]
    run = ("--run", str(tmp_path), "--force")
    assert chosen["landmarks"].commands == (("landmarks", *run),)
    # Another network beside the front is no reason to export again, only to report.
    readers = [name for name, stage in chosen.items() if _reads(stage, "search/landmarks.jsonl")]
    assert readers == ["report"]
    named = stages('deploy.landmarks=["resnet10t", "test_resnet"]')["landmarks"]
    assert named.commands == (("landmarks", "resnet10t", "test_resnet", *run),)
