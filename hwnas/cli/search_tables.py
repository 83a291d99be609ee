"""What `hwnas search` prints: ranges, the best of each answer, promises and deliveries."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from string import ascii_letters
from typing import TYPE_CHECKING, Any

from hwnas.cli.output import Output, millions, table
from hwnas.errors import HwnasError

if TYPE_CHECKING:
    from hwnas.pipeline.fronts import Answer, Choice, Estimate, Verified
    from hwnas.pipeline.searching import Asked, Found, Prepared
    from hwnas.pipeline.verifying import Verification
    from hwnas.search import Constraint

_COSTS = ("macs", "params", "size")
_SHORT = 12  # digits of a digest
_DIGITS, _LETTERS = "0123456789.", ascii_letters + "%/"


def show_ranges(output: Output, prepared: "Prepared") -> None:
    """Tell what is searched for, and what each quantity can be."""
    from hwnas.search.problem import shown

    units = _units(prepared)
    for device, ways in prepared.field.devices.items():
        output.note(f"{device}: {', '.join(way.name for way in ways)}")
    parts = [
        f"{name} {shown(found.low, units[name])}..{shown(found.high, units[name])}"
        for name, found in prepared.ranges.items()
    ]
    output.note(f"within reach: {', '.join(parts)}")


def show_result(
    output: Output,
    found: "Found",
    verification: "Verification | None",
    *,
    obstacle: HwnasError | None,
    top: int,
) -> None:
    """Print the answers; with what was measured, where something was."""
    front = verification.front if verification else found.front
    found = replace(found, front=front)
    entries = verification.entries if verification else ()
    sections, answers = [], []
    for answer, asked in zip(front.answers, found.prepared.asked, strict=True):
        mine = [entry for entry in entries if entry.budget == answer.budget]
        sections.append(_section(found, answer, asked, mine, top=top))
        answers.append(_document(front.choices, answer, mine, top=top))
    if obstacle is not None:
        what = "not everything" if entries else "nothing"
        output.note(f"{what} was verified: {obstacle.message}")
    sections.append(f"{len(front.choices)} subnets in {found.path}")
    document = {
        "run": str(found.prepared.run.folder),
        "front": str(found.path),
        "choices": len(front.choices),
        "ranges": {name: asdict(reach) for name, reach in found.prepared.ranges.items()},
        "provenance": dict(front.provenance),
        "answers": answers,
        "not_verified": None if obstacle is None else obstacle.message,
    }
    output.result(document, "\n\n".join(sections))


def _document(
    choices: "Sequence[Choice]", answer: "Answer", entries: "Sequence[Verified]", *, top: int
) -> dict[str, Any]:
    def described(index: int | None) -> dict[str, Any] | None:
        return None if index is None else {"choice": index, **asdict(choices[index])}

    return {
        **asdict(answer),
        "recommended": described(answer.recommended),
        "knee": described(answer.knee),
        "listed": [described(index) for index in answer.listed[:top]],
        "verified": [asdict(entry) for entry in entries],
    }


def _section(
    found: "Found",
    answer: "Answer",
    asked: "Asked",
    entries: "Sequence[Verified]",
    *,
    top: int,
) -> str:
    if asked.obstacle is not None:
        return f"{answer.budget}: nothing meets it\n\n{_conclusion(found, answer)}"
    units = _units(found.prepared)
    choices = found.front.choices
    shown = list(answer.listed[:top])
    shown += [i for i in (answer.recommended, answer.knee) if i is not None and i not in shown]
    rows = [_row(choices[index], index, answer, units) for index in shown]
    predicted = list(choices[0].predicted)
    costs = [name for name in _COSTS if name in choices[0].costs]
    header = ["", "N", "subnet", *predicted, *costs, "settings"]
    names = {"macs": "MACs", "params": "parameters"}
    header = [names.get(name, name) for name in header]
    right = tuple(range(3 + len(predicted), 3 + len(predicted) + len(costs)))
    if not _is_chosen(found.prepared):
        header, rows = header[:-1], [row[:-1] for row in rows]
    title = f"{answer.budget or 'without a budget'}: {answer.feasible} subnets of the front"
    lines = [title, table(header, rows, right=right)]
    if not all(choices[index].in_range for index in shown):
        lines.append("?  unlike anything that was measured: predictions are less sure")
    if entries:
        lines += ["", "predicted / measured / budget", _deliveries(entries, asked, units)]
        lines += _refuted(entries, found.prepared.run.typed)
    return "\n".join([*lines, "", _conclusion(found, answer)])


def _row(
    choice: "Choice", index: int, answer: "Answer", units: Mapping[str, str]
) -> list[str]:  # fmt: skip
    from hwnas.search.problem import shown

    marks = "*" if index == answer.recommended else ""
    marks += "k" if index == answer.knee else ""
    marks += "" if choice.in_range else "?"
    place = str(answer.listed.index(index) + 1) if index in answer.listed else "-"
    predicted = [_interval(value, units[name]) for name, value in choice.predicted.items()]
    costs = [
        shown(choice.costs[name], units[name]) if name == "size" else millions(choice.costs[name])
        for name in _COSTS
        if name in choice.costs
    ]
    return [marks, place, choice.digest[:_SHORT], *predicted, *costs, _settings(choice.settings)]


def _interval(value: "Estimate", unit: str) -> str:
    from hwnas.search.problem import shown

    if value.low == value.high:
        return shown(value.mean, unit)
    low, high = shown(value.low, unit), shown(value.high, unit)
    number = low.rstrip(_LETTERS)
    if number + high.lstrip(_DIGITS) == low:  # one unit is enough
        low = number
    return f"{shown(value.mean, unit)} ({low}..{high})"


def _settings(settings: Mapping[str, Any] | None) -> str:
    if not settings:
        return ""
    if all(isinstance(value, Mapping) for value in settings.values()):
        return "; ".join(f"{device}: {_settings(way)}" for device, way in settings.items())
    return " ".join(
        str(value) if isinstance(value, str) else f"{name} {value}"
        for name, value in settings.items()
    )


def _deliveries(
    entries: "Sequence[Verified]", asked: "Asked", units: Mapping[str, str]
) -> str:  # fmt: skip
    from hwnas.search.problem import shown

    bounds = {constraint.quantity: constraint for constraint in asked.constraints}
    known = {name for entry in entries for name in entry.measured}
    if all(entry.grade is None for entry in entries):  # what was to be measured has failed
        known |= {name for name in bounds if name.partition(":")[2] in ("", entries[0].device)}
    names = [name for name in entries[0].predicted if name in known]
    names += [name for name in bounds if name in entries[0].measured and name not in names]
    rows = []
    for entry in entries:
        row = [entry.digest[:_SHORT]]
        for name in names:
            promise = entry.predicted.get(name)
            parts = [shown(promise.mean, units[name])] if promise else ["-"]
            parts.append(
                shown(entry.measured[name], units[name]) if name in entry.measured else "failed"
            )
            parts += [_bound(bounds[name], units[name])] if name in bounds else []
            row.append(" / ".join(parts))
        rows.append([*row, entry.grade or "-", "yes" if entry.met else "no"])
    return table(["subnet", *names, "grade", "kept"], rows, right=())


def _refuted(entries: "Sequence[Verified]", run: str) -> list[str]:
    """Return what to do where what was measured refutes the predictor of accuracies."""
    from hwnas.pipeline.predictors import ACCURACY
    from hwnas.pipeline.significance import too_few_hold

    pairs = [
        (entry.predicted[ACCURACY], entry.measured[ACCURACY])
        for entry in entries
        if ACCURACY in entry.predicted and ACCURACY in entry.measured
    ]
    held = sum(promise.low <= measured <= promise.high for promise, measured in pairs)
    if not too_few_hold(held, len(pairs)):
        return []
    return [
        f"{held} of {len(pairs)} accuracies are in their intervals: the predictor is wrong here. "
        f"It learns from what was measured: hwnas fit --run {run}, and search again"
    ]


def _bound(constraint: "Constraint", unit: str) -> str:
    from math import isfinite

    from hwnas.search.problem import shown

    least = shown(constraint.least, unit) if isfinite(constraint.least) else ""
    most = shown(constraint.most, unit) if isfinite(constraint.most) else ""
    if least and most:
        return f"{least}..{most}"
    return most or f"at least {least}"


def _conclusion(found: "Found", answer: "Answer") -> str:
    choices = found.front.choices
    knee = "" if answer.knee is None else f"\nknee (k): {choices[answer.knee].digest[:_SHORT]}"
    if answer.recommended is None:
        return f"recommended: none; {answer.reason}{knee}"
    best = choices[answer.recommended]
    where = f", run with {_settings(best.settings)}" if _is_chosen(found.prepared) else ""
    return f"recommended (*): {best.digest[:_SHORT]}{where}: {answer.reason}{knee}"


def _is_chosen(prepared: "Prepared") -> bool:
    """Return whether ways to run were chosen among."""
    return any(len(ways) > 1 for ways in prepared.field.devices.values())


def _units(prepared: "Prepared") -> dict[str, str]:
    return {quantity.name: quantity.unit for quantity in prepared.field.quantities}
