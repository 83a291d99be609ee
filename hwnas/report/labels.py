"""Text beside marks without overlaps: each label takes the best free place, or none."""

from collections.abc import Sequence
from dataclasses import dataclass

from hwnas.report.html import Html, element, joined

SIZE = 12.0  # of the text in figures, in pixels
_NARROW = frozenset("iljtfr.,:;|!'()[]/ -")
_BROAD = frozenset("mwMW%@—")
_DISTANCES = (7.0, 13.0, 22.0, 34.0)
_LEADER_FROM = 12.0
_COVERED = 4.0  # what covering a point costs, in pixels of distance


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A rectangle."""

    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: "Box") -> bool:
        """Return whether the two share any area."""
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def within(self, other: "Box") -> bool:
        """Return whether this lies inside the other."""
        return (
            self.left >= other.left
            and self.right <= other.right
            and self.top >= other.top
            and self.bottom <= other.bottom
        )

    def holds(self, x: float, y: float) -> bool:
        """Return whether a point lies inside."""
        return self.left <= x <= self.right and self.top <= y <= self.bottom


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """Text for the mark at (x, y). `look`: its class in the style sheet."""

    text: str
    x: float
    y: float
    look: str = ""
    size: float = SIZE


@dataclass(frozen=True, kw_only=True, slots=True)
class Placed:
    """A label with the box it takes, and its distance from the mark."""

    label: Label
    box: Box
    distance: float

    def draw(self) -> Html:
        """Return the text, with a thin line to the mark where that is not beside it."""
        label, box = self.label, self.box
        text = element(
            "text",
            {"x": box.left, "y": box.bottom - 0.28 * label.size, "class": f"label {label.look}"},
            label.text,
        )
        if self.distance < _LEADER_FROM:
            return text
        x = min(max(label.x, box.left), box.right)
        y = min(max(label.y, box.top + 2), box.bottom - 2)
        line = {"x1": label.x, "y1": label.y, "x2": x, "y2": y, "class": "leader"}
        return joined(element("line", line), text)


def text_width(text: str, size: float = SIZE) -> float:
    """Return about how wide a text is; rather more than less."""
    return size * sum(map(_units, text))


def _units(character: str) -> float:
    """Return how wide a character is in the broadest of usual fonts, relative to its size."""
    if character in _NARROW:
        return 0.42
    if character in _BROAD:
        return 1.0
    return 0.79 if character.isupper() else 0.64


def place(
    labels: Sequence[Label],
    *,
    points: Sequence[tuple[float, float]],
    bounds: Box,
    taken: Sequence[Box] = (),
) -> list[Placed]:
    """Return the labels that find a place inside `bounds`, the first ones choosing first.

    No two boxes overlap; labels keep off `taken` and, as far as they can, off `points`.
    """
    boxes = list(taken)
    found = []
    for label in labels:
        best: tuple[float, Placed] | None = None
        for candidate in _candidates(label):
            box = candidate.box
            if not box.within(bounds) or any(box.overlaps(other) for other in boxes):
                continue
            covered = sum(box.holds(x, y) for x, y in points)
            cost = candidate.distance + _COVERED * covered
            if best is None or cost < best[0]:
                best = (cost, candidate)
        if best is not None:
            boxes.append(best[1].box)
            found.append(best[1])
    return found


def _candidates(label: Label) -> list[Placed]:
    width, height = text_width(label.text, label.size), 1.3 * label.size
    found = []
    for distance in _DISTANCES:
        diagonal = 0.7 * distance
        for left, top in (
            (label.x + distance, label.y - height / 2),
            (label.x + diagonal, label.y - diagonal - height),
            (label.x + diagonal, label.y + diagonal),
            (label.x - width / 2, label.y - distance - height),
            (label.x - distance - width, label.y - height / 2),
            (label.x - diagonal - width, label.y - diagonal - height),
            (label.x - diagonal - width, label.y + diagonal),
            (label.x - width / 2, label.y + distance),
        ):
            box = Box(left=left, top=top, right=left + width, bottom=top + height)
            found.append(Placed(label=label, box=box, distance=distance))
    return found
