"""Time and memory of training on shared weights, against the plain networks alone.

    python benchmarks/step.py            forward + backward, then whole sandwich steps
    python benchmarks/step.py --threads 1 --repeats 5
    python benchmarks/step.py --streams 2    subnets of a step side by side

Everything is measured in one run: shared and plain alternate in one process, and each figure of
memory is the peak of a fresh process. `nasvit` at batch 8, 192 px.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

BATCH, SIDE = 8, 192


def make(threads: int):
    import torch

    import hwnas
    from hwnas.supernet import Supernet

    torch.set_num_threads(threads)
    space = hwnas.space("nasvit")
    supernet = Supernet(space).train()
    archs = {
        "largest": space.arch({**space.largest(), "resolution": SIDE}),
        "smallest": space.smallest(),
    }
    images = torch.randn(BATCH, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    return space, supernet, archs, images


def passes(supernet, arch, images):
    """Return forward + backward on the shared weights, and on the same plain network alone."""
    plain = supernet.extract(arch)

    def shared() -> None:
        supernet(images, arch).square().mean().backward()

    def alone() -> None:
        plain(images).square().mean().backward()

    return {"shared": shared, "plain": alone}


def sandwich_step(space, supernet, images, streams: int):
    import torch

    from hwnas.training.distributed import Ranks
    from hwnas.training.flat import FlatParameters
    from hwnas.training.losses import adaptive_alpha
    from hwnas.training.merges import Merge
    from hwnas.training.optimise import LossScale, make_optimiser
    from hwnas.training.plans import Moment, Task, sandwich
    from hwnas.training.step import Stepper, StepSettings

    flat = FlatParameters(supernet, decays=lambda name, tensor: tensor.dim() > 1)
    optimiser = make_optimiser(
        "adamw", flat, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
    )
    settings = StepSettings(
        distillation=adaptive_alpha(alpha_min=-1, alpha_max=1, clip=5),
        merge=Merge(priority="subnets"),
        clip=1.0,
        clip_scope="subnets",
        streams=streams,
    )
    stepper = Stepper(
        supernet, flat, optimiser, settings,
        average=None, loss_scale=LossScale(enabled=False), ranks=Ranks(),
    )  # fmt: skip
    plan = sandwich(space, random=2, distils=True)
    labels = torch.randint(0, 1000, (BATCH,), generator=torch.Generator().manual_seed(1))

    def step(number: int) -> None:
        tasks = [
            Task(arch=space.arch({**task.arch, "resolution": SIDE}), role=task.role,
                 learns_from=task.learns_from, is_supernet=task.is_supernet)
            for task in plan(Moment(0, 0, number))
        ]  # fmt: skip
        stepper(images, labels, tasks, learning_rate=1e-4)

    return step


def timed(function, *arguments) -> float:
    start = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - start


def worker(what: str, threads: int, repeats: int, tuned: bool, streams: int) -> None:
    """Print one JSON line: times, and the peak memory of this process."""
    if tuned:
        from hwnas.training.process import tune_process

        tune_process()
    space, supernet, archs, images = make(threads)
    times: dict[str, list[float]] = {}
    if what == "passes":
        for name, arch in archs.items():
            variants = passes(supernet, arch, images)
            for variant in (*variants.values(), *variants.values()):
                variant()
            for _ in range(repeats):
                for variant, function in variants.items():
                    times.setdefault(f"{name} {variant}", []).append(timed(function))
    elif what == "step":
        step = sandwich_step(space, supernet, images, streams)
        # The steps differ in their random subnets, so each is timed when its shapes are known.
        for number in [0, 1, 2, 3] * (repeats // 2 + 1):
            times.setdefault("step", []).append(timed(step, number))
        times["step"] = times["step"][4:]
    else:
        name, variant = what.split(":")
        function = passes(supernet, archs[name], images)[variant]
        for _ in range(3):
            function()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"times": times, "peak_mb": peak}))


def in_process(what: str, options: argparse.Namespace, *, tuned: bool, preload: str = "") -> dict:
    command = [
        sys.executable, __file__, "--worker", what,
        "--threads", str(options.threads), "--repeats", str(options.repeats),
        "--streams", str(options.streams),
    ]  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
    if preload:
        environment["LD_PRELOAD"] = preload
    done = subprocess.run(
        [*command, *(["--tuned"] if tuned else [])],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--streams", type=int, default=1, help="subnets of a step side by side")
    parser.add_argument("--preload", default="", help="an allocator to compare with, as a library")
    parser.add_argument("--tuned", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.threads, options.repeats, options.tuned, options.streams)
        return
    print(f"nasvit, batch {BATCH} at {SIDE} px, {options.threads} threads; medians")
    print("\nforward + backward        plain     shared   shared/plain   peak MB plain / shared")
    times = in_process("passes", options, tuned=True)["times"]
    for name in ("largest", "smallest"):
        plain, shared = (times[f"{name} {variant}"] for variant in ("plain", "shared"))
        # Neighbours in time are compared, so that a drift of the machine cancels out.
        ratio = statistics.median(s / p for s, p in zip(shared, plain, strict=True))
        peaks = [
            in_process(f"{name}:{variant}", options, tuned=True)["peak_mb"]
            for variant in ("plain", "shared")
        ]
        print(
            f"{name:20s} {statistics.median(plain):8.3f} s {statistics.median(shared):8.3f} s "
            f"{ratio:10.3f}       {peaks[0]:8.0f} / {peaks[1]:.0f}"
        )
    print("\nsandwich step (largest, smallest, 2 random; projection, AdamW)   seconds   peak MB")
    settings = [("no process settings", False, ""), ("hwnas's process settings", True, "")]
    if options.preload:
        settings.append((f"{options.preload} preloaded", True, options.preload))
    for label, tuned, preload in settings:
        result = in_process("step", options, tuned=tuned, preload=preload)
        seconds = statistics.median(result["times"]["step"])
        print(f"{label:62s} {seconds:9.3f} {result['peak_mb']:9.0f}")


if __name__ == "__main__":
    main()
