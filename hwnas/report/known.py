"""Other networks beside the front: which of them a figure shows, and all of them as a table."""

from dataclasses import dataclass

from hwnas.pipeline.landmarks import Landmark
from hwnas.report.blocks import Table
from hwnas.report.view import ACCURACY, View
from hwnas.report.words import DASH, listed, plural, quantity

_FAR = 3.0  # times the latencies of the subnets
_UNFOLDED = 8  # rows
_NAMED = 3
_PREDICTED = "≈"
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The most accurate subnet within a latency, as measured where it was."""

    accuracy: float
    measured: bool


def offers(view: View) -> list[Offer | None]:
    """Return for each landmark what this run offers within its latency, None for nothing."""
    seen = {found.spot.index for found in view.delivered if found.spot is not None}
    points = [(found.x, Offer(accuracy=found.y, measured=True)) for found in view.delivered]
    points += [
        (spot.x.mean, Offer(accuracy=spot.y.mean, measured=False))
        for spot in view.spots
        if spot.index not in seen
    ]
    return [
        max(
            (offer for x, offer in points if x <= landmark.latency),
            key=lambda offer: offer.accuracy,
            default=None,
        )
        for landmark in view.landmarks
    ]


def sentence(view: View) -> str:
    """Return in words how the run's subnets compare with the landmarks, at their latencies."""
    total, shown = len(view.landmarks), len(drawn(view))
    if not total:
        return ""
    if shown < total:
        where = f"Squares are {shown} of {total} other networks, trained by the same recipe; "
        rest = "the other one lies" if total == shown + 1 else "the others lie"
        where += f"{rest} outside of the figure. "
    elif total > 1:
        where = f"Squares are {total} other networks, trained by the same recipe. "
    else:
        where = "The square is another network, trained by the same recipe. "
    return f"{where}{_verdict(view)}"


def _verdict(view: View) -> str:
    """Return which landmarks are better than everything that the run has."""
    better = [
        label(landmark)
        for landmark, offer in zip(view.landmarks, offers(view), strict=True)
        if offer is None or offer.accuracy < landmark.accuracy
    ]
    total = len(view.landmarks)
    each = "Each" if total > 1 else "It"
    if not better:
        return f"{each} is less accurate than a subnet that is as fast."
    if len(better) == total:
        return f"{each} is more accurate than every subnet that is as fast."
    who = listed(better) if len(better) <= _NAMED else f"{len(better)} of them"
    are = "is" if len(better) == 1 else "are"
    others = "the other one is" if len(better) == total - 1 else "the others are"
    return f"{who} {are} more accurate than every subnet that is as fast, {others} not."


def table(view: View) -> Table:
    """Return all landmarks with what the run offers within the latency of each."""
    rows = [
        _row(view, landmark, offer)
        for landmark, offer in zip(view.landmarks, offers(view), strict=True)
    ]
    return Table(
        header=("network", "accuracy", "latency", "MACs", "parameters", "best subnet as fast"),
        rows=tuple(rows),
        caption="Other networks, trained by the recipe of this run on as many images, evaluated "
        "on the same held-out part and measured on the same device; beside each the most "
        f"accurate subnet that is as fast, as measured or ({_PREDICTED}) as predicted.",
        right=frozenset({1, 2, 3, 4, 5}),
        long_names=True,
        folded=f"{plural(len(rows), 'other network')} as a table" if len(rows) > _UNFOLDED else "",
    )


def _row(view: View, landmark: Landmark, offer: Offer | None) -> tuple[str, ...]:
    best = "none"
    if offer is not None:
        about = "" if offer.measured else _PREDICTED
        best = f"{about}{quantity(ACCURACY, offer.accuracy)}"
    return (
        landmark.name,
        quantity(ACCURACY, landmark.accuracy),
        quantity(view.x_name, landmark.latency),
        DASH if landmark.macs is None else quantity("macs", landmark.macs),
        DASH if landmark.params is None else quantity("params", landmark.params),
        best,
    )
