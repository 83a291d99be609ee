"""The frame of a figure: axes with units, a quiet grid, and the shapes that marks are made of."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hwnas.report.html import Html, element, number
from hwnas.report.labels import Box
from hwnas.report.scales import Scale, tick_labels

WIDE, NARROW = 840.0, 358.0
_PER_TICK_X, _PER_TICK_Y = 58.0, 46.0

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """What an axis says. `shown`: how a value is written at its tick (default: as a number)."""

    title: str
    scale: Scale
    shown: Callable[[Sequence[float]], list[str]] = field(default=tick_labels)


@dataclass(frozen=True, kw_only=True, slots=True)
class Room:
    """The size of a figure and the room around what is plotted."""

    width: float
    height: float
    left: float = 44.0
    right: float = 14.0
    top: float = 26.0
    bottom: float = 42.0

    @property
    def box(self) -> Box:
        """Where values are plotted."""
        return Box(
            left=self.left,
            top=self.top,
            right=self.width - self.right,
            bottom=self.height - self.bottom,
        )


def drawing(room: Room, label: str, *parts: str, interactive: bool = False) -> Html:
    """Return the SVG of a figure; `label` is what is read out instead of it."""
    attributes = {
        "viewBox": f"0 0 {number(room.width)} {number(room.height)}",
        "width": room.width,
        "height": room.height,
        "role": "group" if interactive else "img",
        "aria-label": label,
    }
    return element("svg", attributes, *parts)


def axes(room: Room, x: Axis, y: Axis) -> Html:
    """Return grid, ticks and titles. The title of y stands above the axis, to be read upright."""
    box = room.box
    x_ticks = x.scale.ticks(max(3, int((box.right - box.left) / _PER_TICK_X)))
    y_ticks = y.scale.ticks(max(3, int((box.bottom - box.top) / _PER_TICK_Y)))
    parts: list[str] = []
    for tick, text in zip(y_ticks, y.shown(y_ticks), strict=True):
        place = y.scale(tick)
        parts.append(line((box.left, place), (box.right, place), "grid"))
        parts.append(
            element("text", {"x": box.left - 7, "y": place + 4, "class": "tick end"}, text)
        )
    for tick, text in zip(x_ticks, x.shown(x_ticks), strict=True):
        place = x.scale(tick)
        parts.append(line((place, box.bottom), (place, box.bottom + 4), "axis"))
        parts.append(
            element("text", {"x": place, "y": box.bottom + 17, "class": "tick middle"}, text)
        )
    parts.append(line((box.left, box.bottom), (box.right, box.bottom), "axis"))
    title = x.title + (", logarithmic" if x.scale.logarithmic else "")
    parts.append(
        element("text", {"x": box.right, "y": box.bottom + 34, "class": "title end"}, title)
    )
    title = y.title + (", logarithmic" if y.scale.logarithmic else "")
    parts.append(element("text", {"x": 0, "y": box.top - 12, "class": "title"}, title))
    return element("g", {"aria-hidden": "true"}, *parts)


def line(start: Point, end: Point, look: str) -> Html:
    """Return a straight line."""
    (x1, y1), (x2, y2) = start, end
    return element("line", {"x1": x1, "y1": y1, "x2": x2, "y2": y2, "class": look})


def polyline(points: Sequence[Point], look: str) -> Html:
    """Return lines from point to point."""
    text = " ".join(f"{number(x)},{number(y)}" for x, y in points)
    return element("polyline", {"points": text, "class": look})


def area(upper: Sequence[Point], lower: Sequence[Point], look: str) -> Html:
    """Return the area between two lines."""
    text = " ".join(f"{number(x)},{number(y)}" for x, y in [*upper, *reversed(lower)])
    return element("polygon", {"points": text, "class": look})


def mark(shape: str, at: Point, look: str, *, size: float = 4.0, title: str = "") -> Html:
    """Return a mark: circle, square, diamond, triangle or cross; `title` shows on hovering."""
    x, y = at
    children = (element("title", None, title),) if title else ()
    if shape == "circle":
        return element("circle", {"cx": x, "cy": y, "r": size, "class": look}, *children)
    text = _OUTLINES[shape](x, y, size)
    return element("path", {"d": text, "class": look}, *children)


def stepped(points: Sequence[Point]) -> list[Point]:
    """Return the corners of the staircase through points: a front holds until the next point."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))
    return corners


def _square(x: float, y: float, size: float) -> str:
    side = number(2 * size)
    return f"M{number(x - size)} {number(y - size)}h{side}v{side}h-{side}z"


def _diamond(x: float, y: float, size: float) -> str:
    far = number(1.35 * size)
    return f"M{number(x)} {number(y - 1.35 * size)}l{far} {far}l-{far} {far}l-{far} -{far}z"


def _triangle(x: float, y: float, size: float) -> str:
    half, base, height = number(1.2 * size), number(2.4 * size), number(2.2 * size)
    return f"M{number(x)} {number(y - 1.3 * size)}l{half} {height}h-{base}z"


def _cross(x: float, y: float, size: float) -> str:
    left, across = number(x - size), number(2 * size)
    return (
        f"M{left} {number(y - size)}l{across} {across}M{left} {number(y + size)}l{across} -{across}"
    )


_OUTLINES: dict[str, Callable[[float, float, float], str]] = {
    "square": _square,
    "diamond": _diamond,
    "triangle": _triangle,
    "cross": _cross,
}
