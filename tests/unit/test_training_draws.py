"""Masks of dropout depend on seed, step and rank alone, wherever they are drawn."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from hwnas.pipeline.config import read_recipe
from hwnas.supernet import Supernet
from hwnas.training import loop
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks
from hwnas.training.draws import seeded_torch
from hwnas.training.plans import Moment
from hwnas.training.prepare import prepare, space_for


@pytest.fixture
def second_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.Generator:
    """The generator of the second of two GPUs, which are none."""
    fakes = [torch.Generator(), torch.Generator()]
    monkeypatch.setattr(torch.cuda, "default_generators", fakes)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda gpu: fakes[gpu].get_state())
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda s, gpu: fakes[gpu].set_state(s))
    return fakes[1]


@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_the_generator_of_the_gpu_is_seeded_and_put_back(
    second_gpu: torch.Generator, device: str
) -> None:
    before = second_gpu.get_state()
    drawn = []
    for _ in range(2):
        with seeded_torch(5, device=torch.device(device)):
            drawn.append((torch.rand(4, generator=second_gpu), torch.rand(4)))
        assert torch.equal(second_gpu.get_state(), before)
    (gpu, cpu), again = drawn
    assert torch.equal(gpu, again[0])
    assert torch.equal(cpu, again[1])
    assert torch.equal(cpu, torch.rand(4, generator=torch.Generator().manual_seed(5)))


def seeds_of(rank: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return what the steps of a rank are seeded with."""
    recipe = read_recipe("nano-digits", ["optimiser.batch_size=8", "regularisation.dropout=0.2"])
    data = load_data(recipe.data)
    supernet = Supernet(space_for(recipe, data))
    alone = prepare(recipe, data, supernet, device=torch.device("cpu"), ranks=Ranks())
    training = replace(alone, ranks=Ranks(rank=rank))
    seen: list[int] = []
    monkeypatch.setattr(loop, "seeded_torch", lambda seed, **_: nullcontext(seen.append(seed)))
    batch = next(training.batches.batches(0))
    for step in range(2):
        loop._one_step(training, 0, step, step, batch)
    return seen


def test_each_rank_has_masks_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (seeds_of(rank, monkeypatch) for rank in (0, 1))
    assert first == [int(Moment(0, 0, step).rng(3).integers(2**31)) for step in range(2)]
    assert len({*first, *second}) == 4
