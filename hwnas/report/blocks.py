"""What sections of the page are made of; the template decides how each kind looks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from hwnas.report.html import Html
from hwnas.report.plot import NARROW, WIDE


@dataclass(frozen=True, kw_only=True, slots=True)
class Paragraph:
    """Sentences. `look`: its class in the style sheet."""

    kind: ClassVar[str] = "paragraph"
    text: str
    look: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figure:
    """A drawing for wide and one for narrow pages, and the sentence that says what it shows."""

    kind: ClassVar[str] = "figure"
    wide: Html
    narrow: Html
    caption: str
    legend: tuple[tuple[str, str], ...] = ()
    look: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Figures:
    """Small figures side by side."""

    kind: ClassVar[str] = "figures"
    figures: tuple[Figure, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table. `right`: the columns of numbers; `folded`: the line that unfolds it, if it is.

    `long_names`: those of rows may be broken anywhere.
    """

    kind: ClassVar[str] = "table"
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str
    right: frozenset[int] = frozenset()
    folded: str = ""
    choices: tuple[int, ...] = ()
    long_names: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A bar: `share` of the longest, made of (class, share of the bar, title) pieces."""

    label: str
    value: str
    share: float
    pieces: tuple[tuple[str, float, str], ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Bars:
    """Horizontal bars with their values; `legend`: (class, what it stands for)."""

    kind: ClassVar[str] = "bars"
    bars: tuple[Bar, ...]
    caption: str
    legend: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """Something to type."""

    kind: ClassVar[str] = "command"
    text: str
    why: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """A value with its name, its interval beside it, and what was measured instead."""

    name: str
    value: str
    beside: str = ""
    measured: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A recommended choice: `title` is what it is recommended for, `index` its place."""

    title: str
    name: str
    facts: tuple[Fact, ...]
    text: str
    warning: str
    command: str
    index: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Cards:
    """Recommended choices side by side."""

    kind: ClassVar[str] = "cards"
    cards: tuple[Card, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Panel:
    """Where the picked choice is described."""

    kind: ClassVar[str] = "panel"


Block = Paragraph | Figure | Figures | Table | Bars | Command | Cards | Panel


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """A part of the page. `missing`: what would fill it, if nothing does yet."""

    anchor: str
    title: str
    blocks: tuple[Block, ...] = ()
    missing: str = ""
    command: str = ""


def figure(
    draw: Callable[[float], Html],
    caption: str,
    *,
    legend: tuple[tuple[str, str], ...] = (),
    wide: float = WIDE,
    narrow: float = NARROW,
    look: str = "",
) -> Figure:
    """Return a figure drawn at both widths."""
    return Figure(wide=draw(wide), narrow=draw(narrow), caption=caption, legend=legend, look=look)
