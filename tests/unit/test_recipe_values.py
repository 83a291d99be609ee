"""Values of recipes that have no meaning are refused when a recipe is read."""

import json
import os
from pathlib import Path

import pytest
import torch

from hwnas.errors import FormatError, UsageError
from hwnas.pipeline.config import read_recipe, to_toml
from hwnas.supernet import Supernet
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks
from hwnas.training.prepare import prepare, schedule, space_for

COMPLEXITY = "plan.kind=complexity"


@pytest.mark.parametrize(
    ("assignments", "message"),
    [
        (["optimiser.lr=inf"], "optimiser.lr is inf; accepted: a finite number"),
        (["optimiser.lr=nan"], "optimiser.lr is nan; accepted: "),
        (["losses.alpha_min=nan"], "losses.alpha_min is nan; accepted: a finite number"),
        (["augmentation.mixup=inf"], "augmentation.mixup is inf"),
        (["data.heldout=inf"], "data.heldout is inf"),
        (["optimiser.betas=[0.9, 1.0]"], "optimiser.betas.1 is 1.0; accepted: less than 1"),
        (["process.seed=99999999999999999999"], "process.seed is 9+; accepted: less than"),
        (["process.threads=100000"], "process.threads is 100000; accepted: less than"),
        (["data.mean=[123.7, 116.3, 103.5]"], "data.mean.0 is 123.7; accepted: less than"),
        (["space.options.classes=7"], "space.options.classes is 7; it follows from the data"),
        (["optimiser.lr=true"], "optimiser.lr is true; accepted: a number"),
        (["optimiser.batch_size=true"], "optimiser.batch_size is true; accepted: a number"),
        (["data.heldout=false"], "data.heldout is false; accepted: a number"),
        (["data.channels=true"], "data.channels is true; accepted: a number"),
        (["optimiser.betas=[true, 0.9]"], "accepted: numbers"),
        (["process.tensorboard=1"], "process.tensorboard is 1; accepted: true or false"),
        (["data.verify=yes"], "data.verify is 'yes'; accepted: true or false"),
        (["data.path="], "data.path is ''; accepted: a folder"),
        (["optimiser=3"], "optimiser is 3; accepted: a section, of which --set optimiser.KEY"),
        ([COMPLEXITY, "plan.levels=[3e6, 2e6]", "plan.smallest_up_to=[4e6]"], "in rising order"),
        ([COMPLEXITY, "plan.levels=[2e6, 3e6]", "plan.smallest_up_to=[1e6]"],
         "ends at 1e[+]06 MACs, plan.levels at 3e[+]06"),
        ([COMPLEXITY, "plan.levels=[2e6]"], "are given together or not at all"),
    ],
)  # fmt: skip
def test_it_is_refused(assignments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_recipe("nano-digits", assignments)


def test_a_recipe_may_begin_with_the_mark_of_windows(tmp_path) -> None:
    path = tmp_path / "r.toml"
    path.write_text("\ufeff" + '[data]\nname = "digits"\n', encoding="utf-8")
    assert read_recipe(str(path)).data.name == "digits"
    path.write_bytes(b'# caf\xe9\n[data]\nname = "digits"\n')
    with pytest.raises(FormatError, match="byte 5 is not UTF-8") as raised:
        read_recipe(str(path))
    assert "iconv" in raised.value.hint


def test_a_shipped_recipe_is_found_beside_what_has_its_name(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("nano-fashion").mkdir()  # such as the folder of --run nano-fashion
    assert read_recipe("nano-fashion").data.name == "fashion-mnist"
    Path("nano-digits").write_text('[data]\npath = "mine"\n')
    assert read_recipe("nano-digits").data.name == "digits"
    assert str(read_recipe("./nano-digits").data.path) == "mine"


def test_any_path_survives_being_written(tmp_path) -> None:
    folder = tmp_path / 'tab\there "quoted" back\\slash\nnext \x7f \x01 \u00e9'
    path = tmp_path / "resolved.toml"
    recipe = read_recipe("nano-digits", ["data.name=torch/cifar10"])
    data = recipe.data.model_copy(update={"path": folder})
    path.write_text(to_toml(recipe.model_copy(update={"data": data})))
    assert os.fspath(read_recipe(str(path)).data.path) == os.fspath(folder)


@pytest.mark.parametrize(("given", "kept"), [("2", "2"), ("2.0", "2"), ("0.4", "0.4")])
def test_whole_epochs_are_written_as_such(given: str, kept: str) -> None:
    recipe = read_recipe("nano-fashion", [f"schedule.epochs={given}", "schedule.warmup_epochs=0"])
    assert f"\nepochs = {kept}\n" in to_toml(recipe)
    assert json.dumps(recipe.model_dump(mode="json")["schedule"]["epochs"]) == kept


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_labels_are_smoothed_by_one_setting_whether_they_are_mixed_or_not(smoothing: float) -> None:
    wanted = ("data.name=digits", "augmentation.mixup=0.5", f"losses.label_smoothing={smoothing}")
    recipe = read_recipe("nano-digits", wanted)
    data = load_data(recipe.data)
    supernet = Supernet(space_for(recipe, data))
    training = prepare(recipe, data, supernet, device=torch.device("cpu"), ranks=Ranks())
    images, labels = next(training.batches.batches(0))
    _, targets = training.mix(images, labels, epoch=0, batch=0)
    assert float(targets.min()) == pytest.approx(smoothing / 10)


def test_recipes_of_runs_with_the_former_smoothing_of_mixing_are_read(tmp_path: Path) -> None:
    former = "[augmentation]\nlabel_smoothing = 0.1\n"
    mixes = 'name = "deit"\n'
    file = tmp_path / "config.toml"
    recipes = {}
    for losses in ("0.0", "0.1"):
        for augmentation in (former, former + mixes):
            file.write_text(
                f'[data]\nname = "digits"\n[losses]\nlabel_smoothing = {losses}\n{augmentation}'
            )
            if losses == "0.0" and augmentation != former:
                with pytest.raises(UsageError, match=r"smoothing is 0.1 and losses.*0.0") as caught:
                    read_recipe(str(file))
                assert caught.value.hint.startswith("write label_smoothing = 0.1 in [losses]")
            else:
                recipes[losses, augmentation] = read_recipe(str(file))
    assert recipes["0.0", former].losses.label_smoothing == 0.0
    assert recipes["0.1", former + mixes].augmentation.mixes
    assert "label_smoothing" not in to_toml(recipes["0.1", former]).partition("[augmentation]")[2]


@pytest.mark.parametrize(("name", "decay"), [("deit-style", 0.05), ("levit-style", 0.025)])
def test_recipes_for_table_3_have_the_rates_of_their_sources(name: str, decay: float) -> None:
    """Theirs scale the highest rate with the batch, but neither the first nor the last."""
    recipe, ours = read_recipe(name), read_recipe("nasvit")
    rate = schedule(recipe, 10)
    assert rate.peak == pytest.approx(5e-4 * 1024 / 512)
    assert (rate.start, rate.floor) == (pytest.approx(1e-6), pytest.approx(1e-5))
    augmentation = recipe.augmentation
    assert (augmentation.mixup, augmentation.cutmix, augmentation.erasing) == (0.8, 1.0, 0.25)
    assert recipe.losses.label_smoothing == 0.1
    assert recipe.regularisation.drop_path == 0.1
    assert recipe.optimiser.weight_decay == decay
    assert recipe.schedule.epochs == ours.schedule.epochs
    assert recipe.optimiser.clip_norm == ours.optimiser.clip_norm
    assert (recipe.space, recipe.plan) == (ours.space, ours.plan)
