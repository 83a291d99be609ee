"""NSGA-II of pymoo as an engine: its selection, mating and survival on our integer operators.

The only module that imports pymoo. Everything else (what was seen, archive, checkpoints,
progress) is the driver's, so that engines can be compared.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pymoo.algorithms.moo.nsga2 import NSGA2
from pymoo.core.crossover import Crossover
from pymoo.core.duplicate import DuplicateElimination
from pymoo.core.mutation import Mutation
from pymoo.core.population import Population as Individuals
from pymoo.core.problem import Problem
from pymoo.core.repair import Repair

from hwnas.search.arrays import Codes
from hwnas.search.engine import Population, Seen, hashed
from hwnas.search.evolution import best_first, covering, crossed, mutated
from hwnas.spaces import Space


@dataclass(frozen=True, kw_only=True, slots=True)
class PymooNsga2:
    """NSGA-II as pymoo does it; the settings mean what they mean for `Nsga2`."""

    population: int = 256
    generations: int = 100
    crossover: float = 0.9
    mutation: float = 1.0

    @property
    def offspring(self) -> int:
        """As many as there are parents."""
        return self.population

    def start(self, space: Space, rng: np.random.Generator) -> Codes:
        """Return the population that `Nsga2` begins with."""
        return covering(space, self.population, rng)

    def breed(self, space: Space, parents: Population, rng: np.random.Generator) -> Codes:
        """Return what pymoo's mating makes of the parents."""
        algorithm = NSGA2(
            pop_size=self.population,
            crossover=_Crossing(self.crossover),
            mutation=_Mutating(space, self.mutation / len(space.genes)),
            repair=_Canonical(space),
            eliminate_duplicates=_Hashed(),
        )
        algorithm.random_state = rng  # its tournaments take it from there
        problem = _problem(parents, space)
        people = algorithm.survival.do(problem, _people(parents), random_state=_fixed())
        born = algorithm.mating.do(
            problem, people, self.population, algorithm=algorithm, random_state=rng
        )
        return np.asarray(born.get("X"), np.int64).reshape(-1, len(space.genes))

    def survive(self, everyone: Population) -> Population:
        """Return the survivors of pymoo's ranking and crowding, best first."""
        survival = NSGA2(pop_size=self.population).survival
        survivors = survival.do(
            _problem(everyone, None),
            _people(everyone),
            n_survive=min(self.population, len(everyone.codes)),
            random_state=_fixed(),
        )
        kept = everyone.rows(np.array([person.data["row"] for person in survivors], np.int64))
        return kept.rows(best_first(kept, len(kept.codes)))


def _fixed() -> np.random.Generator:
    """Return the generator that breaks ties in survival, always the same way."""
    return np.random.default_rng(0)


def _problem(people: Population, space: Space | None) -> Any:  # noqa: ANN401 - pymoo has no types
    codes = people.codes
    return Problem(
        n_var=codes.shape[1],
        n_obj=people.values.shape[1],
        n_ieq_constr=1,
        xl=np.zeros(codes.shape[1], np.int64),
        xu=space.cardinalities - 1 if space is not None else codes.max(axis=0, initial=0),
        vtype=int,
    )


def _people(people: Population) -> Any:  # noqa: ANN401 - pymoo has no types
    individuals = Individuals.new(
        "X", people.codes, "F", people.values, "G", people.violation[:, None]
    )
    for row, person in enumerate(individuals):
        person.evaluated = {"F", "G"}
        person.data["row"] = row
    return individuals


class _Crossing(Crossover):  # type: ignore[misc]
    """Uniform crossover; whether a child is crossed at all is pymoo's probability."""

    def __init__(self, share: float) -> None:
        super().__init__(2, 1, prob=share)

    def _do(
        self,
        problem: object,
        X: Codes,
        *_: object,
        random_state: np.random.Generator,
        **__: object,
    ) -> Codes:
        return crossed(X[0], X[1], random_state, share=1.0)[None]


class _Mutating(Mutation):  # type: ignore[misc]
    def __init__(self, space: Space, rate: float) -> None:
        super().__init__(prob=1.0)
        self._space, self._rate = space, rate

    def _do(
        self,
        problem: object,
        X: Codes,
        *_: object,
        random_state: np.random.Generator,
        **__: object,
    ) -> Codes:
        return mutated(self._space, X.astype(np.int64), random_state, rate=self._rate)


class _Canonical(Repair):  # type: ignore[misc]
    """Sets genes that make no difference to their first value."""

    def __init__(self, space: Space) -> None:
        super().__init__()
        self._space = space

    def _do(self, problem: object, X: Codes, **_: object) -> Codes:
        return self._space.canonical(X.astype(np.int64))


class _Hashed(DuplicateElimination):  # type: ignore[misc]
    """Finds equal rows by their keys instead of comparing all pairs."""

    def _do(self, pop: Any, other: Any, is_duplicate: NDArray[np.bool_]) -> NDArray[np.bool_]:  # noqa: ANN401
        known = Seen(hashed(np.asarray(other.get("X"), np.int64))) if other is not None else Seen()
        fresh = known.unseen(hashed(np.asarray(pop.get("X"), np.int64)))
        is_duplicate[:] = True
        is_duplicate[fresh] = False
        return is_duplicate
