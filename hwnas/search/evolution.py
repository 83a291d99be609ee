"""Engines on integer codes: NSGA-II, the paper's evolution, random search, uniform scaling.

Crossover and mutation work on whole generations; what depends on genes that do not matter is
repaired by `Space.canonical`. No architecture is scored twice in one search.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hwnas.search.arrays import Codes, Floats
from hwnas.search.engine import Population
from hwnas.search.ranking import crowding, ranks
from hwnas.spaces import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Nsga2:
    """NSGA-II (Deb et al., 2002), constraint domination, uniform crossover on integer codes.

    `mutation`: expected number of genes that change in a child. `initial`: codes to begin with,
    beside a few of uniform scaling and random ones.
    """

    population: int = 256
    generations: int = 100
    crossover: float = 0.9
    mutation: float = 1.0
    initial: tuple[tuple[int, ...], ...] = ()

    @property
    def offspring(self) -> int:
        """As many as there are parents."""
        return self.population

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return the initial population: given codes first."""
        given = np.array(self.initial, np.int64).reshape(-1, len(space.genes))
        return np.concatenate([given, covering(space, self.population, rng)])[: self.population]

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return children of tournament winners."""
        first, second = (winners(len(parents.codes), self.population, rng) for _ in range(2))
        children = crossed(parents.codes[first], parents.codes[second], rng, share=self.crossover)
        rate = self.mutation / len(space.genes)
        return space.canonical(mutated(space, children, rng, rate=rate))

    def survive(self, everyone: Population) -> Population:
        """Return the best rows, best first: feasible before not, then front, then crowding."""
        return everyone.rows(best_first(everyone, self.population))


@dataclass(frozen=True, kw_only=True, slots=True)
class Paper:
    """The evolution of NASViT and AlphaNet: crossovers and mutations of the best per cost bin.

    1,024 random architectures, then 40 rounds of 128 crossovers and 128 mutations of at most 128
    parents. The range of objective `cost` is cut into bins; the architecture that is best in the
    other objectives stays in each.
    """

    random: int = 1024
    parents: int = 128
    crossovers: int = 128
    mutations: int = 128
    generations: int = 40
    mutation: float = 0.2
    cost: int = 0

    @property
    def offspring(self) -> int:
        """Crossovers and mutations."""
        return self.crossovers + self.mutations

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return random architectures."""
        return spread(space, self.random, rng)

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return crossovers and mutations of parents drawn evenly from the bins."""
        count = len(parents.codes)
        mothers, fathers = rng.integers(0, count, (2, self.crossovers))
        children = crossed(parents.codes[mothers], parents.codes[fathers], rng, share=1.0)
        originals = parents.codes[rng.integers(0, count, self.mutations)]
        mutants = mutated(space, originals, rng, rate=self.mutation)
        return space.canonical(np.concatenate([children, mutants]))

    def survive(self, everyone: Population) -> Population:
        """Return the best of each cost bin among the feasible; the least bad if none is."""
        feasible = everyone.rows(everyone.violation <= 0)
        if not len(feasible.codes):
            return everyone.rows(np.argsort(everyone.violation, kind="stable")[: self.parents])
        quality = _quality(feasible.values, self.cost)
        if feasible.values.shape[1] == 1:
            return feasible.rows(np.argsort(quality, kind="stable")[: self.parents])
        cost = feasible.values[:, self.cost]
        width = (cost.max() - cost.min()) / self.parents
        bins = np.floor((cost - cost.min()) / width) if width > 0 else np.zeros(len(cost))
        order = np.lexsort((quality, np.minimum(bins, self.parents - 1)))
        _, best = np.unique(np.minimum(bins, self.parents - 1)[order], return_index=True)
        return feasible.rows(order[best])


@dataclass(frozen=True, kw_only=True, slots=True)
class Random:
    """Random search: every generation is new random architectures."""

    offspring: int = 256
    generations: int = 100

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return random architectures."""
        return spread(space, self.offspring, rng)

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return random architectures."""
        return spread(space, self.offspring, rng)

    def survive(self, everyone: Population) -> Population:
        """Return the last generation."""
        return everyone.rows(slice(-self.offspring, None))


@dataclass(frozen=True, kw_only=True, slots=True)
class Uniform:
    """Uniform scaling: all genes at the same share of their range, from smallest to largest."""

    steps: int = 64
    generations: int = 0

    @property
    def offspring(self) -> int:
        """None: there is one generation."""
        return 0

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return one architecture per step."""
        return scaled(space, self.steps)

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return the parents."""
        return parents.codes

    def survive(self, everyone: Population) -> Population:
        """Return everyone."""
        return everyone


def scaled(space: Space, steps: int) -> Codes:
    """Return architectures with all genes at the same share of their range."""
    shares = np.linspace(0.0, 1.0, steps)[:, None]
    return space.canonical(np.rint(shares * (space.cardinalities - 1)).astype(np.int64))


def spread(space: Space, count: int, rng: np.random.Generator) -> Codes:
    """Return random canonical rows; half of them spread over the MACs where there are networks.

    With every gene uniform on its own, the ends of the costs are never reached.
    """
    if not space.parts:
        return space.sample_codes(count, rng)
    even = count // 2
    costs = space.sample_codes(even, rng, macs=(0.0, np.inf)) if even else None
    rest = space.sample_codes(count - even, rng)
    return rest if costs is None else np.concatenate([rest, costs])


def covering(space: Space, count: int, rng: np.random.Generator) -> Codes:
    """Return at least `count` rows: a few of uniform scaling, ends included, then random ones."""
    steps = scaled(space, max(count // 16, 2))
    return np.concatenate([steps, spread(space, max(count - len(steps), 0), rng)])


def winners(count: int, wanted: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return winners of binary tournaments between rows that are sorted best first."""
    return np.asarray(rng.integers(0, count, (2, wanted)).min(axis=0))


