"""Where the milliseconds of a subnet go, block by block."""

import math
from collections import Counter

from hwnas.pipeline.explanations import Explained
from hwnas.profiling.explain import RUNTIME
from hwnas.report.blocks import Bar, Bars, Block, Paragraph, Section
from hwnas.report.gather import Material
from hwnas.report.words import SPACE, count, listed, milliseconds, percent, plural, short

ANCHOR, TITLE = "milliseconds", "Where the milliseconds go"
_MOST_BARS = 14
_KINDS = 5
_MOST_NETS = 3


def section(material: Material) -> Section:
    """Return the blocks of the explained subnets with their times."""
    if not material.explanations:
        return Section(
            anchor=ANCHOR,
            title=TITLE,
            missing="No subnet was looked into block by block yet.",
            command=f"hwnas profile --run {material.run.typed} --explain {_wanted(material)}",
        )
    blocks: list[Block] = []
    for explained in _first(material):
        blocks += _explained(explained)
    return Section(anchor=ANCHOR, title=TITLE, blocks=tuple(blocks))


def _wanted(material: Material) -> str:
    front = material.front
    if front is not None:
        for answer in front.answers:
            if answer.recommended is not None:
                return short(front.choices[answer.recommended].digest)
    return "largest"


def _first(material: Material) -> list[Explained]:
    """Return the explanations to show, those of recommended choices first."""
    front = material.front
    best = set()
    if front is not None:
        best = {
            front.choices[answer.recommended].digest
            for answer in front.answers
            if answer.recommended is not None
        }
    ordered = sorted(material.explanations, key=lambda entry: entry.digest not in best)
    return ordered[:_MOST_NETS]


def _explained(explained: Explained) -> list[Block]:
    found, how = explained.found, explained.settings
    rows = found.rows
    head = [row for row in rows if row.block != RUNTIME][:3]
    top = listed([f"{row.block} ({percent(row.share, 0)})" for row in head])
    text = (
        f"Subnet {short(explained.digest)} ({count(explained.macs)} MACs) takes "
        f"{milliseconds(found.total_ms)} on {explained.device} ({explained.backend}, "
        f"{how.form}, {plural(how.threads, 'thread')}, batch {how.batch}). "
        f"The largest parts are {top}."
    )
    return [Paragraph(text=text), _bars(explained)]


def _bars(explained: Explained) -> Bars:
    rows = explained.found.rows
    totals: Counter[str] = Counter()
    for row in rows:
        totals.update(row.operators)
    kinds = [kind for kind, _ in sorted(totals.items(), key=lambda item: (-item[1], item[0]))]
    named = kinds[:_KINDS]
    look = {kind: f"piece-{place}" for place, kind in enumerate(named, start=1)}
    longest = max((row.ms for row in rows), default=1.0) or 1.0
    decimals = max(0, 2 - math.floor(math.log10(longest)))
    bars = []
    for row in rows[:_MOST_BARS]:
        pieces = [
            (
                look[kind],
                row.operators[kind] / (row.ms or 1.0),
                f"{kind}: {milliseconds(row.operators[kind])}",
            )
            for kind in named
            if row.operators.get(kind)
        ]
        rest = sum(ms for kind, ms in row.operators.items() if kind not in look)
        if rest > 0:
            pieces.append(("piece-rest", rest / (row.ms or 1.0), f"other: {milliseconds(rest)}"))
        bars.append(
            Bar(
                label="added by the runtime" if row.block == RUNTIME else row.block,
                value=f"{row.ms:.{decimals}f}{SPACE}ms · {percent(row.share, 0)}",
                share=row.ms / longest,
                pieces=tuple(pieces),
            )
        )
    left = rows[_MOST_BARS:]
    caption = "Time per block and run, slowest first, by kind of operator."
    if left:
        share = sum(row.share for row in left)
        take = "takes" if len(left) == 1 else "take"
        caption += f" {plural(len(left), 'more block')} {take} the other {percent(share, 0)}."
    legend = [(look[kind], kind) for kind in named]
    if len(kinds) > len(named):
        legend.append(("piece-rest", "other"))
    return Bars(bars=tuple(bars), caption=caption, legend=tuple(legend))
