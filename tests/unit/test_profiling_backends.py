"""Runtimes that would quietly run something else than what is measured."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hwnas.errors import HwnasError
from hwnas.profiling.backends import backend
from hwnas.profiling.backends.base import ModuleModel
from hwnas.profiling.backends.ort import CUDA, open_session
from hwnas.profiling.records import Settings
from hwnas.testing.onnx_models import write_conv_stack


class Net(nn.Module):
    """Networks of one class and of many sizes, as all subnets are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, width), nn.Linear(width, 2)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(values).relu())


def test_every_network_is_compiled_however_many_were_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compiled, compile_for = [], torch.compile

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(
        torch, "compile", lambda *what, **how: compile_for(*what, **how, backend=count)
    )
    sessions = [
        backend("torch-compiled").open(
            ModuleModel(module=Net(width), input_shape=(4,)), settings=Settings()
        )
        for width in range(1, 13)
    ]
    assert len(compiled) == 12
    for session in sessions:  # and once only
        session.run()
    assert len(compiled) == 12


@pytest.mark.filterwarnings("ignore:Specified provider")
def test_a_provider_that_is_left_out_is_an_error(tmp_path: Path) -> None:
    model = write_conv_stack(tmp_path / "m.onnx", width=8)
    with pytest.raises(HwnasError, match=f"left {CUDA} out: its libraries cannot be loaded"):
        open_session(model, provider=CUDA)
