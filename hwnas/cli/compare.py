"""`hwnas compare`: what differs between two runs, and what of it is more than chance."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.values import Parsed
from hwnas.errors import GateError, UnreliableError, UsageError
from hwnas.io import units

if TYPE_CHECKING:
    from hwnas.pipeline.changes import Change
    from hwnas.pipeline.comparing import Comparison, Differing

_TITLES = {
    "accuracy": "accuracies on the held-out part",
    "front": "predicted accuracy within equal cost",
    "latency": "measured latencies",
    "artifact": "exported models",
    "promises": "promises",
}
_LONGEST_VALUE = 40


def _limit(text: str) -> float:
    value = units.parse(text, units.SHARE)
    if not 0 <= value < 1:
        raise UsageError(f"{text!r} is no limit; accepted: a share below 1, such as 3% or 0.03")
    return value


@click.command()
@click.argument("first", type=click.Path(path_type=Path), metavar="RUN_A")
@click.argument("second", type=click.Path(path_type=Path), metavar="RUN_B")
@click.option("--fail-on-regression", "limit", type=Parsed(_limit), metavar="3%",
              help="Exit with 4 if anything in RUN_B is significantly worse by more: accuracies "
                   "in points, all else relative to RUN_A.")  # fmt: skip
@verb_options
def compare(output: Output, *, first: Path, second: Path, limit: float | None) -> None:
    """Show what differs between two runs, and what of it is more than chance.

    A change is significant where its 95 % interval does not hold zero.
    """
    from hwnas.pipeline.comparing import compare_runs

    found = compare_runs(first, second)
    output.result(_document(found, limit), _text(found))
    if limit is not None:
        _judge(found, limit)


def _judge(found: "Comparison", limit: float) -> None:
    if all(change.low is None for change in found.changes):
        raise UnreliableError(
            f"{found.first.folder} and {found.second.folder} have nothing in common to judge by",
            "; ".join(found.remarks),
        )
    worse = found.regressions(limit)
    if worse:
        raise GateError(
            f"{found.second.folder} is worse than {found.first.folder} by more than "
            f"{units.format_value(limit, units.SHARE)}: "
            + "; ".join(f"{change.name} {_change(change)}" for change in worse),
            "the keys that differ are listed with the result",
        )


def _document(found: "Comparison", limit: float | None) -> dict[str, Any]:
    from dataclasses import asdict

    sides = {
        name: {"run": str(side.folder), "space": side.space, "step": side.step}
        for name, side in (("first", found.first), ("second", found.second))
    }
    regressions = None if limit is None else [change.name for change in found.regressions(limit)]
    return {
        **sides,
        "changes": [
            {**asdict(change), "significant": change.significant} for change in found.changes
        ],
        "differing": [asdict(entry) for entry in found.differing],
        "remarks": list(found.remarks),
        "regressions": regressions,
    }


def _text(found: "Comparison") -> str:
    parts = [f"A  {found.first.folder}\nB  {found.second.folder}"]
    for section, title in _TITLES.items():
        changes = [change for change in found.changes if change.section == section]
        if changes:
            parts.append(_changes_table(title, changes))
    if found.differing:
        rows = [[entry.key, *_values(entry)] for entry in found.differing]
        parts.append(table(["what differs", "A", "B"], rows, right=()))
    else:
        parts.append("the recipes and versions are equal")
    if found.remarks:
        parts.append("\n".join(f"note: {remark}" for remark in found.remarks))
    return "\n\n".join(parts)


def _changes_table(title: str, changes: "list[Change]") -> str:
    rows = [
        [change.name, _value(change, change.first), _value(change, change.second),
         _change(change), _interval(change), _verdict(change)]
        for change in changes
    ]  # fmt: skip
    text = table([title, "A", "B", "change", "95 %", ""], rows, right=(1, 2, 3, 4))
    how = dict.fromkeys(change.how for change in changes if change.low is not None)
    return "\n".join([text, *(f"  interval: {words}" for words in how if words != "exact")])


def _verdict(change: "Change") -> str:
    if change.low is None:
        return "?"
    if not change.significant:
        return "not significant"
    return "worse" if change.loss > 0 else "better"


def _value(change: "Change", value: float) -> str:
    if change.unit == "share":
        return f"{value:.2%}"
    if change.unit == "bytes":
        return units.format_value(round(value, -4) or value, units.SIZE_BYTES)
    return f"{value:.3f} ms"


def _change(change: "Change") -> str:
    return _step(change, change.change)


def _step(change: "Change", value: float) -> str:
    return f"{100 * value:+.2f} points" if change.unit == "share" else f"{value:+.1%}"


def _interval(change: "Change") -> str:
    if change.low is None or change.high is None:
        return "-"
    ends = [f"{100 * value:+.2f}" if change.unit == "share" else f"{value:+.1%}"
            for value in (change.low, change.high)]  # fmt: skip
    return "..".join(ends)


def _values(entry: "Differing") -> list[str]:
    texts = ["-" if value is None else str(value) for value in (entry.first, entry.second)]
    return [
        text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
        for text in texts
    ]
