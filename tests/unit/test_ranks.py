"""What is told where processes that train together cannot go on."""

import pytest
import torch
import torch.distributed

from hwnas.errors import HwnasError
from hwnas.training.distributed import Ranks


def waiting_meets(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def meet() -> None:
        raise error

    monkeypatch.setattr(torch.distributed, "barrier", meet)
    Ranks(world=2).wait()


def test_closed_connections_are_those_of_a_process_that_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = RuntimeError("[gloo] Connection closed by peer\nmore")
    with pytest.raises(HwnasError, match=r"another process of the training ended .*by peer\)$"):
        waiting_meets(closed, monkeypatch)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("DataLoader worker (pid 7) is killed by signal: Bus error."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes"),
        torch.OutOfMemoryError("CUDA out of memory."),
    ],
    ids=["reader", "CPU", "GPU"],
)
def test_what_befell_this_process_is_not_said_of_another(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(type(error)) as caught:
        waiting_meets(error, monkeypatch)
    assert caught.value is error
