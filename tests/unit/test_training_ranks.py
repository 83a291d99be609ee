"""Joining the other processes of a training."""

import pytest
import torch

from hwnas.errors import UsageError
from hwnas.training.distributed import ranks


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_RANK", "2")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: pytest.fail("there is no such GPU"))
    with (
        pytest.raises(UsageError, match="LOCAL_RANK is 2, and torch finds 2 GPUs") as caught,
        ranks(torch.device("cuda")),
    ):
        pass
    assert "torchrun --nproc-per-node 2 " in caught.value.hint
