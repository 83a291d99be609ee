"""Which files of steps are kept, whatever sessions were killed before."""

from pathlib import Path

import numpy as np

import hwnas
from hwnas.pipeline.training_run import StateKeeper
from hwnas.supernet import Supernet
from hwnas.training.loop import Checkpoint

SUPERNET = Supernet(hwnas.space("nano", channels=1))


def keeper(folder: Path) -> StateKeeper:
    return StateKeeper(folder, leads=True, mirror=lambda event: None)


def save(folder: Path, step: int) -> None:
    arrays = {"weights": np.full(3, step, np.float32)}
    keeper(folder).save(Checkpoint(step=step, arrays=arrays), SUPERNET)


def test_the_named_checkpoint_stays_although_later_ones_were_left_behind(tmp_path: Path) -> None:
    """Two sessions were killed after they wrote a state and before they named it."""
    for step in (10, 40, 50):
        save(tmp_path, step)
    (tmp_path / "training" / "LATEST").write_text("step-10.safetensors")
    save(tmp_path, 20)
    found = keeper(tmp_path).latest()
    assert found is not None
    assert found.step == 20
    names = sorted(file.name for file in (tmp_path / "training").glob("step-*"))
    assert names == ["step-20.safetensors"]
    save(tmp_path, 30)
    save(tmp_path, 31)
    names = sorted(file.name for file in (tmp_path / "training").glob("step-*"))
    assert names == ["step-30.safetensors", "step-31.safetensors"]


def test_what_a_killed_session_was_writing_is_removed(tmp_path: Path) -> None:
    save(tmp_path, 10)
    torn = tmp_path / "training" / ".step-12.safetensors.x1y2z3"
    torn.write_bytes(b"half")
    StateKeeper(tmp_path, leads=False, mirror=lambda event: None).latest()
    assert torn.exists()
    assert keeper(tmp_path).latest() is not None
    assert not torn.exists()
    assert (tmp_path / "training" / "LATEST").exists()
