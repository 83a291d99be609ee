"""Made-up tables of whole spaces, for `search_quality.py`: nothing in them was measured.

    python benchmarks/search_tables.py cell --seed 0 --out cell0.csv

`cell`: six edges of a four-node cell with five operations in an order that means nothing; errors
depend on paths, on operations that nothing reaches, and on pairs; latencies nearly add up.
`rough`: the same with 3 % noise on errors, 5 % on latencies, and a tenth of the fastest failed.
`network`: errors from a random neural network on the choices, latencies that depend on errors.
"""

import argparse
import csv
from itertools import product
from pathlib import Path

import numpy as np

EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
CHOICES = 5
FAILED = 90.0
NONE, SKIP, CONV1, CONV3, POOL = range(CHOICES)


def every():
    return np.array(list(product(range(CHOICES), repeat=len(EDGES))))


def used(alive):
    """Return which edges lie on a path from the first node to the last."""
    reached = np.zeros((len(alive), 4), bool)
    needed = np.zeros((len(alive), 4), bool)
    reached[:, 0] = needed[:, 3] = True
    for edge, (tail, head) in enumerate(EDGES):
        reached[:, head] |= reached[:, tail] & alive[:, edge]
    for edge, (tail, head) in reversed(list(enumerate(EDGES))):
        needed[:, tail] |= needed[:, head] & alive[:, edge]
    on_path = [alive[:, e] & reached[:, t] & needed[:, h] for e, (t, h) in enumerate(EDGES)]
    return np.stack(on_path, axis=1)


def longest(operations, on_path):
    depth = np.full((len(operations), 4), -9.0)
    depth[:, 0] = 0.0
    steps = np.array([0.0, 0.0, 0.6, 1.0, 0.1])
    for edge, (tail, head) in enumerate(EDGES):
        through = np.where(on_path[:, edge], depth[:, tail] + steps[operations[:, edge]], -9.0)
        depth[:, head] = np.maximum(depth[:, head], through)
    return depth[:, 3]


def cell(seed):
    rng = np.random.default_rng(seed)
    codes = every()
    operations = rng.permutation(CHOICES)[codes]
    on_path = used(operations != NONE)
    capacity = np.array([0.0, 0.05, 0.62, 1.0, -0.15]) * (1 + 0.1 * rng.normal(size=CHOICES))
    strength = capacity[operations] * (1 + 0.15 * rng.normal(size=len(EDGES))) * on_path
    skips = (operations == SKIP) & on_path
    residual = skips[:, 3] | (skips[:, 1] & skips[:, 5])
    residual |= skips[:, 0] & (skips[:, 4] | (skips[:, 2] & skips[:, 5]))
    total = strength.sum(axis=1)
    quality = total + 0.35 * longest(operations, on_path) + 0.5 * residual * (total > 1)
    quality -= 0.15 * ((operations == POOL) & on_path).sum(axis=1)
    pairs = rng.normal(size=(len(EDGES), len(EDGES), CHOICES, CHOICES)) * 0.06
    for i in range(len(EDGES)):
        for j in range(i):
            effect = pairs[i, j][operations[:, i], operations[:, j]]
            quality = quality + effect * (on_path[:, i] & on_path[:, j])
    error = 5.5 + 30 * np.exp(-0.85 * np.maximum(quality, -1))
    error *= np.exp(rng.normal(size=len(codes)) * 0.012)
    error += 0.15 * rng.normal(size=len(codes))
    error = np.where(on_path.any(axis=1), error, FAILED)
    error = np.where(rng.random(len(codes)) < 0.003, FAILED, error)
    times = np.array([0.0, 0.12, 0.9, 1.7, 0.6]) * (1 + 0.2 * rng.normal(size=CHOICES))
    places = 1 + 0.05 * rng.normal(size=len(EDGES))
    latency = 3 + (times[operations] * places).sum(axis=1) * 1.3
    latency += (operations != NONE).sum(axis=1) * 0.05 * rng.random()
    return codes, latency * np.exp(rng.normal(size=len(codes)) * 0.02), error


def rough(seed):
    codes, latency, error = cell(seed)
    rng = np.random.default_rng(100 + seed)
    noise = np.exp(rng.normal(size=len(codes)) * 0.03)
    error = np.where(error < FAILED - 1, error * noise, error)
    fails = 0.1 * (latency < np.quantile(latency, 0.2))
    error = np.where(rng.random(len(codes)) < fails, FAILED, error)
    return codes, latency * np.exp(rng.normal(size=len(codes)) * 0.05), error


def network(seed):
    rng = np.random.default_rng(seed)
    codes = every()
    edges = np.arange(len(EDGES))[None]
    inputs = rng.normal(size=(len(EDGES), CHOICES, 4))[edges, codes].reshape(len(codes), -1)
    width = inputs.shape[1]
    hidden = np.tanh(inputs @ (rng.normal(size=(width, 32)) / np.sqrt(width) * 1.3))
    quality = hidden @ (rng.normal(size=32) / 6)
    quality = quality + 0.75 * rng.normal(size=CHOICES)[codes].mean(axis=1)
    quality = (quality - quality.mean()) / quality.std()
    error = np.exp(2.2 + 0.35 * quality) + 5
    error *= np.exp(rng.normal(size=len(codes)) * 0.01)
    error = np.where(rng.random(len(codes)) < 0.01, FAILED, error)
    times = np.abs(rng.normal(size=CHOICES)) + 0.1
    times = np.abs(times * (1 + 0.3 * rng.normal(size=(len(EDGES), CHOICES))))
    latency = np.maximum(2 + times[edges, codes].sum(axis=1) - 0.3 * quality, 0.5)
    return codes, latency * np.exp(rng.normal(size=len(codes)) * 0.03), error


KINDS = {"cell": cell, "rough": rough, "network": network}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    codes, latency, error = KINDS[arguments.kind](arguments.seed)
    with arguments.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*(f"gene:e{edge}" for edge in range(codes.shape[1])), "latency", "error"])
        for row, *goals in zip(codes.tolist(), latency.tolist(), error.tolist(), strict=True):
            writer.writerow([*row, *goals])


if __name__ == "__main__":
    main()
