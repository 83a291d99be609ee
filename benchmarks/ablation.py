"""The shape of NASViT's Table 7 on small data: what each of its three changes brings.

    python benchmarks/ablation.py --data fashion-mnist --seeds 3 --epochs 1
    python benchmarks/ablation.py --data cifar10 --set data.path=FOLDER

Accuracies are on held-out training images; the conflict ratio is the mean over the second half
of training of the share of layers whose supernet and subnet gradients have a negative cosine.
Each run is a process with one thread.
"""

import argparse
import json
import statistics

from training_runs import in_processes, trained_supernet

# Each row changes what the row before it has; the last two are alternatives to each other.
BASELINE = [
    'augmentation.name="alphanet"', "regularisation.dropout=0.2", "regularisation.drop_path=0.2",
    "optimiser.weight_decay=0.00001", 'space.options.scaling="none"', 'merge.kind="sum"',
]  # fmt: skip
WEAK = [
    'augmentation.name="weak"', "optimiser.weight_decay=0.0", 'space.options.scaling="none"',
    'merge.kind="sum"',
]  # fmt: skip
SWITCHABLE = [*WEAK[:2], 'merge.kind="sum"']
VARIANTS = {
    "baseline": BASELINE,
    "weak augmentation": WEAK,
    "+ switchable scaling": SWITCHABLE,
    "+ projection to subnets": [*SWITCHABLE[:2], 'merge.kind="project"'],
    "+ projection to supernet": [
        *SWITCHABLE[:2], 'merge.kind="project"', 'merge.priority="supernet"',
    ],
}  # fmt: skip
COMMON = ['losses.distillation="alpha"', "evaluation.every_epochs=0", "evaluation.random_subnets=4",
          "merge.measure_conflicts_every=10"]  # fmt: skip


def one(job: dict) -> dict[str, float]:
    _training, keeper = trained_supernet(job["set"])
    accuracy = next(e["accuracy"] for e in keeper.events if e["kind"] == "evaluation")
    randoms = [value for name, value in accuracy.items() if name.startswith("random")]
    return {
        "smallest": 100 * accuracy["smallest"],
        "random": 100 * statistics.mean(randoms),
        "largest": 100 * accuracy["largest"],
        "conflicts": 100 * keeper.conflict_ratio(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(one(json.loads(options.job))))
        return
    common = [*COMMON, f'data.name="{options.data}"', f"schedule.epochs={options.epochs}",
              *options.set]  # fmt: skip
    jobs = [
        {"name": name, "set": [*common, *changes, f"process.seed={seed}"]}
        for seed in range(options.seeds)
        for name, changes in VARIANTS.items()
    ]
    results: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    for job, result in in_processes(__file__, jobs, processes=options.processes):
        results[job["name"]].append(result)
    columns = ("smallest", "random", "largest", "conflicts")
    print(f"{options.data}, nano, {options.epochs} epochs, {options.seeds} seeds: mean +- std")
    print(f"{'':26s}" + "".join(f"{column:>16s}" for column in columns))
    for name, rows in results.items():
        cells = []
        for column in columns:
            values = [row[column] for row in rows]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.mean(values):9.2f} +-{spread:4.2f}")
        print(f"{name:26s}" + "".join(f"{cell:>16s}" for cell in cells))


if __name__ == "__main__":
    main()
