"""How good the predictors are: predicted against measured, and what more rows would buy."""

from collections.abc import Sequence

from hwnas.pipeline.advice import POOR_RANK
from hwnas.pipeline.evaluations import HeldOut, StoredEvaluation
from hwnas.report.blocks import Block, Figure, Figures, Paragraph, Section, Table, figure
from hwnas.report.gather import Material
from hwnas.report.html import Html, element, joined
from hwnas.report.plot import Axis, Room, axes, drawing, line, mark, polyline
from hwnas.report.scales import Scale, scale_for, tick_labels
from hwnas.report.words import DASH, digits, plural

ANCHOR, TITLE = "predictors", "How good the predictions are"
_MOST_ROWS = 400
_HALF = 412.0
_UNITS = {
    "accuracy": ("accuracy, %", 100.0),
    "latency_ms": ("latency, ms", 1.0),
    "throughput_per_s": ("throughput, /s", 1.0),
    "peak_mb": ("peak memory, MB", 1.0),
    "energy_mj": ("energy, mJ", 1.0),
}


def section(material: Material) -> Section:
    """Return the quality of every predictor of the run."""
    if not material.evaluations:
        return Section(
            anchor=ANCHOR,
            title=TITLE,
            missing="No predictor has been fitted yet.",
            command=f"hwnas fit --run {material.run.typed}",
        )
    blocks: list[Block] = []
    if any(evaluation.scores is not None for evaluation in material.evaluations):
        text = "Errors are those of predictors that had not seen the subnet (cross-validation)."
        blocks.append(Paragraph(text=text))
    for evaluation in material.evaluations:
        blocks += _predictor(evaluation)
    if len(material.evaluations) > 1:
        blocks.append(_table(material.evaluations))
    return Section(anchor=ANCHOR, title=TITLE, blocks=tuple(blocks))


