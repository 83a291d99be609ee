"""How training went: losses, accuracies at evaluations, and how often gradients disagree."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from hwnas.report.blocks import Block, Figures, Paragraph, Section, figure
from hwnas.report.frontfigure import percent_ticks
from hwnas.report.gather import Material
from hwnas.report.html import Html, joined
from hwnas.report.labels import Box, Label, place
from hwnas.report.plot import Axis, Point, Room, axes, drawing, mark, polyline
from hwnas.report.scales import scale_for
from hwnas.report.words import listed, percent, plural

ANCHOR, TITLE = "training", "Training"
_MOST_POINTS = 240
_SMOOTHED_OVER = 5
_LOOKS = {"": "line-1", "largest": "line-1", "random": "line-2", "smallest": "line-3"}
_MORE_LOOKS = ("line-4", "line-5", "line-6")
_HALF = 412.0

Series = Mapping[str, Sequence[Point]]


def section(material: Material) -> Section:
    """Return the curves of the training events."""
    if not material.events:
        return Section(
            anchor=ANCHOR,
            title=TITLE,
            missing="There are no training events: the supernet's weights were not trained here.",
            command=f"hwnas train RECIPE --run {material.run.typed}",
        )
    losses = _losses(material.events)
    accuracies = _accuracies(material.events)
    conflicts = _conflicts(material.events)
    text = " ".join(filter(None, [_about(material, losses), _reached(accuracies)]))
    blocks: list[Block] = [Paragraph(text=text)]
    if any(losses.values()):
        blocks.append(
            figure(
                lambda width: curves_figure(losses, width, y_title="training loss", smooth=True),
                "Training loss of the subnets of a step by their role; the line is the running "
                "median, the shade behind it every logged step.",
            )
        )
    figures = []
    if any(len(points) > 1 for points in accuracies.values()):  # else the text says it all
        figures.append(
            figure(
                lambda width: curves_figure(accuracies, width, y_title="accuracy, %", shares=True),
                "Accuracy on the held-out part at each evaluation, batch norms calibrated.",
                wide=_HALF,
            )
        )
    if conflicts:
        figures.append(
            figure(
                lambda width: curves_figure(
                    {"": conflicts}, width, y_title="conflict ratio, %", shares=True, zero=True
                ),
                _conflict_words(conflicts),
                wide=_HALF,
            )
        )
    if figures:
        blocks.append(Figures(figures=tuple(figures)))
    return Section(anchor=ANCHOR, title=TITLE, blocks=tuple(blocks))


def _about(material: Material, losses: Series) -> str:
    steps = max((int(event.get("step", 0)) for event in material.events), default=0)
    epochs = material.recipe.get("schedule", {}).get("epochs")
    text = f"{plural(steps, 'step')}"
    if epochs is not None:
        text += f" in {plural(epochs, 'epoch')}"
    if material.data:
        text += f" on {material.data}"
    roles = [role for role in losses if role]
    if len(roles) > 1:
        text += f"; each step trains the {listed(roles)} subnets"
    speeds = [float(e["images_per_second"]) for e in material.events if e.get("kind") == "speed"]
    if speeds:
        text += f", {speeds[-1]:.0f} images per second at the end"
    return text + "."


def _reached(accuracies: Series) -> str:
    if not accuracies:
        return ""
    ends = [f"{percent(points[-1][1])} ({name})" for name, points in accuracies.items()]
    return f"Accuracies reached: {listed(ends)}."


def _conflict_words(points: Sequence[Point]) -> str:
    values = [value for _, value in points]
    return (
        "Share of tensors in which the largest subnet's gradient and the others' point in "
        f"opposite directions: {percent(median(values))} in the median, "
        f"{percent(values[-1])} at the end."
    )


def _losses(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for event in events:
        for role, loss in event.get("losses", {}).items():
            found.setdefault(str(role), []).append((float(event["step"]), float(loss)))
    return {role: thinned(points) for role, points in found.items()}


def _accuracies(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Point]]:
    found: dict[str, list[Point]] = {}
    for event in events:
        if event.get("kind") == "evaluation":
            for name, value in event["accuracy"].items():
                found.setdefault(str(name), []).append((float(event["step"]), float(value)))
    return found


def _conflicts(events: Sequence[Mapping[str, Any]]) -> list[Point]:
    return thinned(
        [
            (float(event["step"]), float(event["conflict_ratio"]))
            for event in events
            if event.get("conflict_ratio") is not None
        ]
    )


def thinned(points: list[Point]) -> list[Point]:
    """Return at most _MOST_POINTS points: of each group of neighbours the middle and its median."""
    size = -(-len(points) // _MOST_POINTS)
    if size <= 1:
        return points
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return [(group[len(group) // 2][0], median(y for _, y in group)) for group in groups]


def smoothed(points: Sequence[Point], width: int = _SMOOTHED_OVER) -> list[Point]:
    """Return the running median over `width` points."""
    half = width // 2
    return [
        (x, median(y for _, y in points[max(0, index - half) : index + half + 1]))
        for index, (x, _) in enumerate(points)
    ]


def curves_figure(
    series: Series,
    width: float,
    *,
    y_title: str,
    smooth: bool = False,
    shares: bool = False,
    zero: bool = False,
) -> Html:
    """Return lines over training steps, each with its name at its end."""
    names = [name for name in series if series[name]]
    small = width <= _HALF
    room = Room(
        width=width,
        height=270.0 if small else 320.0,
        left=40.0,
        right=82.0 if any(names) else 14.0,
    )
    box = room.box
    every = [point for name in names for point in series[name]]
    x = scale_for(
        [0.0, *(at for at, _ in every)], start=box.left, end=box.right, logarithmic=False, margin=0
    )
    y = scale_for([value for _, value in every], start=box.bottom, end=box.top, zero=zero)
    y_axis = (
        Axis(title=y_title, scale=y, shown=percent_ticks)
        if shares
        else Axis(title=y_title, scale=y)
    )
    parts: list[Html] = [axes(room, Axis(title="training steps", scale=x), y_axis)]
    labels = []
    for name, look in zip(names, _looks(names), strict=True):
        places = [(x(at), y(value)) for at, value in series[name]]
        if smooth:
            parts.append(polyline(places, f"{look} raw"))
            places = [(x(at), y(value)) for at, value in smoothed(series[name])]
        parts.append(polyline(places, look))
        if len(places) <= 12:
            parts += [mark("circle", at, f"{look} dot", size=3.0) for at in places]
        at = places[-1]
        labels.append(Label(text=name, x=at[0], y=at[1], look=f"{look}-text"))
    bounds = Box(left=box.right + 1, right=width + 20, top=box.top - 8, bottom=box.bottom + 4)
    labels.sort(key=lambda label: label.y)
    placed = place([label for label in labels if label.text], points=[], bounds=bounds)
    parts += [label.draw() for label in placed]
    return drawing(room, f"{y_title} over training steps: {listed(names)}", joined(*parts))


def _looks(names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        look = _LOOKS.get(name) or _LOOKS.get(name.partition(" ")[0], "")
        if not look or look in found:
            spare = [other for other in _MORE_LOOKS if other not in found]
            look = spare[0] if spare else _MORE_LOOKS[-1]
        found.append(look)
    return found
