"""Subnets side by side learn what they learn one after the other."""

import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

import hwnas
from hwnas.spaces import Space
from hwnas.supernet import Supernet
from hwnas.training.distributed import Ranks
from hwnas.training.flat import FlatParameters
from hwnas.training.losses import kl
from hwnas.training.merges import Merge
from hwnas.training.optimise import LossScale, make_optimiser
from hwnas.training.plans import (
    Moment,
    Plan,
    complexity_aware,
    default_levels,
    sandwich,
)
from hwnas.training.step import NonFiniteLossError, Stepper, StepSettings
from hwnas.training.streams import Streams

SETTINGS = StepSettings(distillation=kl, merge=Merge(priority="subnets"), clip=1.0)


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def nano() -> Space:
    return hwnas.space("nano", channels=1)


def picked() -> Space:
    space = nano()
    return replace(space, picks={**space.picks, "dim": "bilateral", "value": "cyclic"})


def by_cost(space: Space) -> Plan:
    levels, ends = default_levels(space)
    return complexity_aware(space, levels=levels, smallest_up_to=ends, subnets=2, distils=True)


PLANS = {
    "sandwich": lambda space: sandwich(space, random=2, distils=True),
    "from labels": lambda space: sandwich(space, random=1, distils=False),
    "by cost": by_cost,
}


def stepper_for(space: Space, settings: StepSettings) -> Stepper:
    supernet = Supernet(space).train()
    flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
    optimiser = make_optimiser(
        "sgd", flat, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
    )
    return Stepper(
        supernet, flat, optimiser, settings,
        average=None, loss_scale=LossScale(enabled=False), ranks=Ranks(),
    )  # fmt: skip


def trained(space: Space, settings: StepSettings, plan: str, steps: int = 2) -> Stepper:
    stepper = stepper_for(space, settings)
    tasks = PLANS[plan](space)
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for step in range(steps):
            images = torch.randn(8, 1, 32, 32, generator=generator)
            labels = torch.randint(0, 10, (8,), generator=generator)
            stepper(images, labels, tasks(Moment(0, 0, step)), learning_rate=0.1)
    return stepper


@pytest.mark.parametrize("space", [nano, picked])
@pytest.mark.parametrize("plan", PLANS)
def test_the_step_is_the_same(space, plan) -> None:
    alone = trained(space(), SETTINGS, plan, steps=1)
    beside = trained(space(), replace(SETTINGS, streams=2), plan, steps=1)
    for one, other in zip(alone.flat.gradients, beside.flat.gradients, strict=True):
        assert one.abs().max() > 0 or plan == "by cost"
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_what_is_disturbed_disturbs_no_other() -> None:
    disturbed = replace(SETTINGS, dropout=0.3, drop_path=0.3)
    beside = trained(nano(), replace(disturbed, streams=2), "from labels", steps=1)
    torch.set_num_threads(1)  # as each of two streams has: sums are rounded alike
    alone = trained(nano(), disturbed, "from labels", steps=1)
    torch.testing.assert_close(alone.flat.weights, beside.flat.weights, rtol=1e-3, atol=1e-5)


def test_it_is_repeatable_to_the_last_bit() -> None:
    settings = replace(SETTINGS, streams=2)
    weights = [trained(nano(), settings, "sandwich", steps=4).flat.weights for _ in range(2)]
    assert torch.equal(*weights)


def test_one_step_beside_and_one_alone_share_their_gradients() -> None:
    """What a subnet has borrowed knows afterwards where its gradient belongs."""
    space = nano()
    beside = trained(space, replace(SETTINGS, streams=2), "sandwich", steps=1)
    alone = trained(space, SETTINGS, "sandwich", steps=1)
    for stepper in (beside, alone):
        stepper.settings = SETTINGS
        stepper._streams = None
        stepper.flat.weights.fill_(0.01)
        images, labels = torch.ones(4, 1, 32, 32), torch.arange(4)
        stepper(images, labels, PLANS["sandwich"](space)(Moment(0, 0, 9)), learning_rate=0.0)
    for one, other in zip(alone.flat.gradients, beside.flat.gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_loss_that_is_not_finite_changes_nothing() -> None:
    space = nano()
    stepper = stepper_for(space, replace(SETTINGS, streams=2))
    before = stepper.flat.weights.clone()
    tasks = PLANS["sandwich"](space)(Moment(0, 0, 0))
    images = torch.full((4, 1, 32, 32), float("nan"))
    with pytest.raises(NonFiniteLossError, match=f"largest subnet {tasks[0].arch.digest[:12]}"):
        stepper(images, torch.arange(4), tasks, learning_rate=0.1)
    assert torch.equal(before, stepper.flat.weights)


def test_jobs_run_at_the_same_time_and_answer_in_order() -> None:
    together = threading.Barrier(2, timeout=30)

    def job(number: int) -> int:
        assert torch.get_num_threads() == 1
        together.wait()
        return number

    jobs = [lambda number=number: job(number) for number in range(4)]
    assert list(Streams(2).results(jobs, sizes=[1, 4, 2, 3])) == [0, 1, 2, 3]


def test_after_a_failure_nothing_runs_any_more() -> None:
    running = []

    def fails() -> None:
        raise ValueError("no")

    def slow() -> None:
        running.append(1)
        threading.Event().wait(0.2)
        running.pop()

    with pytest.raises(ValueError, match="no"):
        list(Streams(2).results([fails, slow], sizes=[1, 2]))
    assert running == []


def test_there_are_no_more_streams_than_threads() -> None:
    torch.set_num_threads(1)
    assert Streams(4).count == 1
