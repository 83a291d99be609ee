"""Images per second of CPU time of one core that each augmentation delivers.

    python benchmarks/loading.py [digits | fashion-mnist | cifar10 | FOLDER] [--batches N]

CPU time, not wall time, so that other work on the machine does not change the figures. Images in
files are decoded in this process, as one worker would.
"""

import argparse
import itertools
import time
from pathlib import Path

import torch

from hwnas.training.augment import AUGMENTATIONS, Augmentation
from hwnas.training.data import BUILTIN, DataSettings, load_data
from hwnas.training.loader import Batches, evaluation_batches, training_batches

BATCH_SIZE = 128


def images_per_second(batches: Batches, count: int) -> float:
    """Return the rate of `count` batches; the first, which loads libraries, is not counted."""
    running = itertools.chain.from_iterable(batches.batches(epoch) for epoch in itertools.count())
    next(running)
    start = time.process_time()
    images = sum(len(labels) for _, labels in itertools.islice(running, count))
    return images / (time.process_time() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", nargs="?", default="fashion-mnist")
    parser.add_argument("--batches", type=int, default=40)
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    if wanted.data in BUILTIN:
        settings = DataSettings(name=wanted.data)
    else:
        settings = DataSettings(path=Path(wanted.data))
    data = load_data(settings)
    print(f"{data.name}: {data.image_size} pixels, {data.channels} channels")
    for name in AUGMENTATIONS:
        batches = training_batches(
            data,
            batch_size=BATCH_SIZE,
            augmentation=Augmentation(name=name),
            seed=0,
            workers=0,
        )
        print(f"{name:>12} {images_per_second(batches, wanted.batches):10.0f} images/s")
    batches = evaluation_batches(data, batch_size=BATCH_SIZE, workers=0)
    print(f"{'evaluation':>12} {images_per_second(batches, wanted.batches):10.0f} images/s")


if __name__ == "__main__":
    main()
