"""How long a recipe's stages will take here and what they leave on disk, from a short calibration.

A few training steps, two subnets evaluated and two models measured are timed; the rest is counting.
What cannot be timed before there are weights (search, export) is derived from those.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from hwnas.io.interpreter import module_environment
from hwnas.pipeline.config import Recipe
from hwnas.pipeline.deploying import AUTO
from hwnas.pipeline.known_networks import DEFAULT_COUNT, Images, known
from hwnas.pipeline.training_run import device_of
from hwnas.spaces import Space

if TYPE_CHECKING:
    from hwnas.training.datasets import Data
    from hwnas.training.loop import Training

_WARM_UP, _TIMED = 6, 12
_EVALUATED = 1024
# In times that a verb takes which needs torch until it begins: what else grows with a slow machine.
_SEARCH = 1.5  # for one budget
_WORKERS = 1.5  # that evaluate, which begin at the same time
_LANDMARK = 4.0
_ROW = 0.07  # of an accuracy predictor
_CHECKPOINTS = 2
_TRAINING_STATE = 4  # weights, two moments of AdamW, and the copy that search uses


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimates:
    """Seconds by stage, and bytes in the run folder."""

    seconds: dict[str, float]
    disk_bytes: int

    def total(self) -> float:
        """Return the seconds of all stages."""
        return sum(self.seconds.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class Units:
    """Seconds of what a recipe does many times; `batches` of an epoch, `parameters` in all.

    `image`: of a subnet that is evaluated, on `heldout` or on `tested` images; `start`: of a
    process that imports torch.
    """

    start: float
    step: float
    batches: int
    image: float
    heldout: int
    tested: int
    measurement: float
    parameters: int

    def evaluation(self, recipe: Recipe) -> float:
        """Return the seconds of evaluating a subnet, and calibrating its norms before."""
        images = min(recipe.evaluation.images or self.heldout, self.heldout)
        trained = self.batches * recipe.optimiser.batch_size
        return self.image * (min(recipe.evaluation.calibration_images, trained) + images)


def estimate(recipe: Recipe, units: Units) -> Estimates:
    """Return estimates for the machine that was timed; the recipe's lengths may be others now."""
    deploy = recipe.deploy
    settings = len(deploy.threads) * len(deploy.precisions) * len(deploy.backends)
    training = units.step * recipe.schedule.steps(units.batches)
    every = recipe.evaluation.every_epochs
    evaluations = 1 + (ceil(recipe.schedule.epochs) - 1) // every if every else 1
    subnets = 2 + recipe.evaluation.random_subnets
    evaluation = units.evaluation(recipe)
    each = evaluation + units.measurement
    answers, start = len(deploy.latency), units.start
    seconds = {
        "train": training + evaluations * subnets * evaluation,
        "profile": settings * deploy.models * units.measurement,
        "fit": deploy.accuracies * (evaluation + _ROW * start) + _WORKERS * start,
        "search": answers * (_SEARCH * start + deploy.verify * each),
        "export": answers * (start + each),
        "validate": answers * (start + units.image * units.tested + units.measurement),
        "explain": units.measurement,
        "report": 0.0,
    }
    if deploy.landmarks:
        seconds["landmarks"] = _landmarks_seconds(recipe, units)
    weights = 4 * units.parameters
    disk = _CHECKPOINTS * _TRAINING_STATE * weights + 3 * answers * weights
    return Estimates(
        seconds={name: value + start for name, value in seconds.items()},
        disk_bytes=disk,
    )


def _landmarks_seconds(recipe: Recipe, units: Units) -> float:
    """Return about how long landmarks take: a step of theirs is that of one subnet."""
    named = recipe.deploy.landmarks
    count = DEFAULT_COUNT if named == (AUTO,) else len(named)
    training = units.step * recipe.schedule.steps(units.batches) / (2 + recipe.plan.random)
    each = units.evaluation(recipe) + units.measurement
    return count * (training + each + _LANDMARK * units.start)


class _EnoughError(Exception):
    """Ends a training that is only timed."""


