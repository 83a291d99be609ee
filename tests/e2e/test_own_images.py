"""A folder of one's own images: the shipped recipe for it, and the mistakes one makes first."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.pipeline.config import read_recipe

HWNAS = (sys.executable, "-m", "hwnas")


def images(root: Path, *, classes: int = 2, each: int = 20) -> Path:
    """Write digits as PNG files, a folder per class."""
    digits = load_digits()
    for label in range(classes):
        folder = root / f"digit {label}"
        folder.mkdir(parents=True)
        for index, image in enumerate(digits.images[digits.target == label][:each]):
            Image.fromarray((image * 15).astype(np.uint8)).save(folder / f"{index}.png")
    return root


def planned(here: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = (*HWNAS, "run", "own-images", "--run", "x", "--dry-run", "--json", "--quiet")
    return subprocess.run(
        (*command, *options), cwd=here, capture_output=True, text=True, check=False
    )


def test_a_given_folder_takes_the_place_of_the_recipes_data() -> None:
    assert read_recipe("nano-fashion", ["data.path=images"]).data.name is None
    both = read_recipe("nano-fashion", ["data.path=idx", "data.name=fashion-mnist"]).data
    assert (both.name, str(both.path)) == ("fashion-mnist", "idx")


def test_from_a_folder_to_a_plan_with_one_command(tmp_path: Path) -> None:
    images(tmp_path / "my images")
    done = planned(tmp_path, "--set", "data.path=my images", "--set", "optimiser.batch_size=8")
    assert (done.returncode, done.stderr) == (0, "")
    plan = json.loads(done.stdout)
    assert plan["stages"][0]["commands"] == [
        ["hwnas", "train", "own-images", "--run", "x", "--set", "data.path=my images",
         "--set", "optimiser.batch_size=8"]
    ]  # fmt: skip
    assert not (tmp_path / "x").exists()


def test_more_held_out_than_there_is(tmp_path: Path) -> None:
    images(tmp_path / "images")
    done = planned(tmp_path, "--set", "data.heldout=8000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "data.heldout = 8000 takes 8000 of 40 images" in done.stderr
    assert "data.heldout=0.2" in done.stderr


def test_two_processes_that_read_files_come_to_an_end(tmp_path: Path) -> None:
    images(tmp_path / "images")
    small = ("evaluation.random_subnets=0", "schedule.epochs=1", "schedule.warmup_epochs=0",
             "optimiser.batch_size=8", "data.workers=2")  # fmt: skip
    sets = [part for value in small for part in ("--set", value)]
    for command in (
        ("train", "own-images", "--run", "run", *sets),
        ("fit", "--run", "run", "-n", "10", "--workers", "2", "--quick"),
    ):
        done = subprocess.run(
            (*HWNAS, *command), cwd=tmp_path, capture_output=True, text=True, check=False,
            timeout=240,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "terminate called" not in done.stderr
