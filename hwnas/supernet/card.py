"""The card of a subnet: where it comes from, what it takes, how good it is, and the proof of that.

`card.json` is written last, so a folder that has one is complete; the hashes in it tell whether
the architecture and the weights beside it are still those it speaks of.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hwnas.errors import AbsentError, FormatError, GateError
from hwnas.io import Schema, digest_file, read_json, write_json
from hwnas.io.preprocessing import Preprocessing, preprocessing_from
from hwnas.supernet.proof import Proof
from hwnas.supernet.subnet import ARCH_FILE, WEIGHTS_FILE

CARD_SCHEMA = Schema(name="hwnas/subnet-card", version=1)
CARD_FILE = "card.json"
_FILES = (ARCH_FILE, WEIGHTS_FILE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """Where the batch norms' statistics come from.

    `how`: "training images", "stored statistics" (those of the supernet, which fit no subnet
    well), or "not needed" where there are no batch norms.
    """

    how: str
    images: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Top-1 accuracy on `images` images of a part of the data."""

    value: float
    images: int
    part: str = "heldout"


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What is known of a subnet.

    `supernet`: step, sha256 of the weights file and origin of the run. `data`: name, images and
    digest of each part, and the digest of the recipe they were read by. `data`, `preprocessing`,
    `classes` and `accuracy` are None where no data were at hand. `promised`: what a search
    predicted for which budget. `training`: how it was trained after it was cut out, if it was.
    `files`: the SHA-256 of each file beside the card.
    """

    space: str
    options: Mapping[str, Any]
    digest: str
    costs: Mapping[str, int]
    supernet: Mapping[str, Any]
    calibration: Calibration
    proof: Proof
    data: Mapping[str, Any] | None = None
    preprocessing: Preprocessing | None = None
    classes: tuple[str, ...] | None = None
    accuracy: Measured | None = None
    promised: Mapping[str, Any] | None = None
    training: Mapping[str, Any] | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def weights(self) -> str:
        """The SHA-256 of the weights file."""
        return self.files[WEIGHTS_FILE]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        document = asdict(self)
        document["preprocessing"] = self.preprocessing and self.preprocessing.to_json()
        document["proof"]["indices"] = list(self.proof.indices)
        document["classes"] = None if self.classes is None else list(self.classes)
        return document


def file_digests(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of the files that a card speaks of."""
    return {name: digest_file(folder / name) for name in _FILES}


def write_card(folder: Path, card: Card) -> None:
    """Write the card of the subnet in `folder`."""
    write_json(folder / CARD_FILE, CARD_SCHEMA, card.to_json())


def read_card(folder: Path) -> Card:
    """Return the card of a subnet, of which no byte has changed since.

    Raises GateError naming a file that is not the one the card speaks of.
    """
    path = Path(folder) / CARD_FILE
    card = card_from(read_json(path, CARD_SCHEMA), str(path))
    for name, expected in card.files.items():
        file = Path(folder) / name
        if not file.is_file():
            raise AbsentError(f"{file}: no such file", "hwnas extract writes it anew")
        if digest_file(file) != expected:
            raise GateError(
                f"{file}: has changed since its card was written", "hwnas extract writes it anew"
            )
    return card


def card_from(document: Mapping[str, Any], origin: str) -> Card:
    """Return the card of a checked JSON document; `origin` names it in errors."""
    try:
        preprocessing, classes = document["preprocessing"], document["classes"]
        accuracy = document["accuracy"]
        card = Card(
            space=str(document["space"]),
            options=dict(document["options"]),
            digest=str(document["digest"]),
            costs={name: int(value) for name, value in document["costs"].items()},
            supernet=dict(document["supernet"]),
            calibration=Calibration(**document["calibration"]),
            proof=Proof(**document["proof"]),
            data=_table(document["data"]),
            preprocessing=preprocessing and preprocessing_from(preprocessing, origin),
            classes=None if classes is None else tuple(str(name) for name in classes),
            accuracy=None if accuracy is None else Measured(**accuracy),
            promised=_table(document["promised"]),
            training=_table(document["training"]),
            versions=dict(document["versions"]),
            created=str(document["created"]),
            files={name: str(value) for name, value in document["files"].items()},
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{origin}: incomplete card ({error!r})") from error
    if not set(_FILES) <= set(card.files):
        raise FormatError(f"{origin}: incomplete card (files are {sorted(card.files)})")
    return card


def _table(value: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if value is None else dict(value)
