"""The bank of good subnets: who enters, who is drawn, and that its state is enough."""

import numpy as np
import pytest

import hwnas
from hwnas.training.bank import Bank, share_of_bank
from hwnas.training.plans import Moment, complexity_aware, default_levels

SPACE = hwnas.space("nano")
ARCHS = list(dict.fromkeys(SPACE.sample(20, np.random.default_rng(0))))


def filled(size: int = 4) -> Bank:
    bank = Bank(SPACE, levels=2, size=size)
    for number, arch in enumerate(ARCHS[:size]):
        bank.offer(1, arch, float(number))
    return bank


def kept(bank: Bank) -> dict[str, float]:
    state = bank.state()
    return {
        arch.digest: loss
        for arch, loss in zip(SPACE.decode(state["codes"]), state["losses"], strict=True)
    }


def test_a_full_bank_lets_in_only_what_beats_its_worst() -> None:
    bank = filled()
    bank.offer(1, ARCHS[10], 3.5)
    assert ARCHS[10].digest not in kept(bank)
    bank.offer(1, ARCHS[10], 2.5)
    assert kept(bank).keys() == {arch.digest for arch in (*ARCHS[:3], ARCHS[10])}


def test_a_known_architecture_gets_its_new_loss() -> None:
    bank = filled()
    bank.offer(1, ARCHS[0], 9.0)
    assert kept(bank)[ARCHS[0].digest] == 9.0
    assert len(kept(bank)) == 4


def test_better_ones_are_drawn_more_often_and_half_empty_levels_give_none() -> None:
    bank = filled()
    rng = np.random.default_rng(0)
    assert bank.draw(0, rng) is None
    drawn = [bank.draw(1, rng) for _ in range(400)]
    counts = [drawn.count(arch) for arch in ARCHS[:4]]
    wanted = 400 * np.exp(-np.arange(4.0)) / np.exp(-np.arange(4.0)).sum()
    assert np.abs(np.array(counts) - wanted).max() < 45
    half = Bank(SPACE, levels=1, size=4)
    half.offer(0, ARCHS[0], 1.0)
    half.offer(0, ARCHS[1], 1.0)
    assert half.draw(0, rng) is None


def test_the_state_is_enough() -> None:
    bank = filled()
    bank.refresh(lambda arch: float(SPACE.cost([arch]).macs[0]) / 1e6)
    other = Bank(SPACE, levels=2, size=4)
    other.restore(bank.state())
    assert kept(other) == kept(bank)
    draws = [
        [one.draw(1, np.random.default_rng(seed)) for seed in range(20)] for one in (bank, other)
    ]
    assert draws[0] == draws[1]
    empty = Bank(SPACE, levels=2, size=4)
    other.restore(empty.state())
    assert kept(other) == {}


def test_it_is_measured_again_four_times_in_an_epoch() -> None:
    bank = filled()
    assert [step for step in range(103) if bank.is_due(step, 103)] == [0, 25, 50, 75, 100]
    assert [step for step in range(3) if bank.is_due(step, 3)] == [0, 1, 2]


def test_the_share_grows_as_in_the_released_code() -> None:
    """600 epochs: 0.15 more in every 100th epoch, counted from one."""
    shares = {
        epoch: share_of_bank(epoch, epochs=600, start=0.2, growth=0.15)
        for epoch in (0, 98, 99, 198, 199, 598)
    }
    wanted = {0: 0.2, 98: 0.2, 99: 0.35, 198: 0.35, 199: 0.5, 598: 0.95}
    assert shares == pytest.approx(wanted)
    assert share_of_bank(5, epochs=6, start=0.9, growth=0.15) == 1.0


def test_the_plan_draws_from_the_bank_and_offers_only_what_it_did_not() -> None:
    levels, ends = default_levels(SPACE)
    bank = Bank(SPACE, levels=len(levels), size=1)
    for level in range(len(levels)):
        bank.offer(level, ARCHS[level], 1.0)

    def tasks(share: float) -> list:
        plan = complexity_aware(
            SPACE, levels=levels, smallest_up_to=ends, subnets=3, distils=True, bank=bank,
            bank_share=lambda epoch: share,
        )  # fmt: skip
        return [task for step in range(10) for task in plan(Moment(0, 0, step))[:3]]

    assert all(task.arch in ARCHS and task.level is None for task in tasks(1.0))
    assert all(task.arch not in ARCHS and task.level is not None for task in tasks(0.0))
    mixed = [task.level is None for task in tasks(0.5)]
    assert 3 < sum(mixed) < 27
