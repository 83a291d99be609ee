"""Accuracies of subnets, which accuracy predictors are fitted on: `RUN/accuracies.jsonl`.

Each subnet's batch norms are calibrated on training images, then it is evaluated on the held-out
part of the training set, never on the test part. A subnet's line is on disk as soon as it is
known, so whatever ends a session costs at most the subnets in hand. Accuracies belong to one state
of the supernet; those of an earlier state are set aside, not mixed in.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import Journal, Schema, read_journal
from hwnas.pipeline.executor import Executor, Here, Processes
from hwnas.pipeline.rundir import Run, latest_step, load_supernet, open_run, space_of
from hwnas.spaces import Arch, Space

if TYPE_CHECKING:
    import torch
    from torch import Tensor


SCHEMA = Schema(name="hwnas/accuracies", version=1)
FILE, CONFIG_FILE = "accuracies.jsonl", "config.toml"
_PURPOSE = 21  # of the random numbers that choose architectures
_DRAWN_AT_ONCE = 64
_FRUITLESS = 200  # draws without a new architecture after which a space counts as used up
_KEPT_BYTES = 2**30  # of held-out images that a worker keeps in memory
_TASKS_PER_WORKER = 4  # fewer do not pay for another process


@dataclass(frozen=True, kw_only=True, slots=True)
class Accuracy:
    """Top-1 accuracy of a subnet on `images` held-out images, and how long that took."""

    arch: Arch
    accuracy: float
    images: int
    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measuring:
    """How far measuring is."""

    done: int
    total: int
    seconds_left: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """How subnets are evaluated. `recipe`: for runs that have none, a name or a TOML file.

    `ray`: the address of a cluster whose machines do it instead of processes here.
    """

    workers: int | None = None
    recipe: str | None = None
    ray: str | None = None
    watch: Callable[[Measuring], None] | None = None
    note: Callable[[str], None] | None = None


def spread(space: Space, n: int, *, seed: int) -> list[Arch]:
    """Return `n` distinct architectures spread over the range of MACs.

    The smallest and the largest come first. The same seed gives the same list, and a longer list
    begins with the shorter one.
    """
    if n > space.count():
        raise UsageError(f"{n} architectures asked for, {space.name} has only {space.count()}")
    chosen = dict.fromkeys((space.smallest(), space.largest()))
    fruitless = draws = 0
    while len(chosen) < n:
        rng = np.random.default_rng([seed, _PURPOSE, draws])
        before, draws = len(chosen), draws + 1
        bounds = (0.0, float("inf")) if space.parts else None
        chosen |= dict.fromkeys(space.sample(_DRAWN_AT_ONCE, rng, macs=bounds))
        fruitless = fruitless + 1 if len(chosen) == before else 0
        if fruitless > _FRUITLESS:
            raise UsageError(f"found only {len(chosen)} architectures of {space.name}, not {n}")
    return list(chosen)[:n]


def read_accuracies(run: Run) -> list[Accuracy]:
    """Return the accuracies of the present supernet of a run, in the order measured."""
    path = run.folder / FILE
    if not path.exists():
        return []
    header, *lines = read_journal(path) or [{}]
    if not header:
        return []
    header = SCHEMA.check(header, str(path))
    if header.get("space") != run.space:
        raise FormatError(f"{path}: is of space {header.get('space')!r}, expected {run.space!r}")
    if header.get("step") != latest_step(run):
        return []
    space = space_of(run)
    return [_accuracy(space, line, f"{path}, line {i}") for i, line in enumerate(lines, start=2)]


def measure_accuracies(
    run: Run,
    n: int,
    *,
    seed: int = 0,
    work: Work = Work(),
) -> list[Accuracy]:
    """Return at least `n` accuracies of a run, measuring those that are missing."""
    known = read_accuracies(run)
    if len(known) >= n:
        return known
    there = {entry.arch for entry in known}
    fresh = [arch for arch in spread(space_of(run), n, seed=seed) if arch not in there]
    measure_archs(run, fresh[: n - len(known)], work=work)
    return read_accuracies(run)


def measure_archs(
    run: Run,
    archs: Sequence[Arch],
    *,
    work: Work = Work(),
) -> dict[Arch, Accuracy]:
    """Return the accuracy of each architecture, measuring those that are not on record."""
    step = latest_step(run)
    recipe = work.recipe or str(run.folder / CONFIG_FILE)
    if work.recipe is None and not (run.folder / CONFIG_FILE).is_file():
        raise UsageError(
            f"{run.folder}: has no {CONFIG_FILE}, which says what data to evaluate on",
            "name a recipe with the data: --recipe my.toml",
        )
    with _locked(run.folder):
        _set_aside(run, step, work)
        known = {entry.arch: entry for entry in read_accuracies(run)}
        missing = [arch for arch in dict.fromkeys(archs) if arch not in known]
        if missing:
            _measure(run, missing, recipe=recipe, step=step, work=work)
            known = {entry.arch: entry for entry in read_accuracies(run)}
    return {arch: known[arch] for arch in archs}


def _measure(run: Run, archs: list[Arch], *, recipe: str, step: int, work: Work) -> None:
    if work.ray is not None:
        from hwnas.pipeline.shipping import evaluators_on

        executor = evaluators_on(work.ray, run, recipe, step=step, tasks=len(archs),
                                 workers=work.workers, note=work.note)  # fmt: skip
    else:
        executor = _executor(run.folder, recipe, len(archs), work.workers)
    for arch in archs:
        executor.submit(arch)
    first = 0.0
    path = run.folder / FILE
    with Journal(path) as journal:
        if path.stat().st_size == 0:
            journal.append(
                SCHEMA.stamp({"space": run.space, "options": dict(run.options), "step": step,
                              "part": "heldout"})
            )  # fmt: skip
        for done, entry in enumerate(executor, start=1):
            journal.append(
                {"arch": entry.arch.to_json(), "digest": entry.arch.digest,
                 "accuracy": entry.accuracy, "images": entry.images, "seconds": entry.seconds}
            )  # fmt: skip
            if work.watch is not None:
                # Counted from the first result: workers take a while to start.
                first = first or time.monotonic()
                each = (time.monotonic() - first) / (done - 1) if done > 1 else entry.seconds
                left = each * (len(archs) - done)
                work.watch(Measuring(done=done, total=len(archs), seconds_left=left))


def _executor(
    folder: Path, recipe: str, tasks: int, workers: int | None
) -> Executor[Arch, Accuracy]:
    from hwnas.training.process import tune_process

    tune_process()
    gpus = _gpus(recipe)
    if workers is None:
        workers = gpus or max(1, min(_cores(), tasks // _TASKS_PER_WORKER))
    start = partial(
        evaluator,
        folder=folder,
        recipe=recipe,
        threads=max(1, _cores() // workers) if workers > 1 else None,
        gpus=gpus,
    )
    return Here(start) if workers == 1 else Processes(start, workers=workers)


def _gpus(recipe: str) -> int:
    """Return how many GPUs may be used."""
    import torch

    from hwnas.pipeline.config import read_recipe

    if read_recipe(recipe).process.device == "cpu":
        return 0
    return torch.cuda.device_count()


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def evaluator(
    number: int, *, folder: Path, recipe: str, threads: int | None, gpus: int
) -> Callable[[Arch], Accuracy]:
    """Return what evaluates subnets of the run in `folder` in worker `number`."""
    from hwnas.training.process import tune_process

    tune_process()
    import torch

    from hwnas.pipeline.config import read_recipe
    from hwnas.pipeline.training_run import check_images_of
    from hwnas.supernet.evaluate import evaluate
    from hwnas.training.data import load_data
    from hwnas.training.loader import evaluation_batches
    from hwnas.training.measure import calibration_images

    if threads is not None:
        torch.set_num_threads(threads)
    device = torch.device("cuda", number % gpus) if gpus else torch.device("cpu")
    settings = read_recipe(recipe)
    data = load_data(settings.data)
    supernet = load_supernet(open_run(folder)).to(device)
    if supernet.space.options.get("classes") != len(data.classes):
        raise UsageError(
            f"{folder}: its networks have {supernet.space.options.get('classes')} classes, "
            f"the data of the recipe {len(data.classes)}"
        )
    check_images_of(folder, data)
    images = min(settings.evaluation.images or len(data.heldout), len(data.heldout))
    calibration = [batch.to(device) for batch in calibration_images(data, settings)]
    heldout = evaluation_batches(
        data, "heldout", batch_size=settings.evaluation.batch_size,
        limit=settings.evaluation.images,
    )  # fmt: skip
    fits = images * data.channels * data.image_size**2 * 4 <= _KEPT_BYTES
    kept = [*_moved(heldout.batches(0), device)] if fits else None

    def work(arch: Arch) -> Accuracy:
        started = time.monotonic()
        batches = kept if kept is not None else _moved(heldout.batches(0), device)
        value = evaluate(supernet, arch, calibration=calibration, batches=batches)
        seconds = time.monotonic() - started
        return Accuracy(arch=arch, accuracy=value, images=images, seconds=seconds)

    return work


def _moved(
    batches: "Iterable[tuple[Tensor, Tensor]]", device: "torch.device"
) -> "Iterator[tuple[Tensor, Tensor]]":
    for images, labels in batches:
        yield images.to(device), labels.to(device)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time add to the accuracies of a run."""
    from filelock import FileLock, Timeout

    lock = FileLock(folder / f"{FILE}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise HwnasError(
            f"{folder}: another process is measuring accuracies of this run", "wait for it"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _set_aside(run: Run, step: int, work: Work) -> None:
    """Rename accuracies of another state of the supernet."""
    path = run.folder / FILE
    lines = read_journal(path) if path.exists() else []
    if not lines or lines[0].get("step") == step:
        return
    old = SCHEMA.check(lines[0], str(path)).get("step")
    aside = path.with_name(f"accuracies-step-{old}.jsonl")
    os.replace(path, aside)
    if work.note is not None:
        work.note(f"{path} was of the supernet after {old} steps; it is {aside.name} now")


def _accuracy(space: Space, line: dict[str, Any], origin: str) -> Accuracy:
    try:
        value, images, seconds = line["accuracy"], line["images"], line["seconds"]
        arch = space.arch_from_json(line["arch"], origin)
    except KeyError as error:
        raise FormatError(f"{origin}: has no {error}") from error
    if not isinstance(value, int | float) or not 0 <= value <= 1:
        raise FormatError(f"{origin}: accuracy is {value!r}, expected a share")
    return Accuracy(arch=arch, accuracy=float(value), images=images, seconds=seconds)
