"""`hwnas finetune` through the command line: results, resuming after a kill, mistakes."""

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.numpy import load_file

from hwnas.cli.main import hwnas, main
from hwnas.errors import UsageError
from hwnas.io import read_journal, write_json
from hwnas.pipeline import finetuning
from hwnas.pipeline.finetuning import default_folder, finetuning_recipe
from hwnas.pipeline.rundir import open_run, space_of
from hwnas.spaces import space
from hwnas.spaces.restrict import restricted
from hwnas.supernet import Supernet, load_subnet, read_card
from hwnas.testing.runs import imported_run, small_run


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its smallest subnet extracted."""
    folder = small_run(tmp_path_factory.mktemp("runs") / "run")
    assert main(["extract", "--run", str(folder), "--arch", "smallest", "--quiet"]) == 0
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def smallest(run: Path) -> Path:
    return run / "subnets" / space_of(open_run(run)).smallest().digest[:12]


def finetune(*arguments: str) -> dict:
    done = CliRunner().invoke(hwnas, ["finetune", *arguments, "--json", "--quiet"])
    if done.exception is not None:
        raise done.exception
    return json.loads(done.stdout)


def test_fine_tuning_goes_on_from_the_subnet(run: Path) -> None:
    base = read_card(smallest(run))
    told = finetune(str(smallest(run)), "--epochs", "3")
    folder = Path(told["subnet"])
    assert folder.name == f"{smallest(run).name}-finetuned"
    card = read_card(folder)
    assert card.digest == base.digest
    assert card.weights != base.weights
    assert card.training is not None
    assert card.training["how"] == "fine-tuned"
    assert card.training["base"] == base.weights
    assert (card.training["epochs"], card.training["steps"]) == (3, 30)
    assert base.accuracy is not None
    assert card.accuracy is not None
    assert card.training["accuracy_before"] == base.accuracy.value
    assert card.accuracy.value > base.accuracy.value + 0.05
    assert card.proof.equal_bits
    assert card.proof.part == "heldout"
    assert load_subnet(folder)(torch.randn(2, 1, 24, 24)).shape == (2, 10)
    assert not (folder / "training").exists()
    steps = [event for event in read_journal(folder / "events.jsonl") if event["kind"] == "step"]
    assert set(steps[0]["losses"]) == {"subnet"}


@pytest.mark.parametrize(("here", "typed"), [("", "a1b2"), ("a1b2", "."), ("a1b2/training", "..")])
def test_the_trained_subnet_goes_beside_the_one_that_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, typed: str
) -> None:
    (tmp_path / "a1b2" / "training").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / here)
    found = default_folder(Path(typed), from_scratch=True)
    assert found.resolve() == tmp_path / "a1b2-scratch"


def test_a_rate_of_almost_zero_leaves_the_subnet_as_it_was(run: Path) -> None:
    """The weights that training starts from are those of the subnet, and calibration repeats."""
    told = finetune(str(smallest(run)), "--set", "optimiser.lr=1e-30", "--epochs", "1")
    before = load_file(smallest(run) / "weights.safetensors")
    after = load_file(Path(told["subnet"]) / "weights.safetensors")
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert np.array_equal(array, after[name]), name


def test_from_scratch_starts_from_other_weights(run: Path) -> None:
    told = finetune(str(smallest(run)), "--from-scratch", "--set", "optimiser.lr=1e-30")
    folder = Path(told["subnet"])
    assert folder.name.endswith("-scratch")
    assert told["training"]["how"] == "from scratch"
    assert told["training"]["epochs"] == 1
    arch, of = space_of(open_run(run)).smallest(), space_of(open_run(run))
    fresh = Supernet(restricted(of, arch), seed=0).extract(arch)
    written = load_file(folder / "weights.safetensors")
    for name, parameter in fresh.named_parameters():
        assert np.allclose(parameter.detach().numpy(), written[name], atol=1e-6), name


def test_killed_and_resumed_equals_uninterrupted(run: Path) -> None:
    subnet = str(smallest(run))
    settings = ("--epochs", "6", "--set", "process.checkpoint_seconds=0.05",
                "--set", "optimiser.average_decay=0.9")  # fmt: skip
    whole = Path(finetune(subnet, *settings, "--out", str(run / "whole"))["subnet"])
    out = run / "killed"
    command = [sys.executable, "-m", "hwnas", "finetune", subnet, *settings, "--out", str(out)]
    moments = random.Random(time.time_ns())
    kills = 0
    for _attempt in range(20):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seen = _latest(out)
        while process.poll() is None and _latest(out) == seen:
            time.sleep(0.01)
        time.sleep(moments.uniform(0, 0.3))
        if process.poll() is not None or kills == 2:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        assert not (out / "card.json").exists(), "what is not finished has no card"
    assert process.wait(timeout=1800) == 0
    assert kills >= 1
    assert (out / "weights.safetensors").read_bytes() == (
        whole / "weights.safetensors"
    ).read_bytes()

    def told(folder: Path) -> list[dict]:
        events = read_journal(folder / "events.jsonl")
        return [event for event in events if event["kind"] != "speed"]

    assert told(out) == told(whole)
    assert not finetune(subnet, *settings, "--out", str(out))["is_new"]


def _latest(out: Path) -> str:
    pointer = out / "training" / "LATEST"
    return pointer.read_text() if pointer.exists() else ""


def test_an_interrupt_is_resumable(run: Path) -> None:
    command = [sys.executable, "-m", "hwnas", "finetune", str(smallest(run)), "--epochs", "500"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    out = Path(f"{smallest(run)}-finetuned")
    while not (out / "events.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=1800)
    assert process.returncode == 130
    assert "the same command goes on" in errors
    assert (out / "training" / "LATEST").exists()


def test_the_largest_of_the_supernet_teaches(run: Path) -> None:
    told = finetune("--run", str(run), "--arch", "smallest", "--teacher", "largest")
    largest = run / "subnets" / space_of(open_run(run)).largest().digest[:12]
    assert read_card(largest).proof.equal_bits
    assert told["training"]["teacher"] == [str(largest)]
    alone = finetune(str(smallest(run)), "--out", str(run / "alone"))
    assert alone["files"]["weights.safetensors"] != told["files"]["weights.safetensors"]


def test_a_model_of_timm_teaches(tmp_path: Path, run: Path) -> None:
    told = finetune(
        str(smallest(run)), "--teacher", "test_resnet", "--set", "losses.teacher.pretrained=false",
        "--set", "data.channels=1", "--out", str(tmp_path / "taught"),
    )  # fmt: skip
    assert told["training"]["teacher"] == ["test_resnet"]


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no subnet is named"),
        (("nowhere",), 2, "nowhere: is no subnet (it has no card.json)"),
        (("SUBNET", "--arch", "largest"), 2, "a subnet is named, and one of a run"),
        (("SUBNET", "--set", "optimiser.lrr=1"), 2, "unknown key optimiser.lrr"),
        (("SUBNET", "--teacher", "resnet_nonsense"), 2, "unknown teacher 'resnet_nonsense'"),
        (("SUBNET", "--out", "RUN"), 2, "is neither empty nor a training"),
        (("SUBNET", "--out", "SUBNET"), 2, "holds a subnet that was trained otherwise"),
        (("SUBNET", "--recipe", "CLASSES"), 2, "the networks have 10 classes, the data of the"),
        (("--run", "RUN", "--arch", "nonsense"), 2, "unknown architecture 'nonsense'"),
        (("--run", "RUN"), 1, "nothing has been searched yet"),
    ],
)
def test_mistakes_are_explained(run: Path, capsys, arguments, code: int, message: str) -> None:
    recipe = run.parent / "two.toml"
    recipe.write_text(f'[data]\npath = "{_two_classes(run.parent / "images")}"\nheldout = 4\n'
                      "image_size = 28\nchannels = 1\nworkers = 0\n"
                      "[optimiser]\nbatch_size = 4\n")  # fmt: skip
    places = {"SUBNET": str(smallest(run)), "RUN": str(run), "CLASSES": str(recipe)}
    got = main(["finetune", *(places.get(argument, argument) for argument in arguments)])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    assert message in errors
    assert got == code


def _two_classes(root: Path) -> Path:
    from PIL import Image

    for label in ("a", "b"):
        (root / label).mkdir(parents=True)
        for index in range(8):
            Image.new("L", (28, 28), 20 * index).save(root / label / f"{index}.png")
    return root


def test_another_training_in_the_same_place_is_refused(run: Path, capsys) -> None:
    command = ["finetune", str(smallest(run)), "--quiet"]
    assert main(command) == 0
    assert main([*command, "--epochs", "2"]) == 2
    assert "holds a subnet that was trained otherwise" in capsys.readouterr().err
    out = Path(f"{smallest(run)}-finetuned")
    (out / "card.json").unlink()  # as if it had been interrupted
    assert main([*command, "--epochs", "2"]) == 2
    assert "holds a training that differs in recipe" in capsys.readouterr().err


def test_a_training_that_was_killed_while_it_began_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / ".training.json.ab12cd34").write_text("{")
    finetuning._check_free(tmp_path, {"recipe": "a"})
    write_json(
        tmp_path / finetuning.TRAINING_FILE, finetuning.TRAINING_SCHEMA, {"recipe": "another"}
    )
    (tmp_path / ".config.toml.ab12cd34").write_text("")
    finetuning._check_free(tmp_path, {"recipe": "a"})
    (tmp_path / "state").mkdir()
    with pytest.raises(UsageError, match="holds a training that differs in recipe"):
        finetuning._check_free(tmp_path, {"recipe": "a"})


def test_a_subnet_of_imported_weights_needs_a_recipe(tmp_path: Path, capsys) -> None:
    run = imported_run(tmp_path / "imported")
    assert main(["finetune", "--run", str(run.folder), "--arch", "smallest"]) == 2
    assert "name a recipe with the data" in capsys.readouterr().err


def test_fine_tuning_is_gentler_than_training(trained: Path) -> None:
    gentle = finetuning_recipe(smallest(trained))
    scratch = finetuning_recipe(smallest(trained), from_scratch=True)
    assert gentle.optimiser.lr == pytest.approx(scratch.optimiser.lr / 5)
    assert gentle.schedule.warmup_epochs == 0 < scratch.schedule.warmup_epochs
    assert (
        finetuning_recipe(smallest(trained), assignments=["optimiser.lr=0.5"]).optimiser.lr == 0.5
    )


@pytest.mark.parametrize("name", ["nano", "nasvit", "nasvit-paper", "alphanet"])
def test_a_space_of_one_has_the_same_architecture_and_network(name: str) -> None:
    of = space(name, classes=3)
    for arch in of.sample(3, np.random.default_rng(1)):
        one = restricted(of, arch)
        assert one.count() == 1
        assert one.largest() == arch
        assert one.largest().digest == arch.digest
        assert one.network(arch) == of.network(arch)
        assert one.sample(2, np.random.default_rng(0)) == [arch, arch]


def test_the_gpu_that_was_asked_for_is_the_one_that_trains(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Seen(Exception):
        pass

    def prepare(*_: object, device: torch.device, **__: object) -> None:
        raise Seen(device)

    monkeypatch.setattr(finetuning, "device_of", lambda _: torch.device("cuda:1"))
    monkeypatch.setattr(finetuning, "prepare", prepare)
    recipe = finetuning_recipe(smallest(run))
    with pytest.raises(Seen, match="cuda:1"):
        finetuning.finetune(smallest(run), recipe, out=tmp_path / "out")
