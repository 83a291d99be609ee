"""Candidates per minute of a search with two predictors on a space, all costs included.

    python benchmarks/search_speed.py [--space nasvit] [--generations 40] [--rows 300]

Compared in one run: NSGA-II of hwnas with two predictors of `hwnas.predictors`, and pymoo's own
NSGA-II (integer recipe of its documentation) with two forests of scikit-learn on the choices. The
predictors are fitted on made-up latencies and accuracies, which cost the same to predict as real
ones. Both wall-clock time and CPU time are printed: on a busy machine only the latter means much.
"""

import argparse
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import hwnas
from hwnas.predictors import Predictor
from hwnas.predictors.features import features
from hwnas.search import Nsga2, Objective, Problem, predicted, search


def targets(space, codes, rng):
    """Return latencies and accuracies that depend on costs and choices, with noise."""
    costs = features(space, codes).costs / 1e6
    weights = rng.random(costs.shape[1]) / costs.mean(axis=0).clip(1e-9)
    latency = 2.0 + costs @ weights
    effects = [rng.normal(size=size) for size in space.cardinalities]
    quality = sum(effect[codes[:, gene]] for gene, effect in enumerate(effects))
    accuracy = 70.0 + 3.0 * np.log(costs[:, 0]) + 0.1 * quality
    noise = rng.normal(size=(2, len(codes)))
    return latency * np.exp(0.02 * noise[0]), accuracy + 0.1 * noise[1]


def ours(space, codes, values, population, generations):
    known = features(space, codes)
    names = ("latency", "accuracy")
    predictors = {
        name: Predictor.fit(known.genes, known.costs, y)
        for name, y in zip(names, values, strict=True)
    }
    problem = Problem(
        space=space,
        quantities=predicted(space, predictors),
        objectives=(Objective(quantity="latency"), Objective(quantity="accuracy", maximise=True)),
    )
    engine = Nsga2(population=population, generations=generations)
    search(space, problem, engine=Nsga2(population=population, generations=2), seed=1)
    return timed(lambda: search(space, problem, engine=engine, seed=0).evaluations)


def theirs(space, codes, values, population, generations):
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as PymooProblem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.optimize import minimize
    from sklearn.ensemble import RandomForestRegressor

    forests = [RandomForestRegressor(100, random_state=0).fit(codes, y) for y in values]
    evaluations = 0

    class Predicted(PymooProblem):
        def __init__(self):
            super().__init__(
                n_var=codes.shape[1], n_obj=2, xl=0, xu=space.cardinalities - 1, vtype=int
            )

        def _evaluate(self, x, out, *_, **__):
            nonlocal evaluations
            evaluations += len(x)
            latency, accuracy = (forest.predict(x) for forest in forests)
            out["F"] = np.stack([latency, -accuracy], axis=1)

    algorithm = NSGA2(
        pop_size=population,
        sampling=IntegerRandomSampling(),
        crossover=SBX(prob=0.9, eta=3, vtype=float, repair=RoundingRepair()),
        mutation=PM(prob=1.0, eta=3, vtype=float, repair=RoundingRepair()),
        eliminate_duplicates=True,
    )

    def run():
        minimize(Predicted(), algorithm, ("n_gen", generations + 1), seed=0)
        return evaluations

    return timed(run)


def timed(run):
    """Return (candidates, wall-clock seconds, CPU seconds)."""
    wall, cpu = time.perf_counter(), time.process_time()
    candidates = run()
    return candidates, time.perf_counter() - wall, time.process_time() - cpu


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--space", default="nasvit")
    parser.add_argument("--rows", type=int, default=300, help="measured rows to fit on")
    parser.add_argument("--population", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--generations", type=int, default=40)
    arguments = parser.parse_args()
    space = hwnas.space(arguments.space)
    rng = np.random.default_rng(0)
    codes = space.sample_codes(arguments.rows, rng, macs=(0.0, np.inf))
    values = targets(space, codes, rng)
    for population in arguments.population:
        for name, method in (("hwnas", ours), ("pymoo + scikit-learn", theirs)):
            n, wall, cpu = method(space, codes, values, population, arguments.generations)
            print(
                f"population {population:5d}  {name:22s} {n:7d} candidates  "
                f"{60e-6 * n / wall:6.2f} M/min by the clock  "
                f"{60e-6 * n / cpu:6.2f} M per CPU minute"
            )


if __name__ == "__main__":
    main()
