"""Other networks beside the front: which of them a figure shows, and all of them as a table."""

from collections.abc import Sequence

from hwnas.pipeline.landmarks import Landmark
from hwnas.report.blocks import Table
from hwnas.report.view import ACCURACY, View
from hwnas.report.words import DASH, MINUS, digits, plural, quantity

_FAR = 3.0  # times the latencies of the subnets
_UNFOLDED = 8  # rows
_LEAST_SPAN = 0.02  # of accuracies


def drawn(view: View) -> list[Landmark]:
    """Return the landmarks that a figure can show without squeezing the subnets together."""
    xs = [spot.x.mean for spot in view.spots] + [found.x for found in view.delivered]
    ys = [spot.y.mean for spot in view.spots] + [found.y for found in view.delivered]
    if not xs:
        return list(view.landmarks)
    span = max(max(ys) - min(ys), _LEAST_SPAN)
    return [
        landmark
        for landmark in view.landmarks
        if min(xs) / _FAR <= landmark.latency <= max(xs) * _FAR
        and landmark.accuracy >= min(ys) - span
    ]


def label(landmark: Landmark) -> str:
    """Return a name short enough for a figure: arguments are left to the table."""
    name, colon, _ = landmark.name.partition(":")
    return f"{name}…" if colon else name


def sentence(view: View) -> str:
    """Return in words how the front compares with the landmarks, each at its own latency."""
    if not view.landmarks:
        return ""
    total, shown = len(view.landmarks), drawn(view)
    offers = [(_best_within(view, mark), mark.accuracy) for mark in view.landmarks]
    better = sum(best is not None and best > accuracy for best, accuracy in offers)
    text = f"Squares are {plural(len(shown), 'other network')} trained by the same recipe. "
    if len(shown) < total:
        text = (
            f"Squares are {len(shown)} of {plural(total, 'other network')} trained by the same "
            "recipe; the rest lies outside of the figure. "
        )
    whom = f"{better} of the {total}" if total > 1 else f"{'it' if better else 'none'}"
    return f"{text}Within the latency of each, the front is predicted to be better than {whom}. "


def table(view: View) -> Table:
    """Return all landmarks with what the front offers within the latency of each."""
    rows = [_row(view, landmark) for landmark in view.landmarks]
    return Table(
        header=("network", "accuracy", "latency", "MACs", "parameters", "front within its latency"),
        rows=tuple(rows),
        caption="Other networks, trained by the recipe of this run on as many images, evaluated "
        "on the same held-out part and measured on the same device. The front is as predicted.",
        right=frozenset({1, 2, 3, 4, 5}),
        folded=f"{plural(len(rows), 'other network')} as a table" if len(rows) > _UNFOLDED else "",
    )


def _row(view: View, landmark: Landmark) -> tuple[str, ...]:
    best = _best_within(view, landmark)
    offered = DASH
    if best is not None:
        gain = 100 * (best - landmark.accuracy)
        sign = "+" if gain >= 0 else MINUS
        offered = f"{quantity(ACCURACY, best)} ({sign}{digits(abs(gain), 2)})"
    return (
        landmark.name,
        quantity(ACCURACY, landmark.accuracy),
        quantity(view.x_name, landmark.latency),
        DASH if landmark.macs is None else quantity("macs", landmark.macs),
        DASH if landmark.params is None else quantity("params", landmark.params),
        offered,
    )


def _best_within(view: View, landmark: Landmark) -> float | None:
    inside: Sequence[float] = [
        spot.y.mean for spot in view.on_front if spot.x.mean <= landmark.latency
    ]
    return max(inside, default=None)
