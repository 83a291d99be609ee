"""Which subnet of a run is meant: by architecture, by digest, or by what a search answered."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import UsageError
from hwnas.pipeline.accuracies import read_accuracies
from hwnas.pipeline.fronts import (
    FOLDER,
    FRONT_FILE,
    UNRELIABLE,
    Answer,
    Choice,
    Front,
    arch_of,
    fingerprints,
    key_of,
    latest_front,
    read_verified,
)
from hwnas.pipeline.predictors import ACCURACY
from hwnas.pipeline.rundir import Run, latest_step, space_of
from hwnas.profiling.machine import slug
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.sampling import read_archs
from hwnas.search.budgets import Budget, parse_budgets
from hwnas.spaces import Arch, Space

SUBNETS_FOLDER = "subnets"
_DIGEST = re.compile(r"[0-9a-f]{4,64}")
_ACCEPTED = "a file, a digest, smallest, largest"


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """A subnet of a run. `promised`: what a search predicted of it, for which budget."""

    arch: Arch
    promised: Mapping[str, Any] | None = None


def select(
    run: Run, *, arch: str | None = None, pick: str | None = None, latency: str | None = None
) -> Selection:
    """Return the subnet that is meant; without any wish the one that the search recommends.

    `arch`: a file, a digest or the beginning of one, smallest, largest. `pick`: recommended, knee
    or a number of the front's listing. `latency`: the budget whose answer is meant.
    """
    if arch is None:
        return _picked(run, pick or "recommended", latency)
    if pick is not None or latency is not None:
        raise UsageError("an architecture is named, and a pick of the search, too", "leave out one")
    found = _named(run, space_of(run), arch)
    front = _front(run)
    promised = None if front is None else _promise_of(run, front, found.digest)
    return Selection(arch=found, promised=promised)


def select_choice(run: Run, front: Front, index: int) -> Selection:
    """Return the subnet of a choice of the front of a run."""
    _check_current(run, front, index)
    answer = _answer_recommending(front, index)
    return Selection(arch=arch_of(front, index), promised=_promise(run, front, index, answer))


# -- by architecture ----------------------------------------------------------------------------


def _named(run: Run, space: Space, text: str) -> Arch:
    if text in ("smallest", "largest"):
        return space.smallest() if text == "smallest" else space.largest()
    path = Path(text)
    if path.is_dir():
        path = path / "arch.json"
    if path.is_file():
        documents = read_archs(path)
        if len(documents) != 1:
            raise UsageError(
                f"{path}: holds {len(documents)} architectures; accepted: one",
                "name one by its digest: --arch DIGEST",
            )
        ((place, document),) = documents.items()
        return space.arch_from_json(document, place)
    if not _DIGEST.fullmatch(text):
        raise UsageError(
            f"unknown architecture {text!r}; accepted: {_ACCEPTED}", "hwnas space sample --json"
        )
    found = {arch.digest: arch for arch in _known(run, space) if arch.digest.startswith(text)}
    if not found:
        raise UsageError(
            f"no architecture known to {run.folder} has a digest that begins with {text}",
            "give a file with its genes: --arch FILE",
        )
    if len(found) > 1:
        shown = ", ".join(sorted(digest[:12] for digest in found)[:4])
        raise UsageError(f"{len(found)} architectures begin with {text}: {shown}", "type more")
    return next(iter(found.values()))


def _known(run: Run, space: Space) -> Iterator[Arch]:
    """Yield the architectures that a run knows of."""
    yield from (space.smallest(), space.largest())
    front = _front(run)
    if front is not None:
        yield from (arch_of(front, index) for index in range(len(front.choices)))
    yield from (entry.arch for entry in read_accuracies(run))
    for path in sorted((run.folder / SUBNETS_FOLDER).glob("*/arch.json")):
        yield from (
            space.arch_from_json(document, place) for place, document in read_archs(path).items()
        )
    for path in run.profiles:
        for record in read_profile(path).records.values():
            if record.arch.get("space") == space.name:
                yield space.arch_from_json(record.arch, str(path))


# -- by what a search answered ------------------------------------------------------------------


def _picked(run: Run, pick: str, latency: str | None) -> Selection:
    front = latest_front(run)
    answer = _answer(run, front, latency)
    if pick == "recommended":
        index = answer.recommended
    elif pick == "knee":
        index = answer.knee
    else:
        index = _numbered(answer, pick)
    if index is None:
        raise UsageError(
            f"the search has nothing {pick} for {answer.budget or 'no budget'}: {answer.reason}",
            "hwnas extract --pick N takes another of its listing"
            if answer.listed
            else f"hwnas search --run {run.typed} with a budget that can be met",
        )
    _check_current(run, front, index)
    return Selection(arch=arch_of(front, index), promised=_promise(run, front, index, answer))


def _check_current(run: Run, front: Front, index: int) -> None:
    """Raise UsageError where the search was for other weights than those that would be cut out."""
    if _is_current(run, front):
        return
    raise UsageError(
        f"the search of {run.folder} was for the weights of step {_step(front)}; the supernet has "
        f"been trained to step {latest_step(run)} since",
        f"hwnas fit --run {run.typed} and search again; or take what it chose all the same: "
        f"--arch {front.choices[index].digest[:12]}",
    )


def _is_current(run: Run, front: Front) -> bool:
    return _step(front) in (None, latest_step(run))


def _step(front: Front) -> int | None:
    """Return the step whose weights a front is of; older ones do not say."""
    step: int | None = front.provenance.get("supernet", {}).get("step")
    return step


def _answer(run: Run, front: Front, latency: str | None) -> Answer:
    known = ", ".join(answer.budget or "no budget" for answer in front.answers)
    if latency is not None:
        wanted, devices = _latency(latency), list(front.provenance.get("devices", ()))
        # An answer to this budget alone comes before one to it and others together.
        for answer in sorted(front.answers, key=lambda answer: len(_clauses(answer.budget))):
            if _meets(answer.budget, wanted, devices):
                return answer
        raise UsageError(
            f"{run.folder} has no answer for latency {latency}; there is one for: {known}",
            f"hwnas search --run {run.typed} --latency {latency}",
        )
    if len(front.answers) != 1:
        raise UsageError(
            f"the search of {run.folder} has {len(front.answers)} answers ({known})",
            "say which with --latency, or name an architecture with --arch",
        )
    return front.answers[0]


def _clauses(budget: str) -> list[tuple[str, str]]:
    """Return the (quantity, value) pairs of a budget such as `latency 25ms, params 2M`."""
    # Names of devices may have spaces, values have none.
    return [
        (name, value) for name, _, value in (part.rpartition(" ") for part in budget.split(", "))
    ]


def _meets(budget: str, wanted: Budget, devices: Sequence[str]) -> bool:
    """Return whether a budget says what is wanted; a device need not be named.

    Nor does the budget name it where the search was for one of `devices` alone.
    """
    for name, value in _clauses(budget):
        quantity, _, device = name.partition(":")
        there = [device] if device else devices
        is_meant = wanted.device is None or slug(wanted.device) in map(slug, there)
        if (quantity, value) == (wanted.quantity, wanted.text) and is_meant:
            return True
    return False


def _latency(text: str) -> Budget:
    alternatives = parse_budgets({"latency": [text]})
    if len(alternatives) != 1:
        raise UsageError(
            f"--latency {text} names {len(alternatives)} budgets; accepted: one",
            f"--latency {text.split(',', maxsplit=1)[0]}",
        )
    return alternatives[0][0]


def _numbered(answer: Answer, text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"--pick {text!r}; accepted: recommended, knee, or a number from 1")
    number = int(text)
    if not 1 <= number <= len(answer.listed):
        raise UsageError(
            f"--pick {number}; the search lists 1 to {len(answer.listed)} for "
            f"{answer.budget or 'no budget'}"
        )
    return answer.listed[number - 1]


def _promise_of(run: Run, front: Front, digest: str) -> Mapping[str, Any] | None:
    """Return what is promised of a subnet, run as an answer recommends it if one does."""
    places = [place for place, choice in enumerate(front.choices) if choice.digest == digest]
    if not places:
        return None
    answers = {place: _answer_recommending(front, place) for place in places}
    place = min(places, key=lambda place: answers[place] is None)
    return _promise(run, front, place, answers[place])


def _answer_recommending(front: Front, index: int) -> Answer | None:
    return next((answer for answer in front.answers if answer.recommended == index), None)


def _promise(run: Run, front: Front, index: int, answer: Answer | None) -> dict[str, Any]:
    choice = front.choices[index]
    seen, devices = _verified(run, front, choice), fingerprints(front)
    return {
        "budget": answer.budget if answer else "",
        "predicted": {
            name: asdict(value)
            for name, value in choice.predicted.items()
            if name != ACCURACY or _is_current(run, front)
        },
        "costs": dict(choice.costs),
        "settings": None if choice.settings is None else dict(choice.settings),
        "searched": front.created,
        **({"devices": devices} if devices else {}),
        **({"verified": seen} if seen else {}),
    }


def _verified(run: Run, front: Front, choice: Choice) -> dict[str, float]:
    """Return what was last measured of a choice when a search verified it.

    Accuracies are of weights, which may have been trained on since; latencies are not.
    """
    devices = front.provenance.get("devices")
    entries = [
        entry
        for entry in read_verified(run)
        if key_of(entry) == key_of(choice)
        and entry.grade not in (None, UNRELIABLE)
        and (not devices or entry.device in devices)
    ]
    if not entries:
        return {}
    found, step = dict(entries[-1].measured), latest_step(run)
    found.pop(ACCURACY, None)
    accuracies = [
        e.measured[ACCURACY] for e in entries if e.step == step and ACCURACY in e.measured
    ]
    return found | ({ACCURACY: accuracies[-1]} if accuracies else {})


def _front(run: Run) -> Front | None:
    return latest_front(run) if (run.folder / FOLDER / FRONT_FILE).is_file() else None
