"""Training landmarks: known networks, by the recipe of a run, on its data, for as many images.

What trains the supernet trains them: recipe, loop, loaders, checkpoints and resuming are those of
`hwnas train`. Batch norms are calibrated as those of subnets are. A network is in
`RUN/landmarks/<name>-<digest>/`, the digest being that of all that decides its weights; its
`landmark.json` is written last. Measuring them is the business of `landmark_measuring`.
"""

import shutil
from collections.abc import Mapping, Sequence
from contextlib import closing
from copy import deepcopy
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hwnas.errors import FormatError, UsageError
from hwnas.export.foreign import foreign_bytes
from hwnas.io import Schema, digest, read_json, read_tensors, write_atomic, write_json
from hwnas.io.tensors import write_tensors
from hwnas.pipeline.alone import alone_in
from hwnas.pipeline.config import Recipe, read_recipe, to_toml
from hwnas.pipeline.finetuning import SILENT, Watching
from hwnas.pipeline.known_networks import (
    Images,
    Known,
    build,
    folder_name,
    for_inference,
    known,
    usual,
)
from hwnas.pipeline.origins import digest_in
from hwnas.pipeline.rundir import Run, recorded_versions, space_of
from hwnas.pipeline.sealing import CONFIG_FILE
from hwnas.pipeline.training_run import STATE_FOLDER, StateKeeper, device_of
from hwnas.supernet import calibrate, count_right
from hwnas.supernet.lone import LoneNetwork
from hwnas.training.data import load_data
from hwnas.training.datasets import Data
from hwnas.training.distributed import Ranks
from hwnas.training.loader import evaluation_batches
from hwnas.training.loop import Training, averaged_weights, train
from hwnas.training.measure import calibration_images
from hwnas.training.prepare import prepare
from hwnas.training.preprocessing import describe_data

