"""Writing a subnet's folder: weights, and a card whose every statement was just checked.

What is measured and proved is the network as it is read back from its files, not the one in
memory that they were written from.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hwnas.errors import UsageError
from hwnas.io import digest, write_atomic
from hwnas.nets.norms import BatchNorm
from hwnas.pipeline.config import Recipe, to_toml
from hwnas.pipeline.rundir import recorded_versions
from hwnas.spaces import Arch
from hwnas.supernet import Supernet, count_right, load_subnet, save_subnet
from hwnas.supernet.card import (
    CARD_FILE,
    Calibration,
    Card,
    Measured,
    file_digests,
    write_card,
)
from hwnas.supernet.proof import Proof, prove
from hwnas.training.datasets import Data
from hwnas.training.loader import evaluation_batches
from hwnas.training.measure import calibration_images
from hwnas.training.preprocessing import describe_data, preprocessing_of

CONFIG_FILE = "config.toml"
PROOF_IMAGES = 32
_NOISE = "noise"


@dataclass(frozen=True, kw_only=True, slots=True)
class Subnet:
    """A subnet's folder and what its card says; `is_new`: whether it was written just now."""

    folder: Path
    card: Card
    is_new: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What a subnet is calibrated, measured and proved on."""

    data: Data
    recipe: Recipe
    device: torch.device


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """What a card says of where a subnet comes from."""

    supernet: Mapping[str, Any]
    promised: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None


def evidence_digest(recipe: Recipe) -> str:
    """Return the digest of those parts of a recipe that decide what a card says."""
    document = recipe.model_dump(mode="json")
    parts = {name: document[name] for name in ("data", "augmentation", "evaluation")}
    parts["data"].pop("workers")
    return digest({**parts, "seed": recipe.process.seed})


def check_fits(supernet: Supernet, data: Data) -> None:
    """Raise UsageError unless the networks have the data's classes and channels."""
    options = supernet.space.options
    for what, theirs in (("classes", len(data.classes)), ("channels", data.channels)):
        if options.get(what) != theirs:
            raise UsageError(
                f"the networks have {options.get(what)} {what}, the data of the recipe "
                f"({data.name}) {theirs}",
                "name a recipe with the data they were trained on: --recipe my.toml",
            )


def seal(
    folder: Path, supernet: Supernet, arch: Arch, *, evidence: Evidence | None, origin: Origin
) -> Card:
    """Write the subnet `arch` to `folder`, its card last, and return the card.

    Without evidence the supernet's stored statistics are kept, and the proof is on noise. Raises
    GateError, leaving no card, if what was written is not the subnet.
    """
    (folder / CARD_FILE).unlink(missing_ok=True)
    supernet.eval()
    calibration = _calibrate(supernet, arch, evidence)
    space = supernet.space
    save_subnet(supernet.extract(arch), space, arch, folder)
    if evidence is not None:
        write_atomic(folder / CONFIG_FILE, to_toml(evidence.recipe, folder=folder))
    costs = space.cost([arch])
    card = Card(
        space=space.name,
        options=dict(space.options),
        digest=arch.digest,
        costs={"macs": int(costs.macs[0]), "params": int(costs.params[0])},
        supernet=origin.supernet,
        calibration=calibration,
        proof=_proof(folder, supernet, arch, evidence),
        promised=origin.promised,
        training=origin.training,
        versions=recorded_versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        files=file_digests(folder),
    )
    if evidence is not None:
        side = space.network(arch).side
        described = describe_data(evidence.data)
        card = replace(
            card,
            data={**described, "recipe": evidence_digest(evidence.recipe)},
            preprocessing=preprocessing_of(evidence.data, side=side),
            classes=evidence.data.classes,
            accuracy=_accuracy(folder, evidence),
        )
    write_card(folder, card)
    return card


def _calibrate(supernet: Supernet, arch: Arch, evidence: Evidence | None) -> Calibration:
    norms = [part for part in supernet.extract(arch).modules() if isinstance(part, BatchNorm)]
    if not norms:
        return Calibration(how="not needed")
    if evidence is None:
        if any(norm.running_mean is None for norm in norms):
            raise UsageError(
                "the batch norms of this supernet have no statistics, and there are no images to "
                "measure them on",
                "name a recipe with the data: --recipe my.toml",
            )
        return Calibration(how="stored statistics")
    batches = calibration_images(evidence.data, evidence.recipe)
    supernet.calibrate(arch, (images.to(evidence.device) for images in batches))
    return Calibration(how="training images", images=sum(len(images) for images in batches))


def _proof(folder: Path, supernet: Supernet, arch: Arch, evidence: Evidence | None) -> Proof:
    network = load_subnet(folder)
    if evidence is None:
        side, channels = network.description.side, network.description.channels
        generator = torch.Generator().manual_seed(0)
        images = torch.randn((PROOF_IMAGES, channels, side, side), generator=generator)
        return prove(supernet, arch, network, images, part=_NOISE)
    images, indices = proof_images(evidence.data)
    images = images.to(evidence.device)
    network.to(evidence.device)
    return prove(supernet, arch, network, images, part="heldout", indices=indices)


def proof_images(data: Data) -> tuple[Tensor, tuple[int, ...]]:
    """Return images spread over the held-out part, and which of it they are."""
    count = min(PROOF_IMAGES, len(data.heldout))
    chosen = np.linspace(0, len(data.heldout) - 1, count).astype(np.int64)
    few = replace(data, heldout=data.heldout.take(chosen, name="heldout"))
    batches = evaluation_batches(few, batch_size=count, workers=0).batches(0)
    return next(batches)[0], tuple(int(index) for index in chosen)


def _accuracy(folder: Path, evidence: Evidence) -> Measured:
    settings, device = evidence.recipe.evaluation, evidence.device
    batches = evaluation_batches(
        evidence.data, batch_size=settings.batch_size, limit=settings.images
    )
    right, seen = count_right(load_subnet(folder).to(device), _moved(batches.batches(0), device))
    return Measured(value=right / seen, images=seen)


def _moved(
    batches: Iterator[tuple[Tensor, Tensor]], device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    for images, labels in batches:
        yield images.to(device), labels.to(device)
