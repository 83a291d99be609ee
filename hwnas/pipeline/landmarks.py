"""Landmarks: other networks, trained and measured as a run's subnets are, to compare with.

`RUN/search/landmarks.jsonl` is a journal with a line per network, device and way to run. Lines
that somebody wrote by hand need no more than a name, an accuracy and a latency.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError
from hwnas.io import Journal, Schema, canonical_json, read_journal
from hwnas.pipeline.fronts import FOLDER, Front, device_of, ways_of
from hwnas.pipeline.rundir import Run

LANDMARKS_SCHEMA = Schema(name="hwnas/landmarks", version=1)
LANDMARKS_FILE = "landmarks.jsonl"
TIMM = "timm"
_ACCEPTED = "name, kind, accuracy (0 to 1), latency (ms), macs"


@dataclass(frozen=True, kw_only=True, slots=True)
class Landmark:
    """A network that was trained and measured: accuracy (a share), latency in ms.

    `size`: of its file, in bytes. `settings`: the way to run it was measured for, `precision` the
    one it is in. `training`: on what and for how long, `recipe` being the digest of all of that.
    None and empty: nobody said.
    """

    name: str
    kind: str
    accuracy: float
    latency: float
    macs: float | None = None
    params: float | None = None
    size: float | None = None
    device: str | None = None
    settings: Mapping[str, Any] | None = None
    precision: str | None = None
    grade: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """What a later line about the same replaces: the network and where and how it ran."""
        return (self.name, canonical_json([self.device, dict(self.settings or {})]))


def landmarks_path(run: Run) -> Path:
    """Return the journal of the landmarks of a run."""
    return run.folder / FOLDER / LANDMARKS_FILE


def add_landmark(run: Run, landmark: Landmark) -> None:
    """Append a landmark to the journal of a run."""
    path = landmarks_path(run)
    with Journal(path) as journal:
        if path.stat().st_size == 0:
            journal.append(LANDMARKS_SCHEMA.stamp({}))
        journal.append(asdict(landmark))


def read_landmarks(path: Path) -> tuple[Landmark, ...]:
    """Return the landmarks in a journal, of several lines about the same the last."""
    if not path.is_file():
        return ()
    found: dict[tuple[str, str], Landmark] = {}
    for number, line in enumerate(read_journal(path), start=1):
        if "schema" in line:
            LANDMARKS_SCHEMA.check(line, str(path))
            continue
        try:
            landmark = _landmark(line)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{path}, line {number}: not a landmark ({error!r}); accepted: {_ACCEPTED}"
            ) from error
        found.pop(landmark.key, None)
        found[landmark.key] = landmark
    return tuple(found.values())


def comparable(landmark: Landmark, front: Front, name: str) -> bool:
    """Return whether a landmark was measured as the choices of a front are meant to be.

    `name`: of the latency, `latency:DEVICE` where there are several devices.
    """
    wanted = device_of(front, name)
    if landmark.device is None:
        return ":" not in name
    if wanted is not None and landmark.device != wanted:
        return False
    if landmark.settings is None:
        return True
    return any(dict(landmark.settings) == ways for ways in ways_of(front, wanted))


def _landmark(line: Mapping[str, Any]) -> Landmark:
    settings = line.get("settings")
    return Landmark(
        name=str(line["name"]),
        kind=str(line.get("kind", "")),
        accuracy=_positive(line["accuracy"]),
        latency=_positive(line["latency"]),
        macs=_number(line, "macs"),
        params=_number(line, "params"),
        size=_number(line, "size"),
        device=_text(line, "device"),
        settings=None if settings is None else dict(settings),
        precision=_text(line, "precision"),
        grade=_text(line, "grade"),
        training=dict(line.get("training", {})),
    )


def _number(line: Mapping[str, Any], name: str) -> float | None:
    return None if line.get(name) is None else _positive(line[name])


def _text(line: Mapping[str, Any], name: str) -> str | None:
    return None if line.get(name) is None else str(line[name])


def _positive(value: Any) -> float:  # noqa: ANN401 - parsed JSON
    found = float(value)
    if not math.isfinite(found) or found < 0:
        raise ValueError(f"{value!r} is not a number from zero")
    return found
