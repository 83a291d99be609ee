"""Do subnets keep their order inside the supernet, and their accuracy?

    python benchmarks/ranking.py --architectures 16 --epochs 2

Architectures spread over the costs of `nano` are trained alone for the same number of images as
the supernet, and compared with what they inherit from it: Kendall's tau and the mean difference,
on the same held-out images, batch norms calibrated the same way. Both are trained by the recipe
`nano-fashion`; `--set` changes it. With `--seeds 2` each is trained alone twice: tau between the
two says how well an order can be known at all, from one training of each. `--fix resolution=24`
trains on a part of the space, to see which choices are in each other's way.
"""

import argparse
import json
import statistics
import time
from itertools import combinations, pairwise

import numpy as np
from training_runs import in_processes, recipe_of, trained_alone, trained_supernet

import hwnas
from hwnas.training.distributed import Ranks
from hwnas.training.measure import accuracies
from hwnas.training.prepare import space_for

COMMON = ["evaluation.every_epochs=0", "evaluation.random_subnets=0"]


def kendall(first: list[float], second: list[float]) -> float:
    """Return tau-b."""
    pairs = [
        (np.sign(a - b), np.sign(c - d))
        for (a, c), (b, d) in combinations(list(zip(first, second, strict=True)), 2)
    ]
    agreement = sum(x * y for x, y in pairs)
    return float(agreement / np.sqrt(sum(x != 0 for x, _ in pairs) * sum(y != 0 for _, y in pairs)))


def chosen(space, count: int) -> list:
    low, high = (int(value) for value in space.cost([space.smallest(), space.largest()]).macs)
    edges = np.linspace(low, high, count + 1)
    rng = np.random.default_rng(7)
    return [space.sample(1, rng, macs=(a, b))[0] for a, b in pairwise(edges)]


def fixed_genes(texts: list[str], space) -> dict[str, int]:
    fixed = {}
    for text in texts:
        gene, _, value = text.partition("=")
        accepted = [str(choice) for choice in space.genes.get(gene, ())]
        if value not in accepted:
            known = accepted or space.genes
            raise SystemExit(f"error: --fix {text}; accepted: {', '.join(known)}")
        fixed[gene] = int(value)
    return fixed


def inherited(job: dict) -> dict:
    start = time.process_time()
    fixed = job["fixed"]
    training, _ = trained_supernet(job["set"], fixed)
    seconds = time.process_time() - start
    whole = space_for(training.recipe, training.data)
    archs = [
        arch
        for arch in chosen(whole, job["architectures"])
        if all(arch[gene] == value for gene, value in fixed.items())
    ]
    values = accuracies(
        training.supernet, archs, training.data, training.recipe,
        device=training.device, ranks=Ranks(),
    )  # fmt: skip
    macs = training.supernet.space.cost(archs).macs
    return {
        "archs": [dict(arch) for arch in archs],
        "accuracy": list(values),
        "macs": [int(count) for count in macs],
        "seconds": seconds,
    }


def print_inherited(supernet: dict) -> None:
    """Print accuracies in order of MACs, and their mean; the first and the last are the ends."""
    for macs, accuracy in sorted(zip(supernet["macs"], supernet["accuracy"], strict=True)):
        print(f"{macs / 1e6:7.2f}M {100 * accuracy:8.2f}")
    print(f"mean {100 * statistics.mean(supernet['accuracy']):.2f}; "
          f"{supernet['seconds']:.0f} core seconds of training")  # fmt: skip


def print_comparison(
    all_macs: list[int], shared: list[float], by_seed: list[list[float]], first_seed: int
) -> None:
    """Print what is inherited beside what is reached alone, with one or several seeds."""
    alone = [statistics.mean(found) for found in zip(*by_seed, strict=True)]
    print(f"\n{'MACs':>8s} {'alone':>8s} {'inherited':>10s}   (held-out accuracy in %)")
    for macs, first, second in sorted(zip(all_macs, alone, shared, strict=True)):
        print(f"{macs / 1e6:7.2f}M {100 * first:8.2f} {100 * second:10.2f}")
    difference = statistics.mean(100 * (b - a) for a, b in zip(alone, shared, strict=True))
    print(f"\nKendall tau {kendall(alone, shared):.3f}; inherited minus alone, mean "
          f"{difference:+.2f} points")  # fmt: skip
    for (i, one), (j, other) in combinations(enumerate(by_seed, first_seed), 2):
        spread = statistics.stdev(b - a for a, b in zip(one, other, strict=True)) / np.sqrt(2)
        print(f"alone with seed {i} and with seed {j}: tau {kendall(one, other):.3f}; one training "
              f"has a standard deviation of {100 * spread:.2f} points")  # fmt: skip
    if len(by_seed) > 1:
        taus = ", ".join(f"{kendall(one, shared):.3f}" for one in by_seed)
        print(f"inherited and alone, seed by seed: tau {taus}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architectures", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--only-inherited", action="store_true", help="train none alone")
    parser.add_argument("--every", type=int, default=1, help="train every n-th alone")
    parser.add_argument("--seeds", type=int, default=1, help="trainings of each alone")
    parser.add_argument("--fix", action="append", default=[], metavar="GENE=VALUE",
                        help="train a supernet in which this gene has one value; only "
                        "architectures with that value are compared")  # fmt: skip
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        job = json.loads(options.job)
        alone = "genes" in job
        print(json.dumps(trained_alone(job["genes"], job["set"]) if alone else inherited(job)))
        return
    common = [*COMMON, f"schedule.epochs={options.epochs}", *options.set]
    fixed = fixed_genes(options.fix, hwnas.space(recipe_of(common).space.name))
    job = {"set": common, "architectures": options.architectures, "fixed": fixed}
    ((_, supernet),) = in_processes(__file__, [job], processes=1)
    print_inherited(supernet)
    if options.only_inherited:
        return
    archs, shared, all_macs = (
        supernet[key][options.every - 1 :: options.every] for key in ("archs", "accuracy", "macs")
    )
    first_seed = recipe_of(common).process.seed
    jobs = [
        {"genes": genes, "set": [*common, f"process.seed={first_seed + number}"]}
        for number in range(options.seeds)
        for genes in archs
    ]
    values = [value for _, value in in_processes(__file__, jobs, processes=options.processes)]
    by_seed = [values[place : place + len(archs)] for place in range(0, len(values), len(archs))]
    print_comparison(all_macs, shared, by_seed, first_seed)


if __name__ == "__main__":
    main()
