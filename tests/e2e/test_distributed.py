"""Two gloo processes train as one process with the whole batch does."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
    assert [process.wait(timeout=300) for process in processes] == [0] * world
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
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("trained; accuracy on the held-out part") == 1
    events = (tmp_path / "run" / "events.jsonl").read_text().splitlines()
    assert sum('"kind":"evaluation"' in event for event in events) == 1
