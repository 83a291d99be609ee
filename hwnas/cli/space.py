"""`hwnas space`: the declared spaces, their choices and costs, and random architectures."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, millions, table, verb_options
from hwnas.cli.shared import seed_option
from hwnas.cli.values import Parsed
from hwnas.io.units import COUNT, Range, parse_range

if TYPE_CHECKING:
    from hwnas.spaces import Arch, Space

_WIDTH = 78


def count_range(text: str) -> Range:
    """Return (low, high) of an option such as `200M..300M`."""
    return parse_range(text, COUNT)


@click.group()
def space() -> None:
    """List search spaces, show their choices, sample architectures."""


@space.command("list")
@verb_options
def list_spaces(output: Output) -> None:
    """List the declared search spaces."""
    from hwnas.spaces import CONVENTION, space_names
    from hwnas.spaces import space as declared

    summaries = [_summary(declared(name)) for name in space_names()]
    rows = [
        [
            summary["space"],
            f"{summary['architectures']:.1e}".replace("e+", "e"),
            f"{millions(summary['smallest']['macs'])}..{millions(summary['largest']['macs'])}",
            summary["title"],
        ]
        for summary in summaries
    ]
    text = table(["space", "architectures", "MACs", "what it is"], rows, right=(1, 2))
    output.result(
        {"macs_convention": CONVENTION, "spaces": summaries}, f"{text}\n\n{_convention()}"
    )


@space.command("show")
@click.argument("name")
@verb_options
def show(output: Output, name: str) -> None:
    """Show the choices, the size and the cost range of the space NAME."""
    from hwnas.spaces import CONVENTION
    from hwnas.spaces import space as declared

    of = declared(name)
    summary = _summary(of)
    document = {
        **summary,
        "genes": {gene: list(values) for gene, values in of.genes.items()},
        "requires": {
            gene: {"on": condition.on, "values": list(condition.values)}
            for gene, condition in of.requires.items()
        },
        "macs_convention": CONVENTION,
    }
    output.result(document, "\n".join([*_choices_text(of, summary), "", *_costs_text(summary)]))


@space.command("sample")
@click.argument("name")
@click.option("-n", "number", type=click.IntRange(min=1), default=5, show_default=True, metavar="N",
              help="How many architectures.")  # fmt: skip
@click.option(
    "--macs",
    type=Parsed(count_range),
    metavar="LOW..HIGH",
    help="Only with MACs in this range, such as 200M..300M.",
)
@click.option(
    "--params",
    type=Parsed(count_range),
    metavar="LOW..HIGH",
    help="Only with parameters in this range, such as ..10M.",
)
@seed_option()
@verb_options
def sample(
    output: Output,
    name: str,
    *,
    number: int,
    macs: Range | None,
    params: Range | None,
    seed: int,
) -> None:
    """Print random architectures of the space NAME."""
    import numpy as np

    from hwnas.spaces import space as declared

    of = declared(name)
    archs = of.sample(number, np.random.default_rng(seed), macs=macs, params=params)
    costs = of.cost(archs)
    document: list[dict[str, Any]] = [
        {"arch": arch.to_json(), "digest": arch.digest, "macs": int(m), "params": int(p)}
        for arch, m, p in zip(archs, costs.macs, costs.params, strict=True)
    ]
    rows = [
        [entry["digest"][:12], millions(entry["macs"]), millions(entry["params"]), _side(of, arch)]
        for entry, arch in zip(document, archs, strict=True)
    ]
    text = table(["architecture", "MACs", "params", "input"], rows, right=(1, 2, 3))
    output.result(document, f"{text}\n\n{_convention()}")


def _summary(of: "Space") -> dict[str, Any]:
    ends = {"smallest": of.smallest(), "largest": of.largest()}
    costs = of.cost(list(ends.values()))
    sides = (of.side,) if isinstance(of.side, int) else of.genes[of.side]
    return {
        "space": of.name,
        "title": of.title,
        "options": dict(of.options),
        "architectures": of.count(),
        "input_sides": list(sides),
        **{
            end: {
                "digest": arch.digest,
                "macs": int(costs.macs[row]),
                "params": int(costs.params[row]),
                "input": _side(of, arch),
            }
            for row, (end, arch) in enumerate(ends.items())
        },
    }


def _side(of: "Space", arch: "Arch") -> str:
    return f"{of.side if isinstance(of.side, int) else arch[of.side]} px"


def _choices_text(of: "Space", summary: dict[str, Any]) -> list[str]:
    options = ", ".join(f"{option}={value}" for option, value in summary["options"].items())
    sides = summary["input_sides"]
    rows: list[list[str]] = []
    for gene, values in of.genes.items():
        stage, dot, choice = gene.partition(".")
        label, choice = (stage, choice) if dot else ("", gene)
        rows += [[label, choice, part] for part in _wrapped(_condition(of, gene, values))]
    previous = ""
    for row in rows:  # a stage is named once
        row[0], previous = ("" if row[0] == previous else row[0]), row[0]
    return [
        f"{of.name}: {of.title}" if of.title else of.name,
        f"{summary['architectures']:,} architectures, input {min(sides)}..{max(sides)} px",
        f"declared with {options}",
        "",
        table(["stage", "choice", "values"], rows, right=()),
    ]


def _condition(of: "Space", gene: str, values: Sequence[Any]) -> str:
    text = " ".join(str(value) for value in values)
    condition = of.requires.get(gene)
    if condition is None:
        return text
    return f"{text} (if {condition.on} is {' or '.join(map(str, condition.values))})"


def _wrapped(text: str) -> list[str]:
    from textwrap import wrap

    return wrap(text, _WIDTH - 20)


def _convention() -> str:
    from textwrap import fill

    from hwnas.spaces import CONVENTION

    return fill(CONVENTION, _WIDTH)


def _costs_text(summary: dict[str, Any]) -> list[str]:
    rows = [
        [end, millions(summary[end]["macs"]), millions(summary[end]["params"]),
         summary[end]["input"]]
        for end in ("smallest", "largest")
    ]  # fmt: skip
    return [table(["", "MACs", "params", "input"], rows, right=(1, 2, 3)), "", _convention()]