def crossed(first: Codes, second: Codes, rng: np.random.Generator, *, share: float) -> Codes:
    """Return children that take each gene from either parent; a part are copies of the first."""
    flips = rng.random(first.shape, np.float32) < 0.5
    flips &= (rng.random(len(first)) < share)[:, None]
    return np.where(flips, second, first)


def mutated(space: Space, codes: Codes, rng: np.random.Generator, *, rate: float | Floats) -> Codes:
    """Return the rows with each gene changed with probability `rate` (one, or one per row).

    At least one gene changes. Half of the changes go to a neighbouring value, half to any
    other: genes may be ordered.
    """
    cardinalities = space.cardinalities
    free = np.flatnonzero(cardinalities > 1)
    rates = np.broadcast_to(np.asarray(rate, np.float32), len(codes))[:, None]
    changes = rng.random(codes.shape, np.float32) < rates
    changes[np.arange(len(codes)), free[rng.integers(0, len(free), len(codes))]] = True
    rows, columns = np.nonzero(changes & (cardinalities > 1))
    sizes, old = cardinalities[columns], codes[rows, columns]
    anywhere = (old + 1 + rng.integers(0, sizes - 1)) % sizes
    step = old + 2 * rng.integers(0, 2, len(old)) - 1
    step = np.where(step < 0, 1, np.where(step >= sizes, sizes - 2, step))
    result = codes.copy()
    result[rows, columns] = np.where(rng.random(len(old)) < 0.5, step, anywhere)
    return result


def best_first(everyone: Population, wanted: int) -> NDArray[np.int64]:
    """Return the best rows in order: feasible before not, then front, then crowding."""
    feasible = np.flatnonzero(everyone.violation <= 0)
    order = np.empty(0, np.int64)
    if len(feasible):
        values = everyone.values[feasible]
        rank = ranks(values, enough=wanted)
        order = feasible[np.lexsort((-crowding(values, rank), rank))]
    if len(order) < wanted:
        others = np.flatnonzero(everyone.violation > 0)
        by_violation = np.argsort(everyone.violation[others], kind="stable")
        order = np.concatenate([order, others[by_violation]])
    return order[:wanted]


def _quality(values: Floats, cost: int) -> Floats:
    """Return what is minimised within a bin: the other objective, or the mean rank of others."""
    others = np.delete(values, cost, axis=1) if values.shape[1] > 1 else values
    if others.shape[1] == 1:
        return others[:, 0]
    return np.asarray(others.argsort(axis=0).argsort(axis=0).mean(axis=1))
