"""Where the measured loop begins, and what it may measure next."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hwnas.search.arrays import Codes, Floats
from hwnas.search.encoder import Encoder, Table
from hwnas.search.engine import Seen, hashed, search
from hwnas.search.evolution import Nsga2, mutated, scaled, spread
from hwnas.search.outlook import Model, expected
from hwnas.search.problem import Scores
from hwnas.search.ranking import first_front
from hwnas.spaces import Space

ENUMERATED = 200_000  # spaces up to this size are considered whole
COMBINATIONS = 2_000_000
RANDOM = 2000
MUTANTS = 2000
BRED = Nsga2(population=128, generations=24)


def initial_design(space: Space, count: int, rng: np.random.Generator) -> Codes:
    """Return distinct architectures that cover the space.

    A quarter at most are uniform: all genes at the same share of their range, which holds the
    ends of everything that adds up over the layers. The others are a Latin hypercube over the
    genes, or spread over the MACs where there are networks.
    """
    steps = min(int(space.cardinalities.max()), max(count // 4, 2))
    candidates = [scaled(space, steps)]
    if space.parts:
        candidates.append(spread(space, 2 * count, rng))
    candidates += [_latin(space, count, rng) for _ in range(8)]
    codes = np.concatenate([*candidates, space.sample_codes(8 * count, rng)])
    return codes[Seen().unseen(hashed(codes), count)]


def _latin(space: Space, count: int, rng: np.random.Generator) -> Codes:
    columns = [
        rng.permutation(np.resize(rng.permutation(size), count)) for size in space.cardinalities
    ]
    return space.canonical(np.stack(columns, axis=1).astype(np.int64))


class Pool:
    """The architectures that a round chooses from, those already measured left out."""

    def __init__(self, space: Space, encoder: Encoder) -> None:
        self._space, self._encoder = space, encoder

    @cached_property
    def whole(self) -> tuple[Codes, Table] | None:
        """All architectures of a small space, None for a large one."""
        sizes = self._space.cardinalities
        if np.prod(sizes.astype(np.float64)) > COMBINATIONS:
            return None
        if self._space.count() > ENUMERATED:
            return None
        every = np.indices(tuple(sizes.tolist())).reshape(len(sizes), -1).T.astype(np.int64)
        codes = self._space.canonical(every)
        if self._space.requires:
            codes = codes[Seen().unseen(hashed(codes))]
        return codes, self._encoder(codes)

    def candidates(
        self, models: Sequence[Model], measured: Codes, values: Floats, rng: np.random.Generator
    ) -> tuple[Codes, Table]:
        """Return unmeasured architectures worth a look, with their columns."""
        if self.whole is not None:
            codes, table = self.whole
            left = _unmeasured(codes, measured)
            return codes[left], table.rows(left)
        finite = np.isfinite(values).all(axis=1)
        best = measured[finite][first_front(values[finite])] if finite.any() else measured
        mutants = best[rng.integers(0, len(best), MUTANTS)]
        rates = rng.choice([0.0, 1.0, 3.0], MUTANTS) / len(self._space.genes)
        codes = np.concatenate(
            [
                self._bred(models, best, int(rng.integers(2**31))),
                self._space.canonical(mutated(self._space, mutants, rng, rate=rates)),
                spread(self._space, RANDOM, rng),
            ]
        )
        codes = codes[_unmeasured(codes, measured)]
        return codes, self._encoder(codes)

    def _bred(self, models: Sequence[Model], best: Codes, seed: int) -> Codes:
        """Return what NSGA-II finds on the models, starting from the best measured."""

        def evaluate(codes: Codes) -> Scores:
            table = self._encoder(codes)
            values = np.stack([expected(model, table) for model in models], axis=1)
            return Scores(values, np.zeros(len(codes)))

        given = tuple(map(tuple, best[: BRED.population // 2].tolist()))
        engine = Nsga2(population=BRED.population, generations=BRED.generations, initial=given)
        outcome = search(self._space, evaluate, engine=engine, seed=seed)
        return np.concatenate([outcome.found.codes, outcome.last.codes])


def _unmeasured(codes: Codes, measured: Codes) -> NDArray[np.int64]:
    seen = Seen(hashed(measured))
    return seen.unseen(hashed(codes))
