"""Do subnets of a step that run side by side take less time than one after the other?

    python benchmarks/streams.py --random 1

Steps of the recipe `nano-fashion` on the same batches, in turns in one process: with all threads in
each operator, and with as many streams as threads. Printed is the median ratio of neighbours.
"""

import argparse
import itertools
import statistics
import time

import torch
from training_runs import CPU

from hwnas.pipeline.config import read_recipe
from hwnas.supernet import Supernet
from hwnas.training.data import load_data
from hwnas.training.distributed import Ranks
from hwnas.training.loop import Training, batches_from
from hwnas.training.plans import Moment
from hwnas.training.prepare import prepare, space_for
from hwnas.training.process import tune_process


def training(assignments: list[str]) -> Training:
    recipe = read_recipe("nano-fashion", assignments)
    data = load_data(recipe.data)
    supernet = Supernet(space_for(recipe, data), seed=0)
    return prepare(recipe, data, supernet, device=CPU, ranks=Ranks())


def seconds_per_step(subject: Training, *, start: int, steps: int) -> float:
    batches = itertools.islice(batches_from(subject, start), steps)
    began = time.perf_counter()
    for epoch, position, (images, labels) in batches:
        tasks = subject.plan(Moment(seed=0, epoch=epoch, step=position))
        subject.stepper(images, labels, tasks, learning_rate=1e-3)
    return (time.perf_counter() - began) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=1, help="random subnets of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=8, help="of a turn")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    tune_process()
    torch.set_num_threads(options.threads)
    common = [f"process.threads={options.threads}", f"plan.random={options.random}"]
    subjects = {
        streams: training([*common, f"process.streams={streams}"])
        for streams in (1, options.threads)
    }
    times: dict[int, list[float]] = {streams: [] for streams in subjects}
    for turn in range(-1, options.turns):  # the first one warms up
        for streams, subject in subjects.items():
            start = (turn + 1) * options.steps
            seconds = seconds_per_step(subject, start=start, steps=options.steps)
            if turn >= 0:
                times[streams].append(seconds)
    for streams, found in times.items():
        print(f"{streams} at a time: {statistics.median(found):.3f} s per step")
    first, second = times.values()
    ratio = statistics.median(b / a for a, b in zip(first, second, strict=True))
    print(f"ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
