"""Run folders: begun once, completed, opened; weights saved and loaded whole or not at all."""

import json
import os
from pathlib import Path

import pytest
import torch

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import read_tensors, write_tensors
from hwnas.pipeline.rundir import (
    Run,
    complete_run,
    create_run,
    latest_step,
    load_supernet,
    open_run,
    save_supernet,
    space_of,
)
from hwnas.spaces import space
from hwnas.supernet import Supernet

ORIGIN = {"seed": 3}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return create_run(tmp_path / "run", of=space("nano", classes=3), origin=ORIGIN)


def test_a_run_is_begun_completed_and_opened(run: Run) -> None:
    assert open_run(run.folder) == run
    assert run.status == "started"
    done = complete_run(run)
    assert done.status == "complete"
    assert open_run(run.folder) == done
    assert space_of(done).options["classes"] == 3


def test_a_run_that_was_begun_goes_on(run: Run) -> None:
    again = create_run(run.folder, of=space("nano", classes=3), origin=ORIGIN)
    assert again == run


def test_another_run_without_weights_is_begun_anew(run: Run) -> None:
    (run.folder / "profiles").mkdir()
    other = create_run(run.folder, of=space("nano", classes=4), origin={"recipe": "other"})
    assert open_run(run.folder) == other
    assert (other.options["classes"], other.origin) == (4, {"recipe": "other"})
    assert (run.folder / "profiles").is_dir()


def test_another_run_is_not_written_over(run: Run) -> None:
    save_supernet(run, Supernet(space_of(run)), step=0)
    with pytest.raises(UsageError, match="holds another run"):
        create_run(run.folder, of=space("nano", classes=4), origin=ORIGIN)


def test_a_run_is_begun_where_one_was_killed_while_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of = space("nano", classes=3)
    with monkeypatch.context() as context:
        context.setattr(os, "replace", _killed)
        context.setattr(Path, "unlink", lambda _path, **_options: None)
        with pytest.raises(KeyboardInterrupt):
            create_run(tmp_path, of=of, origin=ORIGIN)
    assert [path.name.startswith(".run.json.") for path in tmp_path.iterdir()] == [True]
    create_run(tmp_path, of=of, origin=ORIGIN)
    assert open_run(tmp_path).space == "nano"


def _killed(_source: Path, _target: Path) -> None:
    raise KeyboardInterrupt


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("")
    with pytest.raises(UsageError, match="a run needs a folder"):
        create_run(tmp_path / "run", of=space("nano"), origin=ORIGIN)


def test_the_newest_weights_are_loaded(run: Run) -> None:
    with pytest.raises(HwnasError, match="no supernet yet"):
        load_supernet(run)
    first, second = (Supernet(space_of(run), seed=seed) for seed in (1, 2))
    save_supernet(run, first, step=0)
    save_supernet(run, second, step=10)
    assert latest_step(run) == 10
    for step, expected in ((None, second), (10, second), (0, first)):
        loaded = load_supernet(run, step=step).state_dict()
        assert all(torch.equal(loaded[name], t) for name, t in expected.state_dict().items())


def test_running_statistics_are_kept(run: Run) -> None:
    supernet = Supernet(space_of(run))
    stem = supernet.blocks["stem"]
    stem.add_statistics("norm.running_mean", torch.rand(stem.get_parameter("norm.weight").shape))
    save_supernet(run, supernet, step=0)
    kept = load_supernet(run).state_dict()["blocks.stem.norm.running_mean"]
    assert torch.equal(kept, supernet.state_dict()["blocks.stem.norm.running_mean"])


def test_latest_must_name_weights(run: Run) -> None:
    (run.folder / "supernet").mkdir()
    (run.folder / "supernet/LATEST").write_text("../../secret\n")
    with pytest.raises(FormatError, match="expected step-N.safetensors"):
        latest_step(run)


def test_damaged_weights_are_named(run: Run) -> None:
    path = save_supernet(run, Supernet(space_of(run)), step=0)
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(FormatError, match="not a complete safetensors file"):
        load_supernet(run)


def test_weights_that_do_not_fit_are_named(run: Run) -> None:
    path = save_supernet(run, Supernet(space_of(run)), step=0)
    arrays, metadata = read_tensors(path)
    name = "blocks.stem.conv.weight"
    write_tensors(path, {**arrays, name: arrays[name][:1]}, metadata)
    with pytest.raises(FormatError, match=r"blocks.stem.conv.weight is \(1, 3, 3, 3\), expected"):
        load_supernet(run)
    write_tensors(path, {key: array for key, array in arrays.items() if key != name}, metadata)
    with pytest.raises(FormatError, match=r"lacks \['blocks.stem.conv.weight'\]"):
        load_supernet(run)
    write_tensors(path, {**arrays, "more": arrays[name]}, metadata)
    with pytest.raises(FormatError, match=r"unknown \['more'\]"):
        load_supernet(run)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"space": "nasvit"}, "weights of 'nasvit', expected 'nano'"),
        ({"version": 2}, "version 2 of hwnas/supernet"),
        ({"schema": "other"}, "is a 'other', expected 'hwnas/supernet'"),
        (None, "not a file of hwnas"),
    ],
)
def test_weights_of_something_else_are_named(
    run: Run, changed: dict[str, object] | None, told: str
) -> None:
    path = save_supernet(run, Supernet(space_of(run)), step=0)
    arrays, metadata = read_tensors(path)
    described = {**json.loads(metadata["hwnas"]), **(changed or {})}
    write_tensors(path, arrays, {"hwnas": json.dumps(described)} if changed else {})
    with pytest.raises(FormatError, match=told):
        load_supernet(run)