def _predictor(evaluation: StoredEvaluation) -> list[Block]:
    blocks: list[Block] = [
        Paragraph(text=_heading(evaluation), look="subtitle"),
        Paragraph(text=_sentence(evaluation)),
    ]
    figures: list[Figure] = []
    if evaluation.held_out:
        rows = evaluation.held_out[:: -(-len(evaluation.held_out) // _MOST_ROWS)]
        figures.append(_scatter(evaluation, rows))
    if len(evaluation.curve) > 1:
        figures.append(_curve(evaluation))
    if figures:
        blocks.append(Figures(figures=tuple(figures)))
    return blocks


def _heading(evaluation: StoredEvaluation) -> str:
    about = evaluation.about
    what = _UNITS.get(evaluation.target, (evaluation.target, 1.0))[0].partition(",")[0]
    parts = [what[:1].upper() + what[1:]]
    if "device" in about:
        parts.append(f"on {about['device']}")
    how = [about[key] for key in ("backend", "precision") if key in about]
    if "threads" in about:
        how.append(plural(int(about["threads"]), "thread"))
    if int(about.get("batch", "1")) > 1:
        how.append(f"batch {about['batch']}")
    return " ".join(parts) + (f" ({', '.join(how)})" if how else "")


def _sentence(evaluation: StoredEvaluation) -> str:
    scores = evaluation.scores
    if scores is None:
        remarks = "; ".join(evaluation.remarks) or "it was fitted with --quick"
        return f"{plural(evaluation.rows, 'row')}, not evaluated: {remarks}."
    text = (
        f"With {plural(evaluation.rows, 'measured subnet')} the mean error is "
        f"{digits(scores.mape, 2)} %. Of two subnets the better one is named "
        f"{50 * (1 + scores.kendall):.0f} times in 100 (Kendall's tau {scores.kendall:.2f}, "
        f"Spearman's rank correlation {scores.spearman:.2f})"
        f"{'; that is little to choose by' if scores.kendall < POOR_RANK else ''}. The 90 % "
        f"intervals hold {scores.coverage_90:.0f} % of what was measured at a median width of "
        f"{digits(scores.width_90, 2)} %."
    )
    if evaluation.gain is not None:
        text += (
            f" 20 more would lower the error by about {digits(evaluation.gain, 1)} points."
            if evaluation.gain >= 0.005
            else " 20 more would hardly lower the error."
        )
    if evaluation.remarks:
        text += f" Note: {'; '.join(evaluation.remarks)}."
    return text.replace(" %", "\u00a0%")


def _scatter(evaluation: StoredEvaluation, rows: Sequence[HeldOut]) -> Figure:
    outside = sum(not row.inside for row in evaluation.held_out)
    return figure(
        lambda width: scatter_figure(evaluation.target, rows, width),
        f"Predicted and measured; {outside} of {plural(len(evaluation.held_out), 'subnet')} lie "
        "outside of their interval.",
        legend=(("held", "inside its 90 % interval"), ("held outside", "outside")),
        wide=_HALF,
    )


def scatter_figure(target: str, rows: Sequence[HeldOut], width: float) -> Html:
    """Return predicted over measured with intervals; the diagonal is a perfect prediction."""
    title, factor = _UNITS.get(target, (target, 1.0))
    room = Room(width=width, height=0.86 * width, left=44.0)
    box = room.box
    values = [factor * end for row in rows for end in (row.measured, row.mean)]
    # One range for both axes, so that the diagonal is one; intervals may leave the figure.
    x = scale_for(values, start=box.left, end=box.right)
    y = Scale(low=x.low, high=x.high, start=box.bottom, end=box.top, logarithmic=x.logarithmic)
    whiskers, marks = [], []
    for row in rows:
        across = x(factor * row.measured)
        look = "" if row.inside else " outside"
        low, high = y(factor * row.low), y(factor * row.high)
        whiskers.append(line((across, low), (across, high), f"held-range{look}"))
        marks.append(mark("circle", (across, y(factor * row.mean)), f"held{look}", size=2.6))
    diagonal = line((x(x.low), y(x.low)), (x(x.high), y(x.high)), "diagonal")
    frame = axes(
        room, Axis(title=f"measured {title}", scale=x), Axis(title=f"predicted {title}", scale=y)
    )
    label = f"Predicted against measured {title} of {len(rows)} subnets"
    return drawing(room, label, frame, diagonal, joined(*whiskers), joined(*marks))


def _curve(evaluation: StoredEvaluation) -> Figure:
    first, last = evaluation.curve[0], evaluation.curve[-1]
    return figure(
        lambda width: curve_figure(evaluation, width),
        f"Learning curve: the mean error is {digits(first.mape, 2)}\u00a0% with "
        f"{first.rows} rows and {digits(last.mape, 2)}\u00a0% with {last.rows}.",
        wide=_HALF,
    )


def curve_figure(evaluation: StoredEvaluation, width: float) -> Html:
    """Return the mean error over the number of rows that a predictor was fitted on."""
    room = Room(width=width, height=0.86 * width, left=40.0, right=24.0)
    box = room.box
    x = scale_for(
        [point.rows for point in evaluation.curve],
        start=box.left,
        end=box.right,
        logarithmic=False,
        margin=0.08,
    )
    y = scale_for(
        [point.mape for point in evaluation.curve],
        start=box.bottom,
        end=box.top,
        zero=True,
        margin=0.14,
    )
    places = [(x(point.rows), y(point.mape)) for point in evaluation.curve]
    frame = axes(
        room,
        Axis(title="rows that it was fitted on", scale=x, shown=_whole),
        Axis(title="mean error, %", scale=y),
    )
    marks = [mark("circle", place, "curve-mark", size=3.4) for place in places]
    texts = []
    for place, (point, (across, up)) in enumerate(zip(evaluation.curve, places, strict=True)):
        # The curve falls: above the first point and below the others there is room.
        text = f"{digits(point.mape, 2)} %"
        attributes = {"x": across, "y": up - 9 if place == 0 else up + 19, "class": "label middle"}
        texts.append(element("text", attributes, text))
    label = "Mean error by number of rows: " + ", ".join(
        f"{digits(point.mape, 2)} % with {point.rows}" for point in evaluation.curve
    )
    return drawing(room, label, frame, polyline(places, "curve"), joined(*marks), joined(*texts))


def _whole(ticks: Sequence[float]) -> list[str]:
    return tick_labels(ticks)


def _table(evaluations: Sequence[StoredEvaluation]) -> Table:
    lines = []
    for evaluation in evaluations:
        scores = evaluation.scores
        figures = (
            (DASH,) * 6
            if scores is None
            else (
                f"{scores.mape:.2f}",
                f"{scores.within_5:.0f}",
                f"{scores.within_10:.0f}",
                f"{scores.spearman:.3f}",
                f"{scores.coverage_90:.0f}",
                f"{scores.width_90:.1f}",
            )
        )
        lines.append((evaluation.name, str(evaluation.rows), *figures))
    return Table(
        header=(
            "predictor", "rows", "error, %", "within 5 %", "within 10 %", "Spearman",
            "in interval, %", "interval width, %",
        ),
        rows=tuple(lines),
        caption="All predictors. Shares and errors in percent.",
        right=frozenset(range(1, 8)),
        folded=f"{'Both' if len(lines) == 2 else 'All'} predictors as a table",
    )  # fmt: skip
