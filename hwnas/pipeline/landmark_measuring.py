"""Landmarks of a run, from their names to lines of its journal: trained, exported, measured here.

Latencies are measured under the guarded protocol, in the way the run's subnets are meant to run.
What is trained or measured already is not done again; everything is on disk at once.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from hwnas.errors import UsageError
from hwnas.export.checks import check_difference, parity_limit
from hwnas.export.foreign import foreign_bytes, in_precision
from hwnas.export.precisions import FP32
from hwnas.export.reference import relative_difference
from hwnas.export.validate_run import open_runner
from hwnas.io import write_atomic
from hwnas.pipeline.deployments import PLAINEST, Deployment, deployments
from hwnas.pipeline.finetuning import SILENT, Watching
from hwnas.pipeline.fronts import FOLDER, FRONT_FILE, Front, latest_front
from hwnas.pipeline.landmark_training import (
    LANDMARKS_FOLDER,
    Planned,
    Trained,
    read_network,
    train_landmark,
)
from hwnas.pipeline.landmarks import (
    TIMM,
    Landmark,
    add_landmark,
    landmarks_path,
    read_landmarks,
)
from hwnas.pipeline.predictors import predictors_of
from hwnas.pipeline.rundir import Run
from hwnas.pipeline.sealing import proof_images
from hwnas.profiling.backends import backend
from hwnas.profiling.driver import known_profile, missing_jobs, profile
from hwnas.profiling.jobs import Job, Options, Progress
from hwnas.profiling.machine import device as this_device
from hwnas.profiling.paces import paces_here
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Settings
from hwnas.training.measure import calibration_images

MEASURED_FILE = "measured.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A trained landmark as a file, and the precision that it is in."""

    trained: Trained
    path: Path
    precision: str


def way_here(run: Run) -> Deployment:
    """Return how the subnets of a run are meant to run on this machine.

    That is the way of most choices that a search recommends, or else the plainest that is known.
    Raises UsageError where latencies are known of other machines only.
    """
    here = this_device()
    every = deployments(predictors_of(run))
    mine = [way for way in every if way.fingerprint == here.fingerprint]
    if every and not mine:
        others = ", ".join(dict.fromkeys(way.device for way in every))
        raise UsageError(
            f"this machine ({here.name}) is none that the run's latencies are of: {others}",
            f"compare there, or measure here first: hwnas profile --run {run.typed}",
        )
    if not mine:
        return Deployment(
            device=here.name, fingerprint=here.fingerprint, backend=PLAINEST["backend"],
            settings=Settings(), predictors={},
        )  # fmt: skip
    mine.sort(key=_is_unusual)
    has_front = (run.folder / FOLDER / FRONT_FILE).is_file()
    wanted = _recommended_ways(latest_front(run), mine[0].device) if has_front else []
    return next((way for ask in wanted for way in mine if way.described == ask), mine[0])


def make_landmarks(
    planned: Planned,
    *,
    options: Options,
    watching: Watching = SILENT,
    progress: Callable[[Progress], None] | None = None,
) -> list[Landmark]:
    """Return the landmarks of a plan, made and written to the run's journal as far as missing.

    Raises UnreliableError on a busy machine; what was trained is kept.
    """
    way = way_here(planned.run)
    if backend(way.backend).takes != "onnx":
        raise UsageError(
            f"{way.backend} runs modules; landmarks are measured as ONNX files",
            "hwnas profile --run RUN --backend onnxruntime, then hwnas fit and hwnas search",
        )
    trained = []
    for number, network in enumerate(planned.networks, start=1):
        watching.note(f"[{number}/{len(planned.networks)}] {network.entry}")
        trained.append(train_landmark(planned, network, watching=watching))
    watching.note("writing ONNX files")
    exported = [_exported(planned, one, way.settings) for one in trained]
    return _measured(planned, exported, way, options=options, progress=progress)


def _measured(
    planned: Planned,
    exported: Sequence[Exported],
    way: Deployment,
    *,
    options: Options,
    progress: Callable[[Progress], None] | None,
) -> list[Landmark]:
    run = planned.run
    jobs = [_job(planned, one, way) for one in exported]
    files = {one.trained.known.entry: one.path for one in exported}
    output = run.folder / LANDMARKS_FOLDER / MEASURED_FILE
    # Of two records of one network the better counts.
    options = replace(
        options,
        memory=False,
        device_name=way.device,
        retry_failures=True,
        again="D",
        paces=paces_here(run.profiles),
        in_proportion=False,
    )
    if missing_jobs(jobs, known_profile(output, way.fingerprint), options):
        profile(
            jobs,
            provide=lambda arch, _settings: files[arch["genes"]["network"]],
            output=output,
            options=options,
            progress=progress,
        )
    return _recorded(run, jobs, exported, way)


