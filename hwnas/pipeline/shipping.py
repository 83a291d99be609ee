"""Evaluating subnets on the machines of a Ray cluster, which share no folder with this one.

What an evaluation needs of a run travels with the workers: `run.json`, the supernet's weights, and
the resolved recipe. The data does not: each machine finds or fetches it as the recipe says.
"""

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from hwnas.io import write_atomic
from hwnas.pipeline.accuracies import CONFIG_FILE, Accuracy, evaluator
from hwnas.pipeline.config import Recipe, read_recipe, to_toml
from hwnas.pipeline.executor import Executor
from hwnas.pipeline.ray_executor import Anywhere, Ray
from hwnas.pipeline.rundir import LATEST_FILE, RUN_FILE, SUPERNET_FOLDER, Run, supernet_file
from hwnas.spaces import Arch


def evaluators_on(
    address: str,
    run: Run,
    recipe: str,
    *,
    step: int,
    tasks: int,
    workers: int | None = None,
    note: Callable[[str], None] | None = None,
) -> Executor[Arch, Accuracy]:
    """Return what evaluates subnets of a run on the cluster at `address`.

    A worker takes one core, or one GPU where the recipe allows them; at most `workers` work.
    """
    gpus = read_recipe(recipe).process.device != "cpu"
    start = partial(shipped_evaluator, parcel=parcel(run, recipe, step=step), gpus=gpus)
    most = min(tasks, workers or tasks)
    return Ray(start, address=address, places=Anywhere(most=most, gpus=gpus), note=note)


def parcel(run: Run, recipe: str, *, step: int) -> dict[str, bytes]:
    """Return the files that an evaluation reads, by their path in the run folder."""
    weights = supernet_file(run, step=step)
    return {
        RUN_FILE: (run.folder / RUN_FILE).read_bytes(),
        CONFIG_FILE: to_toml(_anywhere(read_recipe(recipe)), folder=run.folder).encode(),
        f"{SUPERNET_FOLDER}/{weights.name}": weights.read_bytes(),
        f"{SUPERNET_FOLDER}/{LATEST_FILE}": f"{weights.name}\n".encode(),
    }


def _anywhere(recipe: Recipe) -> Recipe:
    """Return a recipe whose data is found from whatever folder a worker is in."""
    if recipe.data.path is None:
        return recipe
    data = recipe.data.model_copy(update={"path": recipe.data.path.absolute()})
    return recipe.model_copy(update={"data": data})


def shipped_evaluator(
    number: int, *, parcel: Mapping[str, bytes], gpus: bool
) -> Callable[[Arch], Accuracy]:
    """Return what evaluates subnets of the run whose files are in `parcel`."""
    from hwnas.training.process import tune_process

    tune_process()
    import torch

    with tempfile.TemporaryDirectory(prefix="hwnas-") as name:
        folder = Path(name)
        for path, content in parcel.items():
            write_atomic(folder / path, content)
        # Ray shows a worker the GPU that it was given, and no other.
        seen = min(1, torch.cuda.device_count()) if gpus else 0
        recipe = str(folder / CONFIG_FILE)
        return evaluator(number, folder=folder, recipe=recipe, threads=1, gpus=seen)
