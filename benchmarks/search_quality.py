"""Hypervolume regret against the number of true evaluations, on a table of a whole space.

    python benchmarks/search_quality.py --table ../shared/data/macro_accuracy.csv \
        --objectives cost:c1,-acc_mean --seeds 10

The table has one row per architecture, `gene:*` columns and the objectives; `-name` maximises.
Regret is 1 - (hypervolume of what was evaluated / that of the whole table). It is given for two
references: the worst of the table, and the worst of its front plus a tenth of the front's range.
Every method evaluates exactly the same number of different architectures.
"""

import argparse
import csv
import statistics
import time
from pathlib import Path

import numpy as np

from hwnas.search import Nsga2, Paper, Random, loop, search
from hwnas.search.problem import Scores
from hwnas.search.volume import hypervolume, minimal
from hwnas.spaces import Space

BATCH = 10


class Table:
    """A space whose architectures have all been measured, and which of them were looked up."""

    def __init__(self, path, objectives):
        with path.open() as file:
            rows = list(csv.DictReader(file))
        genes = [name for name in rows[0] if name.startswith("gene:")]
        columns = {gene: [float(row[gene]) for row in rows] for gene in genes}
        values = {gene: sorted(set(column)) for gene, column in columns.items()}
        self.space = Space(path.stem, genes=values)
        if len(rows) != self.space.count():
            raise SystemExit(f"{path}: {len(rows)} rows for {self.space.count()} architectures")
        codes = [
            [values[gene].index(columns[gene][row]) for gene in genes] for row in range(len(rows))
        ]
        goals = [[_minimised(row, goal) for goal in objectives] for row in rows]
        self.values = np.empty((len(rows), len(objectives)))
        self.values[self.rows(np.array(codes))] = goals
        self.asked = []

    def rows(self, codes):
        return np.ravel_multi_index(tuple(codes.T), tuple(self.space.cardinalities))

    def look_up(self, codes):
        rows = self.rows(codes)
        self.asked += rows.tolist()
        return self.values[rows]

    def measure(self, archs):
        return self.look_up(self.space.encode(archs))

    def score(self, codes):
        return Scores(self.look_up(codes), np.zeros(len(codes)))


def _minimised(row, goal):
    return -float(row[goal[1:]]) if goal.startswith("-") else float(row[goal])


def run(table, method, budget, seed):
    """Return the rows that a method evaluates, in order."""
    table.asked = []
    if method == "loop":
        loop(
            table.space,
            table.measure,
            budget=budget,
            batch=BATCH,
            seed=seed,
            minimise=tuple(f"objective {i}" for i in range(table.values.shape[1])),
        )
    else:
        search(table.space, table.score, engine=ENGINES[method](budget), seed=seed)
    assert len(set(table.asked)) == len(table.asked)
    return table.asked[:budget]


# populations of 20: larger ones have too few generations at such budgets, smaller ones do no better
ENGINES = {
    "nsga2": lambda budget: Nsga2(population=20, generations=budget // 20),
    "evolution": lambda budget: Paper(
        random=40, parents=16, crossovers=8, mutations=8, generations=budget // 16
    ),
    "random": lambda budget: Random(offspring=BATCH, generations=budget // BATCH),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--objectives", required=True, help="comma list, such as latency,-accuracy")
    parser.add_argument("--methods", nargs="+", default=["loop", *ENGINES])
    parser.add_argument("--at", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--loop-until", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    table = Table(arguments.table, arguments.objectives.split(","))
    front = minimal(table.values)
    low, high = front.min(axis=0), front.max(axis=0)
    worst = table.values.max(axis=0)
    references = {"table": worst + 1e-9 * abs(worst), "front": high + 0.1 * (high - low)}
    print(f"{arguments.table.name}: {table.space.count()} architectures, {len(front)} on the front")
    print("regret in %: mean (worst) of", arguments.seeds, "seeds")
    for method in arguments.methods:
        until = min(
            arguments.loop_until if method == "loop" else max(arguments.at), max(arguments.at)
        )
        start = time.process_time()
        asked = [run(table, method, until, seed) for seed in range(arguments.seeds)]
        seconds = (time.process_time() - start) / arguments.seeds
        for name, reference in references.items():
            total = hypervolume(table.values, reference)
            cells = []
            for at in (at for at in arguments.at if at <= until):
                regrets = [
                    100 * (1 - hypervolume(table.values[rows[:at]], reference) / total)
                    for rows in asked
                ]
                cells.append(f"{at}: {statistics.mean(regrets):5.2f} ({max(regrets):5.2f})")
            print(f"{method:10s} reference {name}  {'  '.join(cells)}   {seconds:.1f} s per run")


if __name__ == "__main__":
    main()