def _recorded(
    run: Run, jobs: Sequence[Job], exported: Sequence[Exported], way: Deployment
) -> list[Landmark]:
    """Return the landmarks that were measured, in the run's journal from now on."""
    records = read_profile(run.folder / LANDMARKS_FOLDER / MEASURED_FILE).records
    there = read_landmarks(landmarks_path(run))
    found = []
    for job, one in zip(jobs, exported, strict=True):
        record, known = records[job.key], one.trained.known
        if record.latency is None:
            continue  # at most a tenth; `profile` told
        landmark = Landmark(
            name=known.entry,
            kind=TIMM,
            accuracy=one.trained.accuracy,
            latency=record.latency.median_ms,
            macs=float(known.macs),
            params=float(known.params),
            size=float(one.path.stat().st_size),
            device=way.device,
            settings=way.described,
            precision=one.precision,
            grade=record.grade,
            training=one.trained.training,
        )
        if landmark not in there:
            add_landmark(run, landmark)
        found.append(landmark)
    return found


def _job(planned: Planned, one: Exported, way: Deployment) -> Job:
    """Return the measurement of a landmark; weights make no difference to it."""
    images = planned.images
    arch = {
        "space": TIMM,
        "genes": {"network": one.trained.known.entry, "precision": one.precision},
        "options": {"classes": images.classes, "channels": images.channels, "side": images.side},
    }
    return Job(arch=arch, backend=way.backend, settings=way.settings)


def _exported(planned: Planned, trained: Trained, settings: Settings) -> Exported:
    """Return the file of a landmark, written now or earlier, and compared with torch."""
    wanted = FP32 if settings.precision == "bf16" else settings.precision
    path = _path(trained, settings.batch, wanted)
    if path.is_file():
        return Exported(trained=trained, path=path, precision=wanted)
    network = read_network(planned, trained)
    plain = foreign_bytes(network, shape=planned.images.shape, batch=settings.batch)
    model, precision = in_precision(
        plain, wanted, calibration=partial(_calibration, planned, settings.batch)
    )
    path = _path(trained, settings.batch, precision)
    images, expected = _reference(planned, network, settings.batch)

    def write(place: Path) -> None:
        place.write_bytes(model)
        runner = open_runner(place)
        answers = np.concatenate([runner.run(piece) for piece in images])
        apart = relative_difference(answers, expected)
        check_difference(
            apart, parity_limit(precision), origin=f"{trained.folder.name}/{path.name}"
        )

    write_atomic(path, write)
    return Exported(trained=trained, path=path, precision=precision)


def _path(trained: Trained, batch: int, precision: str) -> Path:
    return trained.folder / f"model-b{batch}-{precision}.onnx"


def _reference(
    planned: Planned, network: nn.Module, batch: int
) -> tuple[list[NDArray[np.float32]], NDArray[np.float32]]:
    """Return whole batches of held-out images, and torch's logits of all of them."""
    images, _ = proof_images(planned.data)
    missing = -len(images) % batch  # in the last batch
    images = torch.cat([images, images[:1].expand(missing, -1, -1, -1)]).contiguous()
    with torch.inference_mode():
        expected: NDArray[np.float32] = network(images).numpy()
    return [piece.contiguous().numpy() for piece in torch.split(images, batch)], expected


def _calibration(planned: Planned, batch: int) -> Iterator[NDArray[Any]]:
    """Yield whole batches of training images."""
    for images in calibration_images(planned.data, planned.recipe):
        for piece in torch.split(images, batch):
            if len(piece) == batch:
                yield piece.contiguous().numpy()
        return


def _recommended_ways(front: Front, device: str) -> list[Mapping[str, Any]]:
    """Return the ways to run of what a front recommends on a device, the most frequent first."""
    best = [answer.recommended for answer in front.answers if answer.recommended is not None]
    counts: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for index in best or range(len(front.choices)):
        settings = front.choices[index].settings or {}
        mine = settings.get(device) or settings
        counts[tuple(sorted(mine.items()))] += 1
    return [dict(ways) for ways, _ in counts.most_common()]


def _is_unusual(way: Deployment) -> int:
    """Return in how many settings a way differs from the plainest."""
    return sum(str(value) != PLAINEST[name] for name, value in way.described.items())
