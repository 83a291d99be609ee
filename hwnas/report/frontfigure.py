"""The drawing of a front: predicted choices with intervals, what was measured, what to beat."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hwnas.report.baselines import RANDOM, Baseline
from hwnas.report.html import Html, element, joined
from hwnas.report.known import drawn, label
from hwnas.report.labels import Box, Label, place
from hwnas.report.plot import (
    Axis,
    Point,
    Room,
    area,
    axes,
    drawing,
    line,
    mark,
    polyline,
    stepped,
)
from hwnas.report.scales import Scale, scale_for, tick_labels
from hwnas.report.view import LATENCY, MACS, Spot, View, what
from hwnas.report.words import digits, percent, quantity, short

_NARROW_BELOW = 500.0
_WHISKERS = 36  # spots that show their intervals without being asked
_CLOSE = 3.0  # pixels
_RING = 8.0  # around a recommended choice


def front_figure(view: View, width: float) -> Html:
    """Return the drawing of a view at a width."""
    narrow = width < _NARROW_BELOW
    room = Room(width=width, height=400.0 if narrow else 480.0, left=38.0, top=34.0)
    x, y = _scales(view, room)
    parts = [
        axes(
            room,
            Axis(title=_x_title(view), scale=x),
            Axis(title="accuracy, %", scale=y, shown=percent_ticks),
        ),
        _budgets(view, room, x),
        *(_baseline(baseline, x, y) for baseline in view.baselines),
        _intervals(view, x, y),
        polyline(stepped([(x(s.x.mean), y(s.y.mean)) for s in view.on_front]), "front-line"),
        _landmarks(view, x, y),
        _choices(view, x, y),
        _delivered(view, x, y),
        _labels(view, room, x, y, narrow=narrow),
        element("g", {"class": "focus", "aria-hidden": "true"}),
    ]
    label = f"Accuracy over {what(view.x_name)}: {len(view.spots)} subnets to pick from"
    return drawing(room, label, *parts, interactive=True)


def percent_ticks(ticks: Sequence[float]) -> list[str]:
    """Return shares at ticks as percentages without the sign, which the title has."""
    return tick_labels([round(100 * tick, 9) for tick in ticks])


def _x_title(view: View) -> str:
    unit = ", ms" if view.x_name.partition(":")[0] == LATENCY else ""
    return f"{what(view.x_name)}{unit}"


def _scales(view: View, room: Room) -> tuple[Scale, Scale]:
    xs = [end for spot in view.spots for end in (spot.x.mean, spot.x.low, spot.x.high)]
    ys = [spot.y.mean for spot in view.spots]
    landmarks = drawn(view)
    xs += [found.x for found in view.delivered] + [mark.latency for mark in landmarks]
    ys += [found.y for found in view.delivered] + [mark.accuracy for mark in landmarks]
    for baseline in view.baselines:
        xs += [x for x, _ in baseline.points]
        ys += [y for _, y in baseline.points]
    ys += [end for spot in view.on_front for end in (spot.y.low, spot.y.high)]
    low, high = min(xs, default=0.0), max(xs, default=1.0)
    # A budget far beyond everything is left out rather than squeezing all the rest.
    xs += [limit for limit in view.limits if 0.5 * low <= limit <= 1.5 * high]
    box = room.box
    y = scale_for([min(y, 1.0) for y in ys], start=box.bottom, end=box.top, logarithmic=False)
    return scale_for(xs, start=box.left, end=box.right), replace(y, high=min(y.high, 1.0))


def _budgets(view: View, room: Room, x: Scale) -> Html:
    box = room.box
    lines = [
        line((x(limit), box.top), (x(limit), box.bottom), "budget")
        for limit in view.limits
        if x.low <= limit <= x.high
    ]
    return element("g", {"aria-hidden": "true"}, joined(*lines))


def _baseline(baseline: Baseline, x: Scale, y: Scale) -> Html:
    look = "random" if baseline.name == RANDOM else "uniform"
    places = _places(baseline, x, y)
    # Random search has about as many points as the front; marks would hide it.
    marks = [mark("triangle", at, "uniform-mark", size=2.4) for at in apart(places, 7.0)]
    marks = marks if look == "uniform" else []
    title = f"{baseline.name}, best of {baseline.tried:,}"
    return element(
        "g",
        {"aria-hidden": "true"},
        element("title", None, title),
        polyline(stepped(places), f"{look}-line"),
        joined(*marks),
    )


def _places(baseline: Baseline, x: Scale, y: Scale) -> list[Point]:
    return [(x(cost), y(accuracy)) for cost, accuracy in baseline.points]


def along(points: Sequence[Point], step: float) -> list[Point]:
    """Return points on the lines between points, about a step apart."""
    found: list[Point] = []
    for (x1, y1), (x2, y2) in pairwise(points):
        pieces = max(1, round((abs(x2 - x1) + abs(y2 - y1)) / step))
        found += [
            (x1 + (x2 - x1) * place / pieces, y1 + (y2 - y1) * place / pieces)
            for place in range(pieces)
        ]
    return found


def apart(points: Sequence[Point], distance: float) -> list[Point]:
    """Return the points without those that are very close to the one before."""
    kept: list[Point] = []
    for at in points:
        if not kept or abs(at[0] - kept[-1][0]) + abs(at[1] - kept[-1][1]) >= distance:
            kept.append(at)
    return kept


def _intervals(view: View, x: Scale, y: Scale) -> Html:
    spots = view.on_front
    upper = [(x(spot.x.mean), y(spot.y.high)) for spot in spots]
    lower = [(x(spot.x.mean), y(spot.y.low)) for spot in spots]
    lines = [
        line((x(spot.x.low), y(spot.y.mean)), (x(spot.x.high), y(spot.y.mean)), "whisker")
        for spot in spots[:: max(1, -(-len(spots) // _WHISKERS))]
    ]
    return element("g", {"aria-hidden": "true"}, area(upper, lower, "band"), joined(*lines))


def _landmarks(view: View, x: Scale, y: Scale) -> Html:
    marks = [
        mark(
            "square",
            (x(found.latency), y(found.accuracy)),
            "landmark",
            size=4.0,
            title=f"{found.name}: {percent(found.accuracy)}, {quantity(LATENCY, found.latency)}",
        )
        for found in drawn(view)
    ]
    return element("g", None, joined(*marks))


def _choices(view: View, x: Scale, y: Scale) -> Html:
    best = {spot.index for _, spot in view.recommended}
    marks = [_choice(spot, view, x, y, best=spot.index in best) for spot in view.spots]
    attributes = {
        "role": "listbox",
        "aria-label": "Subnets of the front. Arrow keys move, Enter picks.",
        "class": "choices",
    }
    return element("g", attributes, joined(*marks))


def _choice(spot: Spot, view: View, x: Scale, y: Scale, *, best: bool) -> Html:
    label = (
        f"{'recommended subnet' if best else 'subnet'} {short(spot.digest)}: accuracy "
        f"{percent(spot.y.mean)}, {what(view.x_name)} {quantity(view.x_name, spot.x.mean)}"
    )
    attributes = {
        "cx": x(spot.x.mean),
        "cy": y(spot.y.mean),
        "r": 5.5 if best else 3.6,
        "class": "choice best" if best else "choice",
        "role": "option",
        "tabindex": "-1",
        "aria-label": label,
        "aria-selected": "false",
        "data-choice": str(spot.index),
        "data-x": f"{x(spot.x.low):.1f} {x(spot.x.high):.1f}",
        "data-y": f"{y(spot.y.low):.1f} {y(spot.y.high):.1f}",
    }
    return element("circle", attributes)


def _delivered(view: View, x: Scale, y: Scale) -> Html:
    parts = []
    for found in view.delivered:
        at = (x(found.x), y(found.y))
        if found.spot is not None:
            promised = (x(found.spot.x.mean), y(found.spot.y.mean))
            if abs(promised[0] - at[0]) + abs(promised[1] - at[1]) > _CLOSE:
                parts.append(line(promised, at, "drift"))
        title = (
            f"{short(found.digest)} measured: {percent(found.y)}, {quantity(view.x_name, found.x)}"
        )
        parts.append(mark("diamond", at, "measured", size=4.2, title=title))
    return element("g", None, joined(*parts))


def _labels(view: View, room: Room, x: Scale, y: Scale, *, narrow: bool) -> Html:
    box = room.box
    taken = [
        Box(
            left=x(spot.x.mean) - _RING,
            right=x(spot.x.mean) + _RING,
            top=y(spot.y.mean) - _RING,
            bottom=y(spot.y.mean) + _RING,
        )
        for _, spot in view.recommended
    ]
    points = [(x(spot.x.mean), y(spot.y.mean)) for spot in view.on_front]
    points += [(x(found.x), y(found.y)) for found in view.delivered]
    points += [(x(found.latency), y(found.accuracy)) for found in drawn(view)]
    for baseline in view.baselines:
        points += along(stepped(_places(baseline, x, y)), 14.0)
    points += [
        (x(limit), box.top + share * (box.bottom - box.top))
        for limit in view.limits
        for share in (0.1, 0.3, 0.5, 0.7, 0.9)
    ]
    wanted = [*_budget_labels(view, box, x, narrow=narrow), *_recommended_labels(view, x, y)]
    wanted += [
        Label(text=label(found), x=x(found.latency), y=y(found.accuracy), look="landmark-text")
        for found in drawn(view)
    ]
    wanted += _line_labels(view, x, y, narrow=narrow)
    bounds = Box(left=box.left + 2, right=room.width - 1, top=box.top - 10, bottom=box.bottom - 3)
    found = place(wanted, points=points, bounds=bounds, taken=taken)
    return element("g", {"aria-hidden": "true"}, joined(*(placed.draw() for placed in found)))


def _budget_labels(view: View, box: Box, x: Scale, *, narrow: bool) -> list[Label]:
    unitless = view.x_name.partition(":")[0] == LATENCY
    return [
        Label(
            # Where there is little room the unit is left to the axis.
            text=digits(limit) if narrow and unitless else quantity(view.x_name, limit),
            x=x(limit),
            y=box.top - 2,
            look="budget-text",
        )
        for limit in view.limits
        if x.low <= limit <= x.high
    ]


def _recommended_labels(view: View, x: Scale, y: Scale) -> list[Label]:
    """Return a label for each recommended choice, at what was measured of it if anything was."""
    seen: dict[str, tuple[float, float]] = {
        spot.digest: (spot.x.mean, spot.y.mean) for _, spot in view.recommended
    }
    seen |= {found.digest: (found.x, found.y) for found in view.delivered if found.digest in seen}
    return [
        Label(
            text=f"{percent(accuracy)}, {quantity(view.x_name, cost)}",
            x=x(cost),
            y=y(accuracy),
            look="best-text",
        )
        for cost, accuracy in seen.values()
    ]


def _line_labels(view: View, x: Scale, y: Scale, *, narrow: bool) -> list[Label]:
    found = []
    for baseline in view.baselines:
        if not baseline.points:
            continue
        cost, accuracy = baseline.points[len(baseline.points) * 2 // 3]
        look = "random-text" if baseline.name == RANDOM else "uniform-text"
        text = baseline.name if narrow else f"{baseline.name} ({baseline.tried:,} tried)"
        found.append(Label(text=text, x=x(cost), y=y(accuracy), look=look))
    if view.on_front and view.x_name != MACS:
        last = view.on_front[-1]
        found.append(Label(text="front", x=x(last.x.mean), y=y(last.y.mean), look="front-text"))
    return found
