"""Errors of the default predictor against common ones, on tables of measurements.

    python benchmarks/predictors.py --data DIR [--quick] [--json FILE]

DIR holds CSV files with `gene:*`, `cost:*` and target columns. Every method is fitted on the same
random rows and tested on the same 1,000 others. Errors are MAPE in percent, means over seeds.
"""

import argparse
import json
import os
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingRegressor,
    RandomForestRegressor,
)
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hwnas.predictors import Predictor, Table, read_table, score

Array = NDArray[np.float64]
SIZES = (20, 50, 100, 300, 900)
TEST_ROWS = 1000
BATCHES = (1, 128, 4096)


def random_forest(n: int) -> object:
    return RandomForestRegressor(100, random_state=0)


def extra_trees(n: int) -> object:
    return ExtraTreesRegressor(100, random_state=0)


def ridge(n: int) -> object:
    return make_pipeline(StandardScaler(), RidgeCV(np.logspace(-4, 4, 33)))


def gaussian_process(n: int) -> object:
    kernel = ConstantKernel() * DotProduct() + ConstantKernel() * RBF(5.0) + WhiteKernel(0.1)
    return make_pipeline(StandardScaler(), GaussianProcessRegressor(kernel, normalize_y=True))


def boosted(n: int) -> object:
    leaf = 20 if n >= 300 else max(2, n // 15)
    return HistGradientBoostingRegressor(min_samples_leaf=leaf, learning_rate=0.05, max_iter=300)


METHODS: dict[str, tuple[Callable[[int], object], bool, bool]] = {
    # name: model, does it see genes, does it see costs
    "forest, genes": (random_forest, True, False),
    "forest + costs": (random_forest, True, True),
    "extra trees + costs": (extra_trees, True, True),
    "ridge, costs": (ridge, False, True),
    "Gaussian process": (gaussian_process, True, True),
    "boosted + costs": (boosted, True, True),
}


def columns(table: Table, rows: Array, genes: bool, costs: bool) -> Array:
    return np.hstack([table.genes[rows]] * genes + [table.costs[rows]] * costs)


def one_split(table: Table, y: Array, size: int, seed: int, others: bool) -> dict[str, dict]:
    order = np.random.default_rng(seed).permutation(len(y))
    train, test = order[:size], order[size:][-TEST_ROWS:]
    found = {}
    started = time.process_time()
    predictor = Predictor.fit(table.genes[train], table.costs[train], y[train])
    seconds = time.process_time() - started
    scores = score(y[test], *predictor.predict(table.genes[test], table.costs[test]))
    found["hwnas"] = {name: getattr(scores, name) for name in scores.__slots__}
    found["hwnas"] |= {"fit_cpu_s": seconds}
    for batch in BATCHES if seed == 0 else ():
        found["hwnas"][f"rows_per_s_{batch}"] = speed(predictor, table, batch)
    for name, (make, genes, costs) in METHODS.items() if others else ():
        started = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make(size).fit(columns(table, train, genes, costs), y[train])
        seconds = time.process_time() - started
        mean = model.predict(columns(table, test, genes, costs))
        found[name] = {"mape": 100 * np.mean(np.abs(mean / y[test] - 1)), "fit_cpu_s": seconds}
    return found


def speed(predictor: Predictor, table: Table, batch: int) -> float:
    """Return rows per CPU second, intervals included, best of three."""
    rows = np.random.default_rng(0).integers(0, len(table.genes), batch)
    genes, costs = table.genes[rows], table.costs[rows]
    repeats = max(3, 8192 // batch) if batch > 1 else 200
    best = 0.0
    for _ in range(3):
        started = time.process_time()
        for _ in range(repeats):
            predictor.predict(genes, costs)
        best = max(best, batch * repeats / (time.process_time() - started))
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--quick", action="store_true", help="two sizes, one seed")
    parser.add_argument("--alone", action="store_true", help="only the default predictor")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    sizes = (20, 100) if chosen.quick else chosen.sizes
    seeds = 1 if chosen.quick else chosen.seeds
    everything = []
    for path in sorted(chosen.data.glob("*.csv")):
        table = read_table(path)
        for target in table.target_names:
            results = run(table, target, sizes, seeds, others=not chosen.alone)
            everything.append({"table": path.stem, "target": target, "results": results})
            show(f"{path.stem} {target}", results, sizes)
    if chosen.json:
        chosen.json.write_text(json.dumps(everything, indent=1, default=float))


def run(table: Table, target: str, sizes: tuple[int, ...], seeds: int, *, others: bool) -> dict:
    y = table.target(target)
    results: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for size in sizes:
        splits = [one_split(table, y, size, seed, others) for seed in range(seeds)]
        for name in splits[0]:
            keys = splits[0][name]
            results[name][size] = {
                key: float(np.mean([split[name][key] for split in splits if key in split[name]]))
                for key in keys
            }
    return results


def show(title: str, results: dict, sizes: tuple[int, ...]) -> None:
    print(f"\n{title}: MAPE in percent", flush=True)
    print(f"{'rows':22}" + "".join(f"{size:>9}" for size in sizes))
    for name, by_size in results.items():
        print(f"{name:22}" + "".join(f"{by_size[size]['mape']:9.2f}" for size in sizes))
    details = {
        "coverage of 90 % (%)": "coverage_90",
        "width (%)": "width_90",
        "within 5 % (%)": "within_5",
        "Spearman": "spearman",
        "fit (CPU s)": "fit_cpu_s",
    }
    details |= {f"krows/s, batch {batch}": f"rows_per_s_{batch}" for batch in BATCHES}
    for label, key in details.items():
        values = [results["hwnas"][size][key] for size in sizes]
        if key.startswith("rows"):
            values = [value / 1000 for value in values]
        print(f"  {label:20}" + "".join(f"{value:9.3g}" for value in values))


if __name__ == "__main__":
    main()
