"""Families: what a search recommends for each of its budgets, exported into one folder."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.errors import UsageError
from hwnas.export.artifact import Manifest, ModelEntry, files_of, read_manifest
from hwnas.export.documents import to_document
from hwnas.export.family import (
    FAMILY_FILE,
    FAMILY_SCHEMA,
    Family,
    Member,
    read_family,
    write_family,
)
from hwnas.io import write_folder_atomic
from hwnas.pipeline.exportable import open_subject
from hwnas.pipeline.exporting import ARTIFACTS_FOLDER, Note, Wish, checked, fill
from hwnas.pipeline.extracting import extract
from hwnas.pipeline.fronts import Front, fingerprints, latest_front
from hwnas.pipeline.replacing import check_replaceable
from hwnas.pipeline.rundir import Run, recorded_versions
from hwnas.pipeline.selecting import select_choice
from hwnas.profiling.machine import device
from hwnas.profiling.paces import paces_here
from hwnas.profiling.records import Device

if TYPE_CHECKING:
    from hwnas.supernet.card import Measured

FAMILY_FOLDER = "family"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pack:
    """A family's folder and its manifest."""

    folder: Path
    family: Family

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"folder": str(self.folder), **FAMILY_SCHEMA.stamp(to_document(self.family))}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Chosen:
    """A choice of the front, by its index, and the budgets that it answers."""

    index: int
    budgets: tuple[str, ...]


def export_family(
    run: Run,
    *,
    wish: Wish | None = None,
    members: int | None = None,
    out: Path | str | None = None,
    recipe: str | None = None,
    note: Note = lambda _: None,
) -> Pack:
    """Return the pack of what the latest search recommends, one member per budget.

    `members`: instead, so many choices spread over the front. The folder appears whole.
    """
    wish = checked(wish or Wish())
    folder = Path(out or run.folder / ARTIFACTS_FOLDER / FAMILY_FOLDER)
    check_replaceable(folder, "family", _files_of)
    front = latest_front(run)
    chosen = _spread(front, members) if members else _recommended(run, front)
    subnets, paces = [], paces_here(run.profiles)
    for number, choice in enumerate(chosen, start=1):
        note(f"member {number} of {len(chosen)}: extracting it")
        selection = select_choice(run, front, choice.index)
        subnets.append(extract(run, selection, recipe=recipe).folder)

    def write(place: Path) -> None:
        found = []
        for number, (choice, subnet) in enumerate(zip(chosen, subnets, strict=True), start=1):
            said = partial(_note_of, note, f"member {number} of {len(chosen)}")
            subject = open_subject(subnet, recipe=recipe)
            filled = fill(place / subnet.name, subject, wish=wish, paces=paces, note=said)
            manifest = read_manifest(place / subnet.name)
            entry = manifest.model(manifest.recommended)
            known = subject.card.accuracy
            accuracy = best_known_accuracy(entry, filled.module_accuracy, known)
            found.append(_member(subnet.name, manifest, budgets=choice.budgets, accuracy=accuracy))
        write_family(place, _family(run, found, foretold_for=fingerprints(front)))

    write_folder_atomic(folder, write)
    return Pack(folder=folder, family=read_family(folder))


def _files_of(folder: Path) -> set[Path]:
    """Return the files that the family in a folder consists of."""
    members = ((folder / member.file).parent for member in read_family(folder).members)
    return {folder / FAMILY_FILE}.union(*map(files_of, members))


def _note_of(note: Note, member: str, text: str) -> None:
    note(f"{member}: {text}")


def _recommended(run: Run, front: Front) -> list[_Chosen]:
    # A subnet is one member, also where it is recommended in two ways to run it.
    budgets: dict[str, list[str]] = {}
    places: dict[str, int] = {}
    for answer in front.answers:
        if answer.recommended is not None:
            digest = front.choices[answer.recommended].digest
            budgets.setdefault(digest, []).append(answer.budget)
            places.setdefault(digest, answer.recommended)
    if not budgets:
        raise UsageError(
            f"the search of {run.folder} recommends nothing, so there is nothing to export",
            f"hwnas search --run {run.typed} --latency 10ms,20ms",
        )
    return [
        _Chosen(index=places[digest], budgets=tuple(found)) for digest, found in budgets.items()
    ]


def _spread(front: Front, members: int) -> list[_Chosen]:
    by_digest = {choice.digest: index for index, choice in enumerate(front.choices)}
    if members > len(by_digest):
        raise UsageError(
            f"{members} members asked for, the front has {len(by_digest)} choices",
            "ask for fewer: --members N",
        )
    order = sorted(by_digest.values(), key=lambda index: _cost(front, index))
    last = len(order) - 1
    picks = [order[round(place * last / (members - 1))] for place in range(members)]
    return [_Chosen(index=index, budgets=()) for index in picks]


def _cost(front: Front, index: int) -> float:
    choice = front.choices[index]
    times = [value.mean for name, value in choice.predicted.items() if name.startswith("latency")]
    return times[0] if times else choice.costs.get("macs", 0.0)


def _member(name: str, manifest: Manifest, *, budgets: tuple[str, ...], accuracy: float) -> Member:
    entry = manifest.model(manifest.recommended)
    file = manifest.files[entry.file]
    predicted = manifest.promised.get("latency")
    measured = entry.latency is not None
    latency = entry.latency["median_ms"] if entry.latency is not None else None
    if latency is None and isinstance(predicted, dict):
        latency = float(predicted["mean"])
    return Member(
        file=f"{name}/{entry.file}",
        digest=manifest.digest,
        sha256=file.sha256,
        size_bytes=file.size_bytes,
        budgets=budgets,
        accuracy=accuracy,
        latency_ms=latency,
        measured=measured,
        precision=entry.precision,
        promised=manifest.promised,
    )


def best_known_accuracy(entry: ModelEntry, module: float, known: "Measured | None") -> float:
    """Return the accuracy of an exported model on as many images as possible.

    The network's own is known on the images of its card; the model is judged on few of them, on
    which what it gains or loses against the module is far surer than either accuracy.
    """
    if known is None or known.images <= entry.images:
        return entry.accuracy
    return min(1.0, max(0.0, known.value + entry.accuracy - module))


def _family(run: Run, members: Sequence[Member], *, foretold_for: Mapping[str, str]) -> Family:
    there, members = of_one_device(members, foretold_for, here=device())
    order = sorted(members, key=lambda member: (_or_inf(member.latency_ms), member.size_bytes))
    return Family(
        space=run.space,
        device=there,
        budgets={budget: member.file for member in order for budget in member.budgets},
        members=tuple(order),
        versions=recorded_versions(),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def of_one_device(
    members: Sequence[Member], foretold_for: Mapping[str, str], *, here: Device
) -> tuple[str, list[Member]]:
    """Return a device, and the members with latencies that are of it, or None.

    It is `here` if anything was measured, else the one that the search foretold for.
    `foretold_for`: the fingerprint of each device of the search; nothing if that is not known.
    """
    if not foretold_for or here.fingerprint in foretold_for.values():
        return here.name, list(members)
    if not any(member.measured for member in members):
        return ", ".join(foretold_for), list(members)
    known = [one if one.measured else replace(one, latency_ms=None) for one in members]
    return here.name, known


def _or_inf(latency_ms: float | None) -> float:
    return math.inf if latency_ms is None else latency_ms
