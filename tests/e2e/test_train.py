"""Training through the command line: killed and resumed, wrong recipes, starting from weights."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from hwnas.io import lockfile, read_journal
from hwnas.pipeline.config import read_recipe, recipe_names, to_toml
from hwnas.pipeline.rundir import load_supernet, open_run

pytestmark = pytest.mark.slow

SMALL = [
    "--set", "data.name=digits", "--set", "data.heldout=100", "--set", "schedule.epochs=2",
    "--set", "optimiser.batch_size=128", "--set", "evaluation.calibration_images=256",
    "--set", "process.threads=1",
]  # fmt: skip


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "hwnas", "train", "nano-fashion", "--run", str(folder), *SMALL,
            *more]  # fmt: skip


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=1800)


def weights(folder: Path) -> dict[str, np.ndarray]:
    name = (folder / "supernet" / "LATEST").read_text().strip()
    state = load_file(folder / "training" / name)
    return {**load_file(folder / "supernet" / name), **{f"state.{k}": v for k, v in state.items()}}


def log(folder: Path) -> list[dict]:
    return [event for event in read_journal(folder / "events.jsonl") if event["kind"] != "speed"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    done = run(*command(folder, "--set", "optimiser.average_decay=0.9",
                        "--set", "process.tensorboard=true"))  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def test_tensorboard_gets_the_events(uninterrupted: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written = EventAccumulator(str(uninterrupted / "tensorboard"))
    written.Reload()
    steps = [event for event in log(uninterrupted) if event["kind"] == "step"]
    losses = written.Scalars("losses/smallest")
    assert [scalar.step for scalar in losses] == [event["step"] for event in steps]
    assert losses[-1].value == pytest.approx(steps[-1]["losses"]["smallest"])
    (accuracy,) = written.Scalars("accuracy/largest")
    assert 0 <= accuracy.value <= 1
    assert {"learning_rate", "conflict_ratio"} <= set(written.Tags()["scalars"])


def test_a_full_disk_is_a_clean_error_and_training_goes_on_afterwards(
    tmp_path: Path, uninterrupted: Path
) -> None:
    folder = tmp_path / "run"
    more = ("--set", "optimiser.average_decay=0.9", "--set", "process.checkpoint_seconds=0.01")
    process = subprocess.Popen(command(folder, *more), stderr=subprocess.DEVNULL)
    while not (folder / "training" / "LATEST").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = (folder / "training" / "LATEST").read_text()
    # Files may grow to 100 kB here: enough for the log, not for a checkpoint.
    limited = ("bash", "-c", 'ulimit -f 100; exec "$@"', "bash")
    done = run(*limited, *command(folder, *more))
    assert done.returncode == 1
    errors = [line for line in done.stderr.splitlines() if not line.startswith("epoch")]
    assert len(errors) == 2, done.stderr
    step = before.removeprefix("step-").removesuffix(".safetensors")
    assert "would become larger than files may be" in errors[0]
    assert f"the last good checkpoint is that of step {step}" in errors[0]
    assert "the same command goes on" in errors[1]
    assert (folder / "training" / "LATEST").read_text() == before
    assert not list((folder / "training").glob(".*"))
    done = run(*command(folder, *more))
    assert done.returncode == 0, done.stderr
    expected, got = weights(uninterrupted), weights(folder)
    assert all(np.array_equal(array, got[name]) for name, array in expected.items())
    assert log(folder) == log(uninterrupted)


def test_a_run_goes_on_when_recipes_have_got_new_keys(uninterrupted: Path, tmp_path: Path) -> None:
    """As a run of an earlier version: its digest of the recipe knew fewer keys."""
    folder = tmp_path / "copy"
    shutil.copytree(uninterrupted, folder)
    document = json.loads((folder / "run.json").read_text())
    document["origin"]["recipe"] = "0" * 64
    (folder / "run.json").write_text(json.dumps(document))
    config = (folder / "config.toml").read_text().replace("clip_value = 0.0\n", "")
    (folder / "config.toml").write_text(config)
    done = run(*command(folder, "--set", "optimiser.average_decay=0.9"))
    assert done.returncode == 0, done.stderr
    done = run(*command(folder, "--set", "optimiser.average_decay=0.9", "--init", "elsewhere"))
    assert done.returncode == 2
    assert "differs in where its weights come from: nowhere, not elsewhere" in done.stderr


def test_killed_and_resumed_equals_uninterrupted(tmp_path: Path, uninterrupted: Path) -> None:
    folder = tmp_path / "killed"
    more = ("--set", "optimiser.average_decay=0.9", "--set", "process.checkpoint_seconds=0.2")
    moments = random.Random(time.time_ns())
    kills = 0
    for _attempt in range(60):
        process = subprocess.Popen(
            command(folder, *more), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        # Let it get somewhere first, then kill it at a random moment.
        seen = len(list(folder.glob("training/step-*")))
        while process.poll() is None and len(list(folder.glob("training/step-*"))) == seen < 2:
            time.sleep(0.05)
        time.sleep(moments.uniform(0, 1.5))
        if process.poll() is not None or kills == 4:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert process.wait(timeout=1800) == 0
    assert kills >= 1
    expected, got = weights(uninterrupted), weights(folder)
    assert expected.keys() == got.keys()
    for name, array in expected.items():
        assert np.array_equal(array, got[name]), name
    assert log(folder) == log(uninterrupted)


def test_an_interrupt_keeps_the_state_and_says_how_to_go_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = subprocess.Popen(
        command(folder, "--set", "schedule.epochs=50"), stderr=subprocess.PIPE, text=True
    )
    while not (folder / "events.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert (folder / "training" / "LATEST").exists()


def test_the_run_holds_what_later_verbs_need(uninterrupted: Path) -> None:
    recipe = read_recipe(str(uninterrupted / "config.toml"))
    assert recipe.data.name == "digits"
    found = open_run(uninterrupted)
    assert found.status == "complete"
    supernet = load_supernet(found)
    assert supernet.space.options["classes"] == 10
    kinds = {event["kind"] for event in read_journal(uninterrupted / "events.jsonl")}
    assert kinds == {"step", "speed", "evaluation"}
    steps = [event for event in log(uninterrupted) if event["kind"] == "step"]
    assert any("conflict_ratio" in event for event in steps)
    assert {"largest", "smallest", "random"} == set(steps[0]["losses"])


def test_a_finished_run_is_not_trained_again(uninterrupted: Path) -> None:
    before = weights(uninterrupted)
    done = run(*command(uninterrupted, "--set", "optimiser.average_decay=0.9", "--json"))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["accuracy"].keys() >= {"smallest", "largest"}
    assert all(
        np.array_equal(before[name], array) for name, array in weights(uninterrupted).items()
    )


def test_another_recipe_in_the_same_folder_is_refused(uninterrupted: Path) -> None:
    done = run(*command(uninterrupted, "--set", "optimiser.lr=0.5"))
    assert done.returncode == 2
    assert "differs in optimiser." in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "optimiser.lrr=1"), "unknown key optimiser.lrr; did you mean lr"),
        (("--set", "optimiser.lr=-1"), "optimiser.lr is -1; accepted: greater than 0"),
        (("--set", "plan.kind=sandwhich"), "plan.kind is 'sandwhich'; accepted: 'sandwich'"),
        (("--set", "optimiser"), "accepted: section.key=value"),
        (("--set", "merge=sum"), "merge is 'sum'"),
        (("--set", "augmentation.name=strong"), "unknown augmentation 'strong'"),
        (("--set", "space.name=nasvitt"), "unknown space 'nasvitt'; did you mean nasvit"),
        (("--set", "data.name=digit"), "unknown data set 'digit'; did you mean digits"),
        (("--set", "process.device=gpu"), "process.device is 'gpu'"),
        (("--set", "process.device=meta"), "process.device is 'meta'; accepted: auto, cpu, cuda"),
        (("--set", "process.precision=fp16"), "--set process.precision=fp32"),
        (("--set", "optimiser.batch_size=100000"), "larger than the training part"),
        (("--init", "nowhere.pth"), "nowhere.pth: no such file"),
    ],
)
def test_mistakes_are_explained_in_one_line(tmp_path: Path, arguments, message: str) -> None:
    done = run(*command(tmp_path / "run", *arguments))
    assert done.returncode in (1, 2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()


def test_what_was_begun_with_a_mistake_is_begun_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    wrong = run(*command(folder, "--set", "optimiser.lr=1e30", "--set", "optimiser.clip_norm=1e30"))
    assert wrong.returncode == 1
    assert not (folder / "supernet" / "LATEST").exists()
    right = run(*command(folder, "--set", "schedule.epochs=0.4", "--quiet"))
    assert right.returncode == 0, right.stderr
    assert "lr = 0.005" in (folder / "config.toml").read_text()
    assert next(event["step"] for event in log(folder) if event["kind"] == "step") == 0


def test_a_second_training_in_the_same_folder_is_refused(
    tmp_path: Path, uninterrupted: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted, folder)
    with lockfile.held(folder / ".lock"):
        done = run(*command(folder, "--set", "optimiser.average_decay=0.9"))
    assert done.returncode == 1, done.stderr
    assert f"is being trained by another process ({os.getpid()})" in done.stderr
    assert read_journal(folder / "events.jsonl") == read_journal(uninterrupted / "events.jsonl")
    again = run(*command(folder, "--set", "optimiser.average_decay=0.9"))  # held by nobody
    assert again.returncode == 0, again.stderr
    assert not (folder / ".lock").exists()


def test_a_non_finite_loss_stops_with_step_and_checkpoint(tmp_path: Path) -> None:
    done = run(
        *command(
            tmp_path / "run", "--set", "optimiser.lr=1e30", "--set", "optimiser.clip_norm=1e30"
        )
    )
    assert done.returncode == 1
    assert "loss of the" in done.stderr
    assert "step " in done.stderr
    assert "checkpoint" in done.stderr or "no checkpoint is kept yet" in done.stderr


def test_starting_from_a_run_with_other_classes(tmp_path: Path, uninterrupted: Path) -> None:
    root = _folder_of_digits(tmp_path / "images", classes=3)
    folder = tmp_path / "adapted"
    done = run(
        sys.executable, "-m", "hwnas", "train", "nano-fashion", "--run", str(folder),
        "--init", str(uninterrupted), "--set", f"data.path={root}", "--set", 'data.name="digits"',
        *SMALL[4:],
    )  # fmt: skip
    assert done.returncode != 0  # digits with a path is no folder of images
    recipe = tmp_path / "own.toml"
    recipe.write_text(
        f'[data]\npath = "{root}"\nheldout = 6\nchannels = 1\nimage_size = 28\nworkers = 0\n'
        "[optimiser]\nbatch_size = 16\n[schedule]\nepochs = 1\n[evaluation]\nbatch_size = 16\n"
        "calibration_images = 32\n[process]\nthreads = 1\n"
    )
    done = run(
        sys.executable, "-m", "hwnas", "train", str(recipe), "--run", str(folder),
        "--init", str(uninterrupted),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the number of classes differs, so the classifier starts anew" in done.stderr
    assert "tensors carried over whole" in done.stderr
    assert load_supernet(open_run(folder)).space.options["classes"] == 3
    # The run knows where its weights came from, under any name of the same place.
    for more in ((), ("--init", str(uninterrupted / ".." / uninterrupted.name))):
        done = run(sys.executable, "-m", "hwnas", "train", "--run", str(folder), *more)
        assert done.returncode == 0, done.stderr
    weights_file = next((uninterrupted / "supernet").glob("step-*.safetensors"))
    again = run(sys.executable, "-m", "hwnas", "train", str(recipe), "--run", str(folder) + "-2",
                "--init", str(weights_file))  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert "tensors carried over whole" in again.stderr
    shutil.copy(weights_file, tmp_path / "alone.safetensors")
    refused = run(sys.executable, "-m", "hwnas", "train", str(recipe), "--run", str(folder) + "-3",
                  "--init", str(tmp_path / "alone.safetensors"))  # fmt: skip
    assert "accepted: a run folder" in refused.stderr


def _folder_of_digits(root: Path, *, classes: int) -> Path:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label in range(classes):
        folder = root / f"digit-{label}"
        folder.mkdir(parents=True)
        for index, image in enumerate(digits.images[digits.target == label][:20]):
            Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{index}.png")
    return root


@pytest.mark.parametrize("name", recipe_names())
def test_shipped_recipes_are_read_and_survive_being_written(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = read_recipe(name)
    path = Path("resolved.toml")
    path.write_text(to_toml(recipe, folder=path.parent))
    assert read_recipe(str(path)) == recipe


def test_init_writes_a_recipe_and_overwrites_nothing(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    init = [sys.executable, "-m", "hwnas", "init", "nano-fashion", "--out", str(path)]
    assert run(*init).returncode == 0
    assert read_recipe(str(path)).space.name == "nano"
    done = run(*init)
    assert done.returncode == 2
    assert "exists" in done.stderr
    misplaced = run(sys.executable, "-m", "hwnas", "init", str(path))
    assert misplaced.returncode == 2
    assert "--out" in misplaced.stderr
    listed = run(sys.executable, "-m", "hwnas", "init", "--list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == recipe_names()
    assert all(len(line.split()) > 3 for line in listed)


def test_process_settings_are_recorded_nowhere_that_binds(uninterrupted: Path) -> None:
    """Threads and checkpoint interval may change between sessions of a run."""
    done = run(
        *command(uninterrupted, "--set", "optimiser.average_decay=0.9",
                 "--set", "process.checkpoint_seconds=7"),
        "--quiet",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert os.path.getsize(uninterrupted / "config.toml") > 500
