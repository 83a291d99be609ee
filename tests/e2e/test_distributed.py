"""Two gloo processes train as one process with the whole batch does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("two_ranks.py")


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def run(world: int, space: str, merge: str, out: Path) -> list:
    port = free_port()
    processes = []
    for rank in range(world):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if world > 1:
            environment.update(
                WORLD_SIZE=str(world), RANK=str(rank), LOCAL_RANK=str(rank),
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            )  # fmt: skip
        command = [sys.executable, str(SCRIPT), space, merge, str(out)]
        processes.append(subprocess.Popen(command, env=environment))
    assert [process.wait(timeout=1800) for process in processes] == [0] * world
    return [torch.load(f"{out}.{rank}") for rank in range(world)]


@pytest.mark.parametrize("merge", ["sum", "project"])
@pytest.mark.parametrize("space", ["tokens", "nano-synchronised"])
def test_two_processes_equal_one(tmp_path: Path, space: str, merge: str) -> None:
    ((alone, conflicts_alone),) = run(1, space, merge, tmp_path / "one")
    (first, conflicts_first), (second, conflicts_second) = run(2, space, merge, tmp_path / "two")
    assert torch.equal(first, second)
    # AdamW blows up the rounding of gradients that are zero in theory.
    atol = 1e-12 if space == "tokens" else 1e-9
    torch.testing.assert_close(first, alone, rtol=1e-9, atol=atol)
    assert conflicts_first == conflicts_second == conflicts_alone
    assert any(conflicts_alone)


@pytest.mark.parametrize("space", ["tokens", "nano-synchronised"])
def test_a_loss_that_is_not_finite_on_one_rank_ends_both(tmp_path: Path, space: str) -> None:
    (first_kept, first), (second_kept, second) = run(2, space, "broken", tmp_path / "two")
    assert first_kept
    assert second_kept
    assert "largest subnet" in second
    assert "is nan" in second
    # With batch statistics in common, what is broken reaches both.
    expected = "another process" if space == "tokens" else "is nan"
    assert expected in first


def test_a_rank_whose_image_is_damaged_is_the_one_that_is_heard(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    for part in ("train", "val"):
        for name in ("a", "b"):
            folder = tmp_path / "images" / part / name
            folder.mkdir(parents=True)
            for index in range(8):
                Image.fromarray(pixels).save(folder / f"{index}.png")
    damaged = tmp_path / "images" / "train" / "b" / "3.png"
    damaged.write_bytes(damaged.read_bytes()[:200])
    port = free_port()
    processes = []
    for rank in range(2):
        environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2", "RANK": str(rank),
            "LOCAL_RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        }  # fmt: skip
        command = [
            sys.executable, "-m", "hwnas", "train", "own-images", "--out", str(tmp_path / "run"),
            "--set", f"data.path={tmp_path / 'images'}", "--set", "data.val=heldout",
            "--set", "optimiser.batch_size=4", "--set", "data.workers=0",
        ]  # fmt: skip
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen(command, env=environment, text=True, **pipes))
    told = [process.communicate(timeout=1800)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, 1], told
    assert sum(f"cannot read {damaged}" in text for text in told) == 1
    assert sum("another process of the training ended" in text for text in told) == 1
    assert not any("Traceback" in text for text in told)
    assert sum("2 classes ('a', 'b')" in text for text in told) == 1


def test_a_stray_world_size_is_explained(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    for variable in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(variable, None)
    done = subprocess.run(
        [sys.executable, "-m", "hwnas", "train", "nano-digits", "--out", str(tmp_path / "run")],
        env=environment, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 1
    assert "WORLD_SIZE is 2, and this process cannot join the others" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_two_merges_differ(tmp_path: Path) -> None:
    ((summed, _),) = run(1, "tokens", "sum", tmp_path / "sum")
    ((projected, _),) = run(1, "tokens", "project", tmp_path / "project")
    assert not torch.allclose(summed, projected, rtol=1e-6)


def test_without_synchronised_norms_processes_differ_from_one(tmp_path: Path) -> None:
    ((alone, _),) = run(1, "nano", "sum", tmp_path / "one")
    (first, _), (second, _) = run(2, "nano", "sum", tmp_path / "two")
    assert torch.equal(first, second)
    assert not torch.allclose(first, alone, rtol=1e-6)


def test_torchrun_trains_a_run(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone",
        "-m", "hwnas", "train", "nano-fashion", "--out", str(tmp_path / "run"),
        "--set", "data.name=digits", "--set", "data.heldout=100", "--set", "schedule.epochs=1",
        "--set", "optimiser.batch_size=256", "--set", "process.sync_batchnorm=true",
        "--set", "process.checkpoint_seconds=0.1",
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained; accuracy on the held-out part") == 1
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert sum('"kind":"evaluation"' in event for event in events) == 1
