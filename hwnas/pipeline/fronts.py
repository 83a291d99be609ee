"""What a search leaves in a run: `RUN/search/front.json`, and what of it was verified by measuring.

A front holds every choice that was found to be worth keeping, with what is predicted of it, and
one answer per budget that refers to the choices by index. `RUN/search/verified.jsonl` is a
journal of promises and deliveries: a line per choice that was built and measured.

Quantities: `accuracy` (a share), `latency` (ms), `throughput` (per second), `memory` and `size`
(bytes), `energy` (mJ), `macs`, `params`; those of a device are named such as `latency:DEVICE`
where several devices are searched for at once.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError, HwnasError
from hwnas.io import (
    Journal,
    Schema,
    canonical_json,
    digest,
    read_journal,
    read_json,
    write_json,
)
from hwnas.pipeline.rundir import Run
from hwnas.spaces import Arch, space

FRONT_SCHEMA = Schema(name="hwnas/front", version=1)
VERIFIED_SCHEMA = Schema(name="hwnas/verified", version=1)
FOLDER, FRONT_FILE, VERIFIED_FILE = "search", "front.json", "verified.jsonl"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A predicted value and the ends of its 90 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """An architecture of a front.

    `predicted`: what predictors say, `costs`: what is known exactly (`macs`, `params`, `size`).
    `settings`: backend, threads, batch and precision that the prediction is for; None where no
    device is involved, and by device where there are several. `in_range`: whether it lies within
    what was measured.
    """

    digest: str
    genes: Mapping[str, Any]
    predicted: Mapping[str, Estimate]
    costs: Mapping[str, float]
    settings: Mapping[str, Any] | None = None
    in_range: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a front says to one budget; numbers are indices into its choices.

    `budget`: as it would be typed, such as `latency 25ms`, or empty for none. `feasible`: how
    many choices keep it. `listed`: the best of these, best first. `limits`: the most that it
    allows of each quantity, with shares resolved.
    """

    budget: str
    recommended: int | None
    knee: int | None
    reason: str
    feasible: int
    listed: tuple[int, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Front:
    """The choices of a search, its answers, and where they come from.

    `created`: UTC, ISO 8601. `provenance`: engine, seed, evaluations, predictors and their
    digests, profiles, versions; JSON values.
    """

    space: str
    options: Mapping[str, Any]
    choices: tuple[Choice, ...]
    answers: tuple[Answer, ...]
    provenance: Mapping[str, Any] = field(default_factory=dict)
    created: str = ""


UNRELIABLE = "D"  # the grade of a latency that says nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Verified:
    """What was promised of a choice for a budget, and what was measured on `device`.

    `met`: whether everything that was measured keeps the budget. `grade`: of the latency. `step`:
    of the supernet whose weights were used. `limits`: as in the answer.
    """

    digest: str
    budget: str
    predicted: Mapping[str, Estimate]
    measured: Mapping[str, float]
    settings: Mapping[str, Any] | None
    met: bool
    device: str
    grade: str | None
    step: int
    limits: Mapping[str, float] = field(default_factory=dict)


def arch_of(front: Front, choice: int) -> Arch:
    """Return the architecture of a choice of a front."""
    return space(front.space, **front.options).arch(front.choices[choice].genes)


def key_of(one: Choice | Verified) -> tuple[str, str]:
    """Return what tells a choice from others: the subnet and how it is run."""
    return (one.digest, canonical_json(dict(one.settings or {})))


def last_of(verified: Sequence[Verified]) -> list[Verified]:
    """Return the last verification of each choice for a budget on a device, in that order."""
    found: dict[tuple[object, ...], Verified] = {}
    for entry in verified:
        key = (key_of(entry), entry.budget, entry.device)
        found.pop(key, None)
        found[key] = entry
    return list(found.values())


def device_of(front: Front, name: str) -> str | None:
    """Return the device of a quantity such as `latency:DEVICE`, None where it is not known."""
    known = front.provenance.get("devices")
    devices = list(known) if isinstance(known, Mapping) else []
    return name.partition(":")[2] or (devices[0] if len(devices) == 1 else None)


def ways_of(front: Front, device: str | None) -> list[Mapping[str, Any]]:
    """Return the ways to run that the choices of a front are for on a device."""
    found: list[Mapping[str, Any]] = []
    for choice in front.choices:
        ways = choice.settings or {}
        mine = ways[device] if device is not None and device in ways else ways
        if isinstance(mine, Mapping) and dict(mine) not in found:
            found.append(dict(mine))
    return found


def alike(front: Front, verified: Sequence[Verified]) -> list[Verified]:
    """Return what was measured as the choices of a front are: run so, there, with these weights.

    Older fronts do not say on which devices, or with the weights of which step.
    """
    ways = {way for _, way in map(key_of, front.choices)}
    devices = front.provenance.get("devices")
    step = front.provenance.get("supernet", {}).get("step")
    return [
        entry
        for entry in verified
        if key_of(entry)[1] in ways
        and (not devices or entry.device in devices)
        and step in (None, entry.step)
    ]


def fingerprints(front: Front) -> dict[str, str]:
    """Return the fingerprint of each device that was searched for; older files name none."""
    return dict(front.provenance.get("fingerprints", {}))


def write_front(run: Run, front: Front) -> Path:
    """Write the front of a run and return the file."""
    path = run.folder / FOLDER / FRONT_FILE
    write_json(
        path,
        FRONT_SCHEMA,
        {
            "space": front.space,
            "options": dict(front.options),
            "created": front.created,
            "provenance": dict(front.provenance),
            "answers": [asdict(answer) for answer in front.answers],
            "choices": [asdict(choice) for choice in front.choices],
        },
    )
    return path


def read_front(path: Path) -> Front:
    """Return the front in a file."""
    document = read_json(path, FRONT_SCHEMA)
    try:
        front = Front(
            space=str(document["space"]),
            options=dict(document["options"]),
            choices=tuple(_choice(entry) for entry in document["choices"]),
            answers=tuple(_answer(entry) for entry in document["answers"]),
            provenance=dict(document["provenance"]),
            created=str(document["created"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path}: incomplete front ({error!r})", "hwnas search") from error
    _check(front, str(path))
    return front


def latest_front(run: Run) -> Front:
    """Return the front that was found last in a run."""
    path = run.folder / FOLDER / FRONT_FILE
    if not path.is_file():
        raise HwnasError(
            f"{run.folder}: nothing has been searched yet ({FOLDER}/{FRONT_FILE} is missing)",
            f"hwnas search --run {run.typed}",
        )
    front = read_front(path)
    if front.space != run.space:
        raise FormatError(f"{path}: is of space {front.space!r}, expected {run.space!r}")
    return front


def add_verified(run: Run, entries: list[Verified]) -> None:
    """Append what was verified to the journal of a run, leaving out what it already holds."""
    path = run.folder / FOLDER / VERIFIED_FILE
    known = read_verified(run)
    with Journal(path) as journal:
        if path.stat().st_size == 0:
            journal.append(VERIFIED_SCHEMA.stamp({}))
        for entry in entries:
            if entry not in known:
                journal.append(asdict(entry))


def read_verified(run: Run) -> list[Verified]:
    """Return what was verified in a run, in that order."""
    path = run.folder / FOLDER / VERIFIED_FILE
    if not path.exists():
        return []
    header, *lines = read_journal(path) or [{}]
    if not header:
        return []
    VERIFIED_SCHEMA.check(header, str(path))
    found = []
    for number, line in enumerate(lines, start=2):
        try:
            predicted = {name: _estimate(entry) for name, entry in line["predicted"].items()}
            found.append(Verified(**{**line, "predicted": predicted}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FormatError(f"{path}, line {number}: not a verification ({error!r})") from error
    return found


def _choice(entry: Mapping[str, Any]) -> Choice:
    settings = entry["settings"]
    return Choice(
        digest=str(entry["digest"]),
        genes=dict(entry["genes"]),
        predicted={name: _estimate(values) for name, values in entry["predicted"].items()},
        costs={name: _number(value) for name, value in entry["costs"].items()},
        settings=None if settings is None else dict(settings),
        in_range=bool(entry["in_range"]),
    )


def _estimate(values: Mapping[str, Any]) -> Estimate:
    return Estimate(**{end: _number(values[end]) for end in ("mean", "low", "high")})


def _number(value: Any) -> float:  # noqa: ANN401 - parsed JSON
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is not a finite number")
    return float(value)


def _answer(entry: Mapping[str, Any]) -> Answer:
    return Answer(
        budget=str(entry["budget"]),
        recommended=_index(entry["recommended"]),
        knee=_index(entry["knee"]),
        reason=str(entry["reason"]),
        feasible=int(entry["feasible"]),
        listed=tuple(int(index) for index in entry["listed"]),
        # Fronts of earlier versions say only what was typed.
        limits={name: _number(value) for name, value in entry.get("limits", {}).items()},
    )


def _index(value: Any) -> int | None:  # noqa: ANN401 - parsed JSON
    return None if value is None else int(value)


def _check(front: Front, origin: str) -> None:
    for choice in front.choices:
        if choice.digest != digest({"space": front.space, "genes": choice.genes}):
            raise FormatError(f"{origin}: the digest {choice.digest[:12]} is not that of its genes")
    for answer in front.answers:
        for index in (answer.recommended, answer.knee, *answer.listed):
            if index is not None and not 0 <= index < len(front.choices):
                raise FormatError(
                    f"{origin}: an answer names choice {index}; there are {len(front.choices)}"
                )
