"""Errors of the default predictor on a device of one's own, for each setting of a profile.

    hwnas profile --space nasvit -n 150 -o train.jsonl
    hwnas profile --space nasvit -n 100 --seed 1 -o test.jsonl
    python benchmarks/own_profile.py --train train.jsonl --test test.jsonl

Fitted on one profile (or on `--rows` of it), tested on the architectures of the other that are
not in it. Without --test, random splits of the one profile.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.pipeline.fit import Rows, profile_rows
from hwnas.pipeline.profiled import space_in
from hwnas.predictors import Predictor, Scores, score
from hwnas.predictors.features import features
from hwnas.spaces import Space

SHOWN = ("mape", "within_5", "within_10", "spearman", "kendall", "coverage_90", "width_90")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path)
    parser.add_argument("--space")
    parser.add_argument("--rows", type=int, help="fit on so many rows only")
    parser.add_argument("--splits", type=int, default=5, help="random ones, without --test")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    space = space_in([chosen.train], name=chosen.space)
    tested = {rows.name: rows for rows in profile_rows([chosen.test], space)} if chosen.test else {}
    found = {}
    print(f"{'':72}{'train':>6}{'test':>6}" + "".join(f"{name:>12}" for name in SHOWN))
    for rows in profile_rows([chosen.train], space):
        if chosen.test and rows.name not in tested:
            continue
        if chosen.test:
            pairs = with_test(rows, tested[rows.name], chosen.rows)
        else:
            pairs = split(rows, chosen.rows, chosen.splits)
        results = [(len(train[1]), one(space, train, test)) for train, test in pairs]
        found[rows.name] = [{"fitted_on": count, **asdict(scores)} for count, scores in results]
        show(rows.name, results)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1))


Part = tuple[NDArray[np.int64], NDArray[np.float64]]


def with_test(train: Rows, test: Rows, count: int | None) -> Iterator[tuple[Part, Part]]:
    seen = set(map(tuple, train.codes.tolist()))
    new = [row for row, codes in enumerate(test.codes.tolist()) if tuple(codes) not in seen]
    yield (train.codes[:count], train.values[:count]), (test.codes[new], test.values[new])


def split(rows: Rows, count: int | None, splits: int) -> Iterator[tuple[Part, Part]]:
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(rows.values))
        fitted, other = np.split(order, [count or 3 * len(order) // 5])
        yield (rows.codes[fitted], rows.values[fitted]), (rows.codes[other], rows.values[other])


def one(space: Space, train: Part, test: Part) -> Scores:
    known, new = features(space, train[0]), features(space, test[0])
    predictor = Predictor.fit(known.genes, known.costs, train[1])
    return score(test[1], *predictor.predict(new.genes, new.costs))


def show(name: str, results: list[tuple[int, Scores]]) -> None:
    means = [float(np.mean([getattr(scores, key) for _, scores in results])) for key in SHOWN]
    counts = f"{results[0][0]:6}{results[0][1].rows:6}"
    print(f"{name:72}{counts}" + "".join(f"{value:12.3f}" for value in means), flush=True)


if __name__ == "__main__":
    main()
