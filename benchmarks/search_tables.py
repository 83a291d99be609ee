"""Made-up tables of whole spaces, for `search_quality.py`: nothing in them was measured.

    python benchmarks/search_tables.py cell --seed 0 --out cell0.csv

`cell`: six edges of a four-node cell with five operations in an order that means nothing; errors
depend on paths, on operations that nothing reaches, and on pairs; latencies nearly add up.
`rough`: the same with 3 % noise on errors, 5 % on latencies, and a tenth of the fastest failed.
`network`: errors from a random neural network on the choices, latencies that depend on errors.
`graph`: the cell again, but operations that no path meets cost nothing, depths and numbers of
paths count rather than operations, and noise grows with the error.
`stages`: depths and kernels of three stages, a width, a resolution: products, saturation, steps.
`words`: eight genes of three values whose worth depends on two other genes each.
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


def graph(seed):
    rng = np.random.default_rng([seed, 7])
    codes = every()
    operations = rng.permutation(CHOICES)[codes]
    on_path = used(operations != NONE)
    passing = np.array([0, 1.0, 0.9, 1.0, 0.8]) * (1 + 0.1 * rng.normal(size=CHOICES))
    work = np.array([0, 0.0, 0.9, 1.5, 0.25])
    signal, depth = np.zeros((len(codes), 4)), np.zeros((len(codes), 4))
    signal[:, 0] = 1
    for edge, (tail, head) in enumerate(EDGES):
        sent = signal[:, tail] * passing[operations[:, edge]] * on_path[:, edge]
        depth[:, head] += sent * (depth[:, tail] + work[operations[:, edge]])
        signal[:, head] += sent
    paths = signal[:, 3]
    mean_depth = depth[:, 3] / np.maximum(paths, 1e-9)
    quality = 1.3 * np.tanh(mean_depth) + 0.5 * np.log1p(paths) + 0.25 * mean_depth
    quality -= 0.12 * np.maximum(mean_depth - 2.2, 0) ** 2 * (paths < 2)
    worth = np.array([0, 0, 0.06, 0.1, -0.03])
    quality = quality + (worth[operations] * on_path).sum(axis=1)
    error = 5 + 40 * np.exp(-1.4 * quality)
    error *= np.exp(rng.normal(size=len(codes)) * 0.015 * (1 + error / 10))
    error = np.where(on_path.any(axis=1), error, FAILED)
    times = np.array([0, 0.05, 0.55, 1.1, 0.5]) * (1 + 0.25 * rng.normal(size=CHOICES)).clip(0.4)
    places = 1 + 0.1 * rng.normal(size=len(EDGES))
    latency = 1.5 + (times[operations] * places * on_path).sum(axis=1)
    latency += 0.15 * (on_path.sum(axis=1) > 3)
    return codes, latency * np.exp(rng.normal(size=len(codes)) * 0.03), error


def stages(seed):
    rng = np.random.default_rng([seed, 8])
    codes = np.array(list(product(*map(range, (4, 4, 4, 3, 3, 3, 3, 3)))))
    depths, kernels = codes[:, :3] + 1, codes[:, 3:6] * 2 + 3
    width, side = codes[:, 6], np.array([0.8, 1.0, 1.4])[codes[:, 7]]
    channels = np.array([16, 32, 64.0]) * np.array([0.5, 0.75, 1.0])[width][:, None]
    area = (side[:, None] * np.array([1, 0.5, 0.25])) ** 2
    macs = (depths * area * (channels**2 * 6 + channels * 6 * kernels**2)).sum(axis=1)
    maps = (depths * area * channels).sum(axis=1)
    params = (depths * channels**2 * 6).sum(axis=1)
    latency = 0.8 + 0.0025 * macs + 0.02 * maps + 0.08 * depths.sum(axis=1)
    latency = latency + 0.2 * (kernels == 7).any(axis=1)
    latency *= np.exp(0.06 * rng.normal(size=(3, 3))[width, codes[:, 7]])
    quality = 0.45 * np.log(params / params.mean()) + 0.3 * np.log(macs / macs.mean())
    quality += 0.15 * np.log(depths.prod(axis=1))
    quality -= 0.08 * abs(np.log(depths[:, 0] / depths[:, 2]) - 0.3 * rng.normal())
    quality += 0.1 * (1 - ((kernels.mean(axis=1) - 5) / 2 - np.log(side)) ** 2)
    quality += (0.08 * rng.normal(size=(3, 3)))[np.arange(3), codes[:, 3:6]].sum(axis=1)
    error = (22 + 12 * np.exp(-0.9 * quality)) * np.exp(0.012 * rng.normal(size=len(codes)))
    return codes, latency * np.exp(0.03 * rng.normal(size=len(codes))), error


def words(seed):
    rng = np.random.default_rng([seed, 9])
    codes = np.array(list(product(range(3), repeat=8)))
    quality = np.zeros(len(codes))
    for gene in range(8):
        a, b = rng.choice([other for other in range(8) if other != gene], 2, replace=False)
        own, second, third = codes[:, gene], codes[:, a], codes[:, b]
        quality += 0.8 * rng.normal(size=3)[own] + 0.7 * rng.normal(size=(3, 3))[own, second]
        quality += 0.45 * rng.normal(size=(3, 3, 3))[own, second, third]
    quality = (quality - quality.mean()) / quality.std()
    costs = np.abs(rng.normal(size=(8, 3))) + 0.1
    latency = 2 + costs[np.arange(8), codes].sum(axis=1) + 0.25 * quality
    error = quality + 0.8 * (latency - latency.mean()) / latency.std()
    error = (6 + 6 * np.exp(-0.5 * error)) * np.exp(0.015 * rng.normal(size=len(codes)))
    return codes, latency * np.exp(0.02 * rng.normal(size=len(codes))), error


KINDS = {
    "cell": cell,
    "rough": rough,
    "network": network,
    "graph": graph,
    "stages": stages,
    "words": words,
}


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
