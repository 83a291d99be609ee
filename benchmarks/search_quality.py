"""Hypervolume regret against the number of true evaluations, on a table of a whole space.

    python benchmarks/search_quality.py --table ../shared/data/macro_accuracy.csv \
        --objectives cost:c1,-acc_mean --seeds 10

The table has one row per architecture, `gene:*` columns and the objectives; `-name` maximises.
Regret is 1 - (hypervolume of what was evaluated / that of the whole table). It is given for two
references: the worst of the table, and the worst of its front plus a tenth of the front's range.
Every method evaluates exactly the same number of different architectures.

    python benchmarks/search_quality.py --run runs/nano --seeds 10 \
        --vary resolution mb2.depth t3.width t3.depth t4.width t4.depth

With --run the errors are those of a trained supernet's subnets on the held-out part. Latencies are
what the run's predictor says, or with --timed measured on this machine. Searched is the part of
the space in which only the genes named by --vary vary; all others have their first value. It is
evaluated whole before any method begins and kept in the run (`accuracies.jsonl`,
`search/measured.jsonl`): the same command goes on where it was killed. Better give a copy of the
run: what is fitted from it afterwards would be fitted on this part above all.
"""

import argparse
import csv
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from hwnas.pipeline.accuracies import Work, measure_archs
from hwnas.pipeline.measuring import building
from hwnas.pipeline.rundir import open_run
from hwnas.pipeline.searching import Request, prepare
from hwnas.profiling.driver import profile
from hwnas.profiling.jobs import Job, Options
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.sampling import arch_document
from hwnas.search import Nsga2, Paper, Random, loop, search
from hwnas.search.problem import Scores
from hwnas.search.volume import hypervolume, minimal
from hwnas.spaces import Space

BATCH = 10


class Asked:
    """A space all of whose architectures are known; remembers what was evaluated, in that order.

    `values` are minimised, and nothing is evaluated twice.
    """

    def __init__(self):
        self.begin()

    def begin(self):
        self.rows, self.known = [], set()

    def look_up(self, codes):
        keys = [tuple(row) for row in codes.tolist()]
        assert not self.known & set(keys)
        assert len(set(keys)) == len(keys)
        self.known |= set(keys)
        values = self.values[self.rows_of(codes)]
        self.rows += values.tolist()
        return values

    def rows_of(self, codes):
        return np.ravel_multi_index(tuple(codes.T), tuple(self.space.cardinalities))

    def measure(self, archs):
        return self.look_up(self.space.encode(archs))

    def score(self, codes):
        return Scores(self.look_up(codes), np.zeros(len(codes)))


class Table(Asked):
    """A file with one row per architecture of a space."""

    def __init__(self, path, objectives):
        super().__init__()
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
        self.values[self.rows_of(np.array(codes))] = goals


class Supernet(Asked):
    """A part of a run's space: latency in ms and error in percent."""

    def __init__(self, folder, *, device, timed, vary):
        super().__init__()
        found = prepare(open_run(folder), Request(device=device))
        self.run, self.field = found.run, found.field
        base = self.field.base
        if unknown := set(vary) - set(base.genes):
            raise SystemExit(f"{base.name} has no genes {sorted(unknown)}: {list(base.genes)}")
        genes = {g: values if g in vary else values[:1] for g, values in base.genes.items()}
        self.space = replace(base, genes=genes)
        sizes = tuple(self.space.cardinalities)
        every = self.space.decode(np.indices(sizes).reshape(len(sizes), -1).T)
        if len(set(every)) < len(every):
            raise SystemExit(f"some of {vary} make no difference where others are fixed")
        latency = self._timed(every) if timed else self._predicted(every)
        known = measure_archs(self.run, every, work=Work(workers=1, watch=_watch))
        error = [100.0 * (1.0 - known[arch].accuracy) for arch in every]
        self.values = np.stack([latency, error], axis=1)

    def _predicted(self, archs):
        (latency,) = [q for q in self.field.quantities if q.name == "latency"]
        return latency.estimate(self.field.base.encode(archs)).mean

    def _timed(self, archs):
        ((way,),) = self.field.devices.values()
        path = self.run.folder / "search" / "measured.jsonl"
        jobs = [
            Job(arch=arch_document(self.space, arch), backend=way.backend, settings=way.settings)
            for arch in archs
        ]
        options = Options(memory=False, device_name=way.device)
        profile(jobs, provide=building().provide, output=path, options=options)
        records = read_profile(path).records
        return np.array([records[job.key].latency.median_ms for job in jobs])


