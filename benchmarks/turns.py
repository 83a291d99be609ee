"""How long does a model take after another one has had the caches, run by run?

    python -m benchmarks.turns nasvit.pack

The smallest model of a pack runs in turns with larger ones, on one thread. Prints what each of its
runs takes after a turn of the other, relative to what it takes by itself in the same minute. By
this a turn in `hwnas profile` has runs that do not count (hwnas/profiling/beside.py).
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from hwnas.profiling.backends import backend
from hwnas.profiling.packs import PackProvider, read_pack
from hwnas.profiling.privilege import privileged
from hwnas.profiling.records import Settings

RUNS, OTHERS_RUNS, ROUNDS, ALONE = 12, 2, 40, 10


def times(run: Callable[[], object], runs: int) -> list[float]:
    """Return what each of the runs took, in ms."""
    found = []
    for _ in range(runs):
        start = time.perf_counter()
        run()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def after_another(
    run: Callable[[], object], other: Callable[[], object]
) -> tuple[float, list[float]]:
    """Return the time of `run` by itself, and those of its runs after turns of `other`."""
    rows, alone = list[list[float]](), list[float]()
    for number in range(ROUNDS):
        times(other, OTHERS_RUNS)
        rows.append(times(run, RUNS))
        if number % 4 == 0:
            alone += times(run, ALONE)
    return median(alone), [median(column) for column in zip(*rows, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pack", type=Path)
    parser.add_argument("--others", type=int, default=4)
    arguments = parser.parse_args()
    opened = read_pack(arguments.pack)
    provide, settings = PackProvider(opened), Settings()
    onnxruntime = backend("onnxruntime")
    with tempfile.TemporaryDirectory() as folder:
        runs = []
        for arch in opened.archs():
            path = Path(folder) / "model.onnx"
            path.write_bytes(provide(arch, settings))
            session = onnxruntime.open(path, settings=settings)
            runs.append((median(times(session.run, 8)[3:]), session.run))
            runs.sort(key=lambda one: one[0])
            if len(runs) > 3 * arguments.others:
                del runs[len(runs) // 2]
        (_, smallest), rest = runs[0], runs[1:]
        print(f"runs 1 to {RUNS} of the smallest after {OTHERS_RUNS} of another, to its own time")
        for ms, other in rest[:: max(1, len(rest) // arguments.others)]:
            with privileged():
                alone, by_position = after_another(smallest, other)
            shares = " ".join(f"{one / alone:.2f}" for one in by_position)
            print(f"{alone:.2f} ms after one of {ms:5.2f} ms: {shares}", flush=True)


if __name__ == "__main__":
    main()
