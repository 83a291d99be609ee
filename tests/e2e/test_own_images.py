"""A folder of one's own images: the shipped recipe for it, and the mistakes one makes first."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.errors import UsageError
from hwnas.export.validate_accuracy import open_examples
from hwnas.pipeline.config import read_recipe, to_toml
from hwnas.pipeline.deploying import stages_of
from hwnas.pipeline.origins import origin_in
from hwnas.pipeline.rundir import create_run, open_run, save_supernet
from hwnas.profiling.locks import device_lock
from hwnas.spaces import space
from hwnas.supernet import Supernet

pytestmark = pytest.mark.slow

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


def test_a_recipe_names_its_data_from_where_it_lies(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "project" / "images").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    recipe = tmp_path / "project" / "my.toml"
    recipe.write_text('[data]\npath = "images"\n')
    monkeypatch.chdir(tmp_path)
    assert str(read_recipe("project/my.toml").data.path) == "project/images"
    assert str(read_recipe("project/my.toml", ["data.path=other"]).data.path) == "other"
    monkeypatch.chdir(tmp_path / "project")
    assert str(read_recipe("my.toml").data.path) == "images"
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert str(read_recipe("../project/my.toml").data.path) == "../project/images"
    # Recipes were once read as if they lay where one is; what is only there is still found.
    recipe.write_text('[data]\npath = "pictures"\n')
    assert str(read_recipe("../project/my.toml").data.path) == "../project/pictures"
    (tmp_path / "elsewhere" / "pictures").mkdir()
    assert str(read_recipe("../project/my.toml").data.path) == "pictures"


def test_a_run_finds_its_images_from_any_folder(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "images").mkdir()
    run = Path("runs/a")
    run.mkdir(parents=True)
    recipe = read_recipe("own-images", ["data.path=images"])
    (run / "config.toml").write_text(to_toml(recipe, folder=run))
    assert 'path = "../../images"' in (run / "config.toml").read_text()
    assert read_recipe("runs/a/config.toml") == recipe
    monkeypatch.chdir(tmp_path / "runs")
    assert str(read_recipe("a/config.toml").data.path) == "../images"
    (tmp_path / "images" / "test").mkdir()
    images(tmp_path / "images" / "test")
    images(tmp_path / "images" / "train")
    assert len(open_examples("a", channels="RGB").labels) == 40
    moved = tmp_path.rename(tmp_path.with_name("moved"))
    monkeypatch.chdir(moved)
    assert read_recipe("runs/a/config.toml") == recipe
    (moved / "link").symlink_to(moved / "runs" / "a")
    linked = to_toml(recipe, folder=Path("link"))  # `..` of it would be elsewhere
    assert f'path = "{moved / "images"}"' in linked


def test_another_run_is_told_before_anything_is_timed(tmp_path: Path) -> None:
    images(tmp_path / "images")
    run = tmp_path / "x"
    of = space("nano", classes=2, channels=3)
    recipe = read_recipe("own-images", [f"data.path={tmp_path / 'images'}"])
    create_run(run, of=of, origin=origin_in(run, recipe))
    (run / "config.toml").write_text(to_toml(recipe, folder=run))
    save_supernet(open_run(run), Supernet(of), step=0)
    assert origin_in(run, recipe) == open_run(run).origin
    done = planned(tmp_path, "--set", "schedule.epochs=3")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds a run that differs in schedule.epochs" in done.stderr
    assert "timing" not in done.stderr
    assert planned(tmp_path).returncode == 0  # "images" is the same place


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


def test_a_training_of_few_steps_is_timed_while_another_profiler_measures(tmp_path: Path) -> None:
    images(tmp_path / "images")
    short = ("--set", "schedule.epochs=1", "--set", "schedule.warmup_epochs=0")
    with device_lock():
        done = planned(tmp_path, "--set", "data.heldout=8", *short)  # a single step
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["stages"][0]["seconds"] > 0


def bindings(root: Path, *given: str) -> dict[str, str]:
    recipe = read_recipe("own-images", [f"data.path={root}", *given])
    return {s.name: s.binding for s in stages_of(recipe, "own-images", root.parent / "run")}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in after if after[name] != before[name]}


def test_other_images_bind_the_stages_that_read_them(tmp_path: Path) -> None:
    images(tmp_path / "images" / "train")
    test = images(tmp_path / "images" / "test")
    begun = bindings(tmp_path / "images")
    (tmp_path / "images" / "train" / ".cache").mkdir()
    assert bindings(tmp_path / "images", "data.workers=1") == begun
    (test / "digit 0" / "0.png").write_bytes((test / "digit 1" / "1.png").read_bytes() + b"more")
    tested = bindings(tmp_path / "images")
    assert changed(begun, tested) == {"validate"}
    assert changed(begun, bindings(tmp_path / "images", "deploy.min_accuracy=0.5")) == {"validate"}
    train = tmp_path / "images" / "train"
    (train / "digit 0" / "3.png").rename(train / "digit 1" / "new.png")
    assert changed(tested, bindings(tmp_path / "images")) == {"train"}


def test_a_single_folder_is_trained_and_tested_on(tmp_path: Path) -> None:
    folder = images(tmp_path / "images")
    begun = bindings(folder, "data.test=0.2")
    (folder / "digit 0" / "0.png").unlink()
    assert changed(begun, bindings(folder, "data.test=0.2")) == {"train", "validate"}


def test_a_class_folder_without_images_may_be_none(tmp_path: Path) -> None:
    folder = images(tmp_path / "images")
    (folder / "__MACOSX").mkdir()  # every archive made there has it
    assert planned(tmp_path).returncode == 0
    (folder / "notes").mkdir()
    done = planned(tmp_path)
    assert done.returncode == 2
    assert "class 'notes' has no image" in done.stderr
    assert "hint: remove the folder if it is no class" in done.stderr


def test_what_would_fail_at_the_end_is_told_before_the_training_and_once(tmp_path: Path) -> None:
    images(tmp_path / "images")
    command = (*HWNAS, "run", "own-images", "--run", "x", "--set", "data.heldout=8")
    wanted = ("--set", "deploy.landmarks=resnet99")
    done = subprocess.run((*command, *wanted), cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "unknown network 'resnet99'; did you mean" in done.stderr
    assert done.stderr.count("error:") == 1
    assert not (tmp_path / "x").exists()


def test_more_held_out_than_there_is(tmp_path: Path) -> None:
    images(tmp_path / "images")
    done = planned(tmp_path, "--set", "data.heldout=8000")
    assert (done.returncode, done.stdout) == (2, "")
    assert "data.heldout = 8000 takes 8000 of 40 images" in done.stderr
    assert "data.heldout=0.2" in done.stderr


@pytest.mark.parametrize(
    ("given", "said", "hint"),
    [
        ("deploy.latency=5", "'5' has no unit", "25ms"),
        ("data.mean=0.5", "data.mean is 0.5; accepted: a list", ""),
        ("deploy.latency=5ms,fast", "'fast' is not a duration", ""),
        ("deploy.min_accuracy=90", "a share is 90", ""),
        ("deploy.precisions=fp8", "'fp8'; did you mean", ""),
        ("deploy.backends=tensorflow", "unknown backend 'tensorflow'", ""),
        ("deploy.min_accuracy=90%", "no images to test on", "data.test=0.1"),
    ],
)
def test_what_would_fail_after_the_training_is_refused_before_it(
    tmp_path: Path, given: str, said: str, hint: str
) -> None:
    recipe = ["own-images", [f"data.path={images(tmp_path / 'images')}", given]]
    with pytest.raises(UsageError) as caught:
        stages_of(read_recipe(*recipe), "own-images", tmp_path / "run")
    assert said in caught.value.message
    assert hint in caught.value.hint


def test_lists_may_be_typed_with_commas() -> None:
    found = read_recipe(
        "own-images",
        ["deploy.latency=5ms,60%", "deploy.threads=2", "deploy.precisions=fp32,int8_dynamic",
         "deploy.min_accuracy=90%"],
    ).deploy  # fmt: skip
    assert (found.latency, found.threads) == (("5ms", "60%"), (2,))
    assert (found.precisions, found.min_accuracy) == (("fp32", "int8_dynamic"), 0.9)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder") as caught:
        read_recipe(str(images(tmp_path / "images")))
    assert "hwnas run own-images --set data.path=" in caught.value.hint


def test_the_final_test_takes_images_that_the_search_did_not(tmp_path: Path) -> None:
    def tested_on(*given: str) -> str | None:
        recipe = read_recipe("own-images", [f"data.path={tmp_path}", *given])
        stages = {s.name: s for s in stages_of(recipe, "own-images", tmp_path / "run")}
        (command,) = stages["validate"].resolved()
        return command[command.index("--data") + 1] if "--data" in command else None

    images(tmp_path / "train")
    assert tested_on() is None
    assert tested_on("data.test=0.1") == str(tmp_path / "run")
    images(tmp_path / "val")
    assert tested_on() == str(tmp_path / "val")
    images(tmp_path / "test")
    assert tested_on() == str(tmp_path / "test")


def test_a_run_knows_the_images_that_it_kept_for_the_final_test(tmp_path: Path) -> None:
    folder = images(tmp_path / "images")
    for share, kept in ("0.2", 8), (None, 0):
        given = [f"data.path={folder}", *([f"data.test={share}"] if share else [])]
        (tmp_path / "config.toml").write_text(to_toml(read_recipe("own-images", given)))
        if kept:
            found = open_examples(tmp_path, channels="RGB")
            assert (len(found.labels), len(found.classes)) == (kept, 2)
        else:
            with pytest.raises(UsageError, match="nothing of .* is kept for the final test"):
                open_examples(tmp_path, channels="RGB")


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
            timeout=1800,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert "terminate called" not in done.stderr