def _watch(progress):
    if progress.done % 50 == 0:
        left = f"{progress.seconds_left / 60:.0f} min left"
        print(f"{progress.done}/{progress.total} subnets, {left}", file=sys.stderr, flush=True)


def _minimised(row, goal):
    return -float(row[goal[1:]]) if goal.startswith("-") else float(row[goal])


def run(table, method, budget, seed):
    """Return the values that a method sees, in order."""
    table.begin()
    if method == "loop":
        loop(
            table.space,
            table.measure,
            budget=budget,
            batch=BATCH,
            seed=seed,
            minimise=("objective 0", "objective 1"),
        )
    else:
        search(table.space, table.score, engine=ENGINES[method](budget), seed=seed)
    return np.array(table.rows[:budget])


# populations of 20: larger ones have too few generations at such budgets, smaller ones do no better
ENGINES = {
    "nsga2": lambda budget: Nsga2(population=20, generations=budget // 20),
    "evolution": lambda budget: Paper(
        random=40, parents=16, crossovers=8, mutations=8, generations=budget // 16
    ),
    "random": lambda budget: Random(offspring=BATCH, generations=budget // BATCH),
}


def report(table, methods, *, at, seeds, loop_until):
    until = {m: min(loop_until if m == "loop" else max(at), max(at)) for m in methods}
    seen, seconds = {}, {}
    for method in methods:
        start = time.process_time()
        seen[method] = [run(table, method, until[method], seed) for seed in range(seeds)]
        seconds[method] = (time.process_time() - start) / seeds
    everything = table.values
    front = minimal(everything)
    low, high = front.min(axis=0), front.max(axis=0)
    worst = everything.max(axis=0)
    references = {"table": worst + 1e-9 * abs(worst), "front": high + 0.1 * (high - low)}
    print(f"{len(everything)} architectures, {len(front)} on the front")
    print("regret in %: mean (worst) of", seeds, "seeds")
    for method in methods:
        for name, reference in references.items():
            total = hypervolume(everything, reference)
            cells = []
            for count in (count for count in at if count <= until[method]):
                regrets = [
                    100 * (1 - hypervolume(values[:count], reference) / total)
                    for values in seen[method]
                ]
                cells.append(f"{count}: {statistics.mean(regrets):5.2f} ({max(regrets):5.2f})")
            print(
                f"{method:10s} reference {name}  {'  '.join(cells)}   "
                f"{seconds[method]:.1f} s per run"
            )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--table", type=Path)
    source.add_argument("--run", type=Path, help="a run with a trained supernet and predictors")
    parser.add_argument("--objectives", help="of --table: comma list, such as latency,-accuracy")
    parser.add_argument("--device", help="of --run")
    parser.add_argument("--timed", action="store_true", help="of --run: latencies are measured")
    parser.add_argument("--vary", nargs="+", help="of --run: genes; all others are fixed")
    parser.add_argument("--methods", nargs="+", default=["loop", *ENGINES])
    parser.add_argument("--at", type=int, nargs="+", default=[50, 100, 200, 400])
    parser.add_argument("--loop-until", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    if arguments.run is not None and arguments.vary:
        table = Supernet(
            arguments.run,
            device=arguments.device,
            timed=arguments.timed,
            vary=arguments.vary,
        )
    elif arguments.table is not None and arguments.objectives:
        table = Table(arguments.table, arguments.objectives.split(","))
    else:
        parser.error("--table needs --objectives, --run needs --vary")
    print(arguments.run or arguments.table.name)
    report(
        table,
        arguments.methods,
        at=arguments.at,
        seeds=arguments.seeds,
        loop_until=arguments.loop_until,
    )


if __name__ == "__main__":
    main()