TRAINED_SCHEMA = Schema(name="hwnas/landmark", version=1)
LANDMARKS_FOLDER, TRAINED_FILE, WEIGHTS_FILE = "landmarks", "landmark.json", "weights.safetensors"
# With one network there is nothing to merge, to draw or to keep; its parts have other names.
_ALONE = (
    'merge.kind="sum"',
    "merge.measure_conflicts_every=0",
    'optimiser.clip="all"',
    "plan.bank=0",
    "regularisation.drop_path_stages=[]",
    "evaluation.random_subnets=0",
    "evaluation.every_epochs=0",
)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Planned:
    """Networks to train for a run, with the data and the recipe."""

    run: Run
    recipe: Recipe
    data: Data
    images: Images
    networks: tuple[Known, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """A landmark that was trained: its folder, and what its file says of it."""

    known: Known
    folder: Path
    accuracy: float
    training: Mapping[str, Any]


def plan_landmarks(
    run: Run,
    entries: Sequence[str] = (),
    *,
    recipe: str | None = None,
    assignments: Sequence[str] = (),
    watching: Watching = SILENT,
) -> Planned:
    """Return what to train for a run; without entries well-known networks of about its costs.

    `recipe`: for runs that have none. Raises UsageError for names and images that do not fit.
    """
    source = recipe or str(run.folder / CONFIG_FILE)
    if recipe is None and not (run.folder / CONFIG_FILE).is_file():
        raise UsageError(
            f"{run.folder}: has no {CONFIG_FILE}, which says how to train and on what data",
            "name a recipe: --recipe my.toml",
        )
    settings = read_recipe(source, [*_ALONE, *assignments])
    data = load_data(settings.data)
    for remark in data.notes:
        watching.note(remark)
    of = space_of(run)
    for what, theirs in (("classes", len(data.classes)), ("channels", data.channels)):
        if of.options.get(what) != theirs:
            raise UsageError(
                f"the run's networks have {of.options.get(what)} {what}, the data of the recipe "
                f"({data.name}) {theirs}",
                "name the recipe that the supernet was trained by: --recipe my.toml",
            )
    images = Images(classes=len(data.classes), channels=data.channels, side=data.image_size)
    if entries:
        networks = [known(entry, images) for entry in dict.fromkeys(entries)]
    else:
        macs = of.cost([of.smallest(), of.largest()]).macs
        networks = usual(images, (float(macs[0]), float(macs[1])), note=watching.note)
    return Planned(run=run, recipe=settings, data=data, images=images, networks=tuple(networks))


def train_landmark(planned: Planned, network: Known, *, watching: Watching) -> Trained:
    """Return a landmark, trained now, further, or earlier.

    Raises KeyboardInterrupt with everything kept when `watching` says to stop.
    """
    binds = _binds(planned, network)
    folder = landmark_folder(planned, network)
    path = folder / TRAINED_FILE
    if not path.is_file():
        _train(planned, network, folder, binds, watching)
    document = read_json(path, TRAINED_SCHEMA)
    return Trained(
        known=network,
        folder=folder,
        accuracy=float(document["accuracy"]),
        training=dict(document["training"]),
    )


def landmark_folder(planned: Planned, network: Known) -> Path:
    """Return where a landmark is; another recipe, another folder."""
    name = f"{folder_name(network.entry)}-{digest(_binds(planned, network))[:8]}"
    return planned.run.folder / LANDMARKS_FOLDER / name


def read_network(planned: Planned, trained: Trained) -> nn.Module:
    """Return the network of a landmark with its weights, ready for inference."""
    network = build(trained.known.entry, planned.images, seed=planned.recipe.process.seed)
    arrays, _ = read_tensors(trained.folder / WEIGHTS_FILE)
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:  # another version of timm builds another network
        raise FormatError(
            f"{trained.folder}: its weights do not fit {trained.known.entry} of timm "
            f"{version('timm')}",
            f"to train it anew: rm -r {trained.folder}",
        ) from error
    return for_inference(network)


def _binds(planned: Planned, network: Known) -> dict[str, Any]:
    """Return all that decides the weights of a landmark."""
    return {"network": network.entry, "recipe": digest_in(planned.run.folder, planned.recipe)}


def _train(
    planned: Planned, network: Known, folder: Path, binds: Mapping[str, Any], watching: Watching
) -> None:
    recipe, data, images = planned.recipe, planned.data, planned.images
    if recipe.process.threads is not None:
        torch.set_num_threads(recipe.process.threads)
    built = build(network.entry, images, seed=recipe.process.seed)
    with alone_in(folder, leads=True, note=watching.note):
        if not (folder / STATE_FOLDER).exists():
            watching.note(f"{network.entry}: trying out whether it can be exported")
            foreign_bytes(for_inference(deepcopy(built)), shape=images.shape, batch=1)
            write_atomic(folder / CONFIG_FILE, to_toml(recipe, folder=folder))
        lone = LoneNetwork(
            built,
            name=network.entry,
            options={"classes": images.classes, "channels": images.channels},
        )
        training = prepare(recipe, data, lone, device=device_of(recipe), ranks=Ranks())
        with closing(StateKeeper(folder, leads=True, mirror=_unseen)) as keeper:
            train(training, keeper, watch=watching.watch, stop=watching.stop)
        _finish(folder, training, network, binds)


def _finish(folder: Path, training: Training, network: Known, binds: Mapping[str, Any]) -> None:
    """Write weights and what is known of them, as they are at the end of the training."""
    recipe, data, device = training.recipe, training.data, training.device
    with averaged_weights(training):
        trained = training.supernet.extract(training.supernet.space.largest())
    calibrate(trained, (images.to(device) for images in calibration_images(data, recipe)))
    heldout = evaluation_batches(
        data, batch_size=recipe.evaluation.batch_size, limit=recipe.evaluation.images
    ).batches(0)
    right, seen = count_right(trained, ((x.to(device), y.to(device)) for x, y in heldout))
    arrays = {
        name: tensor.detach().cpu().contiguous().numpy()
        for name, tensor in trained.state_dict().items()
    }
    write_tensors(folder / WEIGHTS_FILE, arrays)
    told = {
        **binds,
        "epochs": recipe.schedule.epochs,
        "steps": training.steps,
        "images": training.steps * recipe.optimiser.batch_size,
        "heldout": seen,
        "data": describe_data(data),
    }
    write_json(
        folder / TRAINED_FILE,
        TRAINED_SCHEMA,
        {
            "network": network.entry,
            "macs": network.macs,
            "params": network.params,
            "accuracy": right / seen,
            "training": told,
            "versions": recorded_versions() | {"timm": version("timm")},
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
        },
    )
    shutil.rmtree(folder / STATE_FOLDER, ignore_errors=True)


def _unseen(_: object) -> None:
    return
