"""Folders that are replaced, digests of files, and preprocessing that cannot be meant."""

import os
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import atomic, digest_file, read_tensor, read_tensors, write_folder_atomic
from hwnas.io.preprocessing import Preprocessing


def _writing(*names: str):
    return lambda folder: [(folder / name).write_text(name) for name in names]


def _names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_stop_while_the_old_folder_is_removed_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "folder"
    write_folder_atomic(path, _writing("a", "b"))

    def stopped(folder: Path, **_options: object) -> None:
        (folder / "a").unlink(missing_ok=True)
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", stopped)
    with pytest.raises(KeyboardInterrupt):
        write_folder_atomic(path, _writing("c", "d"))
    assert _names(path) in (["a", "b"], ["c", "d"])


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("is_done", [False, True])
def test_an_interrupt_while_folders_are_renamed_leaves_a_whole_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, is_done: bool
) -> None:
    """Where folders cannot be exchanged; interrupts are raised before or after a system call."""
    path = tmp_path / "folder"
    write_folder_atomic(path, _writing("a", "b"))
    calls = []

    def interrupted(source: Path, target: Path) -> None:
        calls.append(target)
        is_here = len(calls) == at + 1
        if is_done or not is_here:
            rename(source, target)
        if is_here:
            raise KeyboardInterrupt

    rename = os.replace
    monkeypatch.setattr(atomic, "_exchanged", lambda _one, _other: False, raising=False)
    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_folder_atomic(path, _writing("c", "d"))
    assert _names(path) == (["c", "d"] if (at, is_done) == (1, True) else ["a", "b"])
    assert _names(tmp_path) == ["folder"]


def test_folders_change_places_in_one_step_or_not_at_all(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_folder_atomic(tmp_path / name, _writing(name))
    is_done = atomic._exchanged(tmp_path / "a", tmp_path / "b")
    assert [_names(tmp_path / name) for name in ("a", "b")] == (
        [["b"], ["a"]] if is_done else [["a"], ["b"]]
    )
    assert not atomic._exchanged(tmp_path / "a", tmp_path / "absent")
    assert _names(tmp_path) == ["a", "b"]


def test_folders_are_replaced_and_nothing_is_left_beside(tmp_path: Path) -> None:
    path = tmp_path / "folder"
    for names in (("a", "b"), ("c",)):
        write_folder_atomic(path, _writing(*names))
        assert _names(path) == list(names)
        assert _names(tmp_path) == ["folder"]


def test_a_folder_does_not_replace_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("kept")
    with pytest.raises(HwnasError, match="cannot write .*file: ") as raised:
        write_folder_atomic(path, _writing("a"))
    assert raised.value.hint == f"choose another place, or make {tmp_path} one that can be written"
    assert path.read_text() == "kept"
    assert _names(tmp_path) == ["file"]


def test_what_has_no_digest_is_explained(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FormatError, match="cannot be read"):
            digest_file(path)


@pytest.mark.parametrize("name", ["mean", "std"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_moments_of_preprocessing_are_numbers(name: str, value: float) -> None:
    moments = {"mean": (0.5,), "std": (0.5,), name: (value,)}
    with pytest.raises(UsageError, match=f"{name} is .*accepted: finite numbers"):
        Preprocessing(
            size=8, crop=8, resize=8, interpolation="bicubic", channels="L",
            mean=moments["mean"], std=moments["std"],
        )  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn"])
def test_numbers_that_numpy_has_not_are_explained(tmp_path: Path, dtype: str) -> None:
    assert np.dtype(getattr(ml_dtypes, dtype)).kind == "V"  # which importing it taught numpy
    path = tmp_path / "a.safetensors"
    save_file({"w": torch.ones(3, dtype=getattr(torch, dtype))}, path)
    for read in (read_tensors, lambda file: read_tensor(file, "w")):
        with pytest.raises(FormatError, match=f"type that numpy has not .*{dtype}") as raised:
            read(path)
        assert raised.value.hint == "save its tensors as float32"