class _NoKeeper:
    """Keeps nothing: what is trained here is thrown away."""

    def latest(self) -> None:
        """Return that there is nothing to go on from."""

    def save(self, checkpoint: object, supernet: object) -> None:
        """Keep no checkpoint."""

    def event(self, event: Mapping[str, Any]) -> None:
        """Keep no event."""


def calibrate(recipe: Recipe, *, note: Callable[[str], None]) -> Units:
    """Time the parts of a recipe on this machine; takes about ten seconds for a small space."""
    import torch

    from hwnas.supernet import Supernet
    from hwnas.training.data import load_data
    from hwnas.training.distributed import Ranks
    from hwnas.training.prepare import prepare, space_for

    if recipe.process.threads is not None:
        torch.set_num_threads(recipe.process.threads)
    data = load_data(recipe.data)
    for remark in data.notes:
        note(remark)
    _check_landmarks(recipe, data)
    note("timing a few training steps, two subnets and two models")
    of = space_for(recipe, data)
    supernet = Supernet(of, seed=recipe.process.seed)
    device = device_of(recipe)
    training = prepare(recipe, data, supernet, device=device, ranks=Ranks())
    return Units(
        start=_start_seconds(),
        step=_step_seconds(training),
        batches=len(training.batches),
        image=_image_seconds(training),
        heldout=len(data.heldout),
        tested=len(data.test or data.heldout),
        measurement=_measurement_seconds(of),
        parameters=sum(tensor.numel() for tensor in supernet.parameters()),
    )


def _check_landmarks(recipe: Recipe, data: "Data") -> None:
    """Raise for networks that cannot be trained on the data: they come last, after hours."""
    named = recipe.deploy.landmarks
    images = Images(classes=len(data.classes), channels=data.channels, side=data.image_size)
    for entry in () if named == (AUTO,) else named:
        known(entry, images)


def _start_seconds() -> float:
    begun = monotonic()
    # -P as in the stages: a torch.py in the present folder is none.
    command = [sys.executable, "-P", "-c", "import torch"]
    subprocess.run(command, check=True, env=module_environment({}))  # noqa: S603 - our own
    return monotonic() - begun


def _step_seconds(training: "Training") -> float:
    from hwnas.training.loop import train

    steps = min(_WARM_UP + _TIMED, training.steps)
    warm_up = min(_WARM_UP, steps // 2)
    times = [monotonic()]

    def watch(_progress: object) -> None:
        times.append(monotonic())
        if len(times) > steps:
            raise _EnoughError

    with suppress(_EnoughError):
        train(training, _NoKeeper(), watch=watch)
    return (times[-1] - times[warm_up]) / (len(times) - 1 - warm_up)


def _image_seconds(training: "Training") -> float:
    from hwnas.training.measure import accuracies

    recipe = training.recipe
    images = min(_EVALUATED, len(training.data.heldout))
    part = recipe.evaluation.model_copy(update={"images": images})
    space = training.supernet.space
    # The first one loads the images, which others find loaded.
    archs = [space.smallest(), space.largest(), space.smallest()]
    times = [
        monotonic()
        for _accuracy in accuracies(
            training.supernet,
            archs,
            training.data,
            recipe.model_copy(update={"evaluation": part}),
            device=training.device,
        )
    ]
    calibration = min(recipe.evaluation.calibration_images, len(training.data.train))
    return (times[-1] - times[0]) / (len(archs) - 1) / (calibration + images)


def _measurement_seconds(of: Space) -> float:
    from hwnas.pipeline.measuring import from_space
    from hwnas.profiling.driver import profile
    from hwnas.profiling.jobs import Options, grid

    source = from_space(of, 2)
    begun = monotonic()
    with tempfile.TemporaryDirectory() as folder:
        profile(
            grid(source.archs),
            provide=source.provide,
            output=Path(folder) / "calibration.jsonl",
            # Its own lock: whoever measures here now is no reason not to begin training.
            options=Options(force=True, lock_folder=Path(folder)),
        )
    return (monotonic() - begun) / 2
