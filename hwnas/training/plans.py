"""Plans: which subnets a step trains, and from what each of them learns.

A plan is a pure function of the moment (seed, epoch, step), so resuming needs no saved state and
all processes of a distributed run train the same subnets. The one exception is a bank of good
subnets, whose state is the same everywhere and in every checkpoint.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hwnas.spaces import Arch, Space
from hwnas.training.bank import Bank


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """One subnet of a step.

    `learns_from`: indices of earlier tasks whose mean prediction it learns; none means labels
    (or the external teacher). `is_supernet`: on which side of the merge its gradient counts.
    `level`: where in a bank it may be kept.
    """

    arch: Arch
    role: str
    learns_from: tuple[int, ...] = ()
    is_supernet: bool = False
    level: int | None = None


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step happens."""

    seed: int
    epoch: int
    step: int

    def rng(self, purpose: int) -> np.random.Generator:
        """Return the generator of this moment for one purpose."""
        return np.random.default_rng([self.seed, purpose, self.epoch, self.step])


Plan = Callable[[Moment], Sequence[Task]]
# 3 is that of dropout and 7 that of evaluation.
_DRAW, _WALK, _BANK, _VARY = 1, 2, 4, 5


def sandwich(
    space: Space,
    *,
    random: int,
    distils: bool,
    evenly: bool = False,
    vary: Sequence[str] = (),
    vary_share: float = 1.0,
) -> Plan:
    """Return the plan of NASViT, AlphaNet and BigNAS: largest, smallest, `random` others.

    The largest comes first because the others learn from it (`distils`). The random ones are drawn
    one by one, or `evenly`, so that each step trains as many values of each gene. Of the genes in
    `vary` the largest and the smallest take random values, too, so that values which are neither
    the first nor the last, such as middle resolutions, are trained as often; each of the two does
    so in `vary_share` of the steps, and is itself in the others.
    """
    largest, smallest = space.largest(), space.smallest()
    source = (0,) if distils else ()
    draw = space.sample_evenly if evenly else space.sample

    def varied(arch: Arch, rng: np.random.Generator) -> Arch:
        if not vary or (vary_share < 1 and rng.random() >= vary_share):
            return arch
        (other,) = space.sample(1, rng)
        return space.arch({**arch, **{gene: other[gene] for gene in vary}})

    def plan(moment: Moment) -> Sequence[Task]:
        drawn = draw(random, moment.rng(_DRAW))
        rng = moment.rng(_VARY)
        return (
            Task(arch=varied(largest, rng), role="largest", is_supernet=True),
            Task(arch=varied(smallest, rng), role="smallest", learns_from=source),
            *(Task(arch=arch, role="random", learns_from=source) for arch in drawn),
        )

    return plan


def alone(space: Space) -> Plan:
    """Return the plan of a space of one architecture: it learns from labels, or the teacher."""
    task = Task(arch=space.largest(), role="subnet", is_supernet=True)
    return lambda _moment: (task,)


def single_path(space: Space) -> Plan:
    """Return the plan of AutoFormer and SPOS: one uniformly drawn subnet, trained on labels."""

    def plan(moment: Moment) -> Sequence[Task]:
        return (Task(arch=space.sample(1, moment.rng(_DRAW))[0], role="random"),)

    return plan


def complexity_aware(
    space: Space,
    *,
    levels: Sequence[float],
    smallest_up_to: Sequence[float],
    subnets: int,
    distils: bool,
    bank: Bank | None = None,
    bank_share: Callable[[int], float] = lambda epoch: 0.0,
) -> Plan:
    """Return the plan of ElasticViT (ICCV 2023): subnets of one step have similar cost.

    From step to step the level of cost moves to a neighbouring one. `subnets` of that level
    learn from labels; the smallest subnet of the level's range learns from their mean, or, unless
    it `distils`, from labels. Levels and ends of ranges are in MACs. With a share that depends on
    the epoch, a subnet comes from `bank` instead of being drawn uniformly.
    """
    least = int(space.cost([space.smallest()]).macs[0])
    starts = [least, *smallest_up_to[:-1]]
    smallest = [_cheapest(space, start) for start in starts]
    sources = tuple(range(subnets)) if distils else ()

    def random_task(arch: Arch, level: int, epoch: int, rng: np.random.Generator) -> Task:
        if bank is None:
            return Task(arch=arch, role="random")
        known = bank.draw(level, rng) if rng.random() < bank_share(epoch) else None
        if known is not None:
            return Task(arch=known, role="random")
        return Task(arch=arch, role="random", level=level)

    def plan(moment: Moment) -> Sequence[Task]:
        number = _walk(len(levels), moment)
        level = levels[number]
        # At least as wide as the gap to a neighbouring architecture is in most spaces.
        tolerance = 0.02 * level
        drawn = space.sample(
            subnets, moment.rng(_DRAW), macs=(level - tolerance, level + tolerance)
        )
        reach = next((i for i, end in enumerate(smallest_up_to) if level <= end), -1)
        rng = moment.rng(_BANK)
        return (
            *(random_task(arch, number, moment.epoch, rng) for arch in drawn),
            Task(arch=smallest[reach], role="smallest", learns_from=sources),
        )

    return plan


def default_levels(space: Space) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return (levels, ends of the ranges of the smallest subnets) spread over a space's costs.

    The spacing follows ElasticViT's 100 to 1200 MFLOPs: denser at the small end.
    """
    low, high = (float(v) for v in space.cost([space.smallest(), space.largest()]).macs)
    shares = np.array([0.05, 0.1, 0.17, 0.24, 0.32, 0.48, 0.65, 0.9])
    levels = tuple(float(level) for level in low + shares * (high - low))
    return levels, (levels[1], levels[3], levels[-1])


def _walk(levels: int, moment: Moment) -> int:
    """Return where a reflected random walk over the levels is, from its start in the epoch."""
    rng = np.random.default_rng([moment.seed, _WALK, moment.epoch])
    if levels == 1:
        return 0
    start = int(rng.integers(levels))
    moves = rng.integers(0, 2, moment.step) * 2 - 1
    period = 2 * (levels - 1)
    folded = (start + int(moves.sum())) % period
    return folded if folded < levels else period - folded


def _cheapest(space: Space, at_least: float) -> Arch:
    """Return a subnet of about the least cost from `at_least` on."""
    if at_least <= int(space.cost([space.smallest()]).macs[0]):
        return space.smallest()
    drawn = space.sample(64, np.random.default_rng(0), macs=(at_least, 1.1 * at_least))
    return drawn[int(space.cost(drawn).macs.argmin())]
