"""Checkpoint files of other programs: read without executing, refused when damaged."""

import os
import sys
from pathlib import Path, PurePosixPath
from types import ModuleType

import pytest
import torch
from safetensors.torch import save_file

from hwnas.errors import FormatError
from hwnas.interop.checkpoint import read_checkpoint, state_dict_of


class Bomb:
    def __reduce__(self):
        return os.mkdir, (str(Bomb.target),)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    Bomb.target = tmp_path / "executed"
    path = tmp_path / "c.pth"
    torch.save({"model": {"w": torch.ones(2)}, "bomb": Bomb()}, path)
    content = read_checkpoint(path)
    assert not Bomb.target.exists()
    assert torch.equal(content["model"]["w"], torch.ones(2))


def test_names_lose_what_wrappers_left_in_any_order() -> None:
    names = ("module.a", "_orig_mod.b", "module._orig_mod.c", "_orig_mod.module.d", "e.module.f")
    content = {name: torch.ones(1) for name in names}
    assert sorted(state_dict_of(content, ("model",))) == ["a", "b", "c", "d", "e.module.f"]


def test_the_first_entry_that_has_tensors_is_taken() -> None:
    keys = ("model_ema", "model")
    w, other = torch.ones(1), torch.zeros(1)
    for empty in (None, {}, {"decay": 0.9}):
        content = {"model_ema": empty, "model": {"module.w": w}, "other": other}
        assert state_dict_of(content, keys) == {"w": w}
    assert state_dict_of({"model": {}, "w": w}, keys) == {"w": w}
    assert state_dict_of({"model_ema": {"w": w}, "model": {"w": other}}, keys) == {"w": w}


def test_objects_that_are_not_rebuilt_may_be_keys(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    keys = {PurePosixPath("a"): 1, PurePosixPath("b"): 2}
    torch.save({"model": {"w": torch.ones(2)}, "seen": keys}, path)
    content = read_checkpoint(path)
    assert sorted(content["seen"].values()) == [1, 2]
    assert torch.equal(content["model"]["w"], torch.ones(2))


@pytest.mark.parametrize("zipped", [True, False])
def test_foreign_configuration_objects_are_tolerated(tmp_path: Path, zipped: bool) -> None:
    """The released file holds a yacs CfgNode, a class that is not installed here."""
    module = ModuleType("yacs.config")
    node = type("CfgNode", (dict,), {"__module__": "yacs.config", "__qualname__": "CfgNode"})
    module.CfgNode = node
    sys.modules.update({"yacs": ModuleType("yacs"), "yacs.config": module})
    try:
        config = node(DATA=node(IMG_SIZE=224))
        config.__dict__["__immutable__"] = True
        path = tmp_path / "c.pth"
        torch.save(
            {
                "model_ema": {
                    "module.a": torch.arange(3.0),
                    "b": torch.nn.Parameter(torch.ones(2)),
                },
                "config": config,
                "max_accuracy": 82.8,
                "half": torch.ones(3, dtype=torch.float16),
            },
            path,
            _use_new_zipfile_serialization=zipped,
        )
    finally:
        del sys.modules["yacs"], sys.modules["yacs.config"]
    content = read_checkpoint(path)
    tensors = state_dict_of(content, ("model_ema", "model"))
    assert sorted(tensors) == ["a", "b"]
    assert torch.equal(tensors["a"], torch.arange(3.0))
    assert content["half"].dtype == torch.float16


@pytest.mark.parametrize("keep", [0, 1, 60, 0.5, 0.95])
def test_truncated_files_are_named(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "c.pth"
    torch.save({"model": {"w": torch.randn(500)}}, path)
    whole = path.read_bytes()
    path.write_bytes(whole[: int(keep * len(whole)) if 0 < keep < 1 else int(keep)])
    with pytest.raises(FormatError, match="c.pth: not a complete torch checkpoint"):
        read_checkpoint(path)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_safetensors_are_read_in_every_precision(tmp_path: Path, dtype: torch.dtype) -> None:
    path = tmp_path / "c.safetensors"
    values = torch.arange(6).reshape(2, 3).to(dtype)
    save_file({"w": values}, path)
    assert torch.equal(read_checkpoint(path)["w"], values)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=r"c\.safetensors: not a complete safetensors file"):
        read_checkpoint(path)


def test_foreign_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "c.pth"
    path.write_text("hello")
    with pytest.raises(FormatError, match="not a complete torch checkpoint"):
        read_checkpoint(path)
    torch.save([torch.ones(1)], path)
    with pytest.raises(FormatError, match="holds no dictionary"):
        read_checkpoint(path)
    with pytest.raises(FormatError, match="no such file"):
        read_checkpoint(tmp_path / "absent.pth")
