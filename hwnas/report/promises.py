"""What was promised and what was delivered: budgets, predictions and measurements side by side."""

from collections.abc import Sequence

import numpy as np

from hwnas.pipeline.fronts import Verified
from hwnas.report.blocks import Block, Paragraph, Section, Table, figure
from hwnas.report.gather import Material
from hwnas.report.html import Html, element, joined
from hwnas.report.labels import text_width
from hwnas.report.plot import Room, drawing, line, mark
from hwnas.report.scales import Scale, scale_for, tick_labels
from hwnas.report.view import ACCURACY, limits_of, what
from hwnas.report.words import DASH, SPACE, digits, percent, plural, quantity, short

ANCHOR, TITLE = "promises", "Promised and delivered"
_ROW = 30.0
_MOST = 40
_CHANGE, _STAR = "promised → measured", "★"


def section(material: Material) -> Section:
    """Return how promises were kept, for verified choices and for exported models."""
    folder = material.run.folder
    if not material.verified and not material.manifests:
        return Section(
            anchor=ANCHOR,
            title=TITLE,
            missing="No subnet has been built and measured yet.",
            command=f"hwnas search --run {folder} --latency 25ms --verify 5",
        )
    blocks: list[Block] = []
    latest = _latest(material.verified)
    for name in _measured_names(latest):
        rows = [entry for entry in latest if name in entry.measured and name in entry.predicted]
        if rows:
            blocks += [Paragraph(text=_sentence(rows, name)), _ranges(rows, name)]
    if latest:
        blocks.append(_table(latest))
    if material.manifests:
        blocks.append(_artifacts(material))
    return Section(anchor=ANCHOR, title=TITLE, blocks=tuple(blocks))


def _latest(verified: Sequence[Verified]) -> list[Verified]:
    """Return the last verification of each subnet and budget, at most a page of them."""
    last = {(entry.digest, entry.budget): entry for entry in verified}
    return list(last.values())[-_MOST:]


def _measured_names(rows: Sequence[Verified]) -> list[str]:
    names = dict.fromkeys(name for entry in rows for name in entry.measured)
    return [name for name in names if name.partition(":")[0] in ("latency", "accuracy")]


def _sentence(rows: Sequence[Verified], name: str) -> str:
    inside = sum(
        entry.predicted[name].low <= entry.measured[name] <= entry.predicted[name].high
        for entry in rows
    )
    if name == "accuracy":
        away = [abs(entry.measured[name] - entry.predicted[name].mean) for entry in rows]
        how = f"{digits(100 * float(np.median(away)), 2)} points"
    else:
        away = [abs(entry.measured[name] / entry.predicted[name].mean - 1) for entry in rows]
        how = percent(float(np.median(away)))
    text = (
        f"{_capital(what(name))}: {inside} of {plural(len(rows), 'measurement')} lie in the "
        f"promised 90 % interval; the median difference is {how}."
    )
    if name != "accuracy":
        met = sum(entry.met for entry in rows)
        text += f" {met} of {len(rows)} kept their budget when measured."
    return text


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ranges(rows: Sequence[Verified], name: str) -> Block:
    legend = [("range", "promised: 90 % interval"), ("measured", "measured")]
    if any(limits_of(entry, name) for entry in rows if name != "accuracy"):
        legend.append(("budget-mark", "budget"))
    return figure(
        lambda width: range_figure(rows, name, width),
        f"Promised and measured {what(name)} of each verified subnet.",
        legend=tuple(legend),
    )


def range_figure(rows: Sequence[Verified], name: str, width: float) -> Html:
    """Return a row per verified subnet: promised interval, measured value, budget."""
    left = text_width("0" * 12) + 12
    room = Room(width=width, height=26 + _ROW * len(rows) + 42, left=left, right=70.0, top=22.0)
    limits = [_limit(entry, name) for entry in rows]
    values = [limit for limit in limits if limit is not None]
    for entry in rows:
        values += [entry.predicted[name].low, entry.predicted[name].high, entry.measured[name]]
    box = room.box
    logarithmic = False if name == ACCURACY else None
    x = scale_for(values, start=box.left, end=box.right, logarithmic=logarithmic)
    parts = [_ruler(room, x, name)]
    for place, (entry, limit) in enumerate(zip(rows, limits, strict=True)):
        y = box.top + _ROW * (place + 0.5)
        parts += _row(entry, name, x, y, limit=limit, right=box.right)
    return drawing(room, f"Promised and measured {what(name)}", *parts)


def _limit(entry: Verified, name: str) -> float | None:
    found = limits_of(entry, name) if name != "accuracy" else []
    return min(found, default=None)


def _row(
    entry: Verified, name: str, x: Scale, y: float, *, limit: float | None, right: float
) -> list[Html]:
    promised, measured = entry.predicted[name], entry.measured[name]
    look = "tick" if promised.low <= measured <= promised.high else "tick outside-text"
    parts = [
        element("text", {"x": 0, "y": y + 4, "class": "tick"}, short(entry.digest)),
        line((x(promised.low), y), (x(promised.high), y), "range"),
        line((x(promised.mean), y - 5), (x(promised.mean), y + 5), "range-mean"),
        mark("diamond", (x(measured), y), "measured", size=4.2),
        element("text", {"x": right + 8, "y": y + 4, "class": look}, quantity(name, measured)),
    ]
    if limit is not None:
        parts.append(line((x(limit), y - 9), (x(limit), y + 9), "budget-mark"))
    return parts


def _ruler(room: Room, x: Scale, name: str) -> Html:
    box = room.box
    ticks = x.ticks(max(3, int((box.right - box.left) / 80)))
    shares = name == "accuracy"
    texts = tick_labels([round(100 * tick, 9) for tick in ticks] if shares else ticks)
    parts = []
    for tick, text in zip(ticks, texts, strict=True):
        parts.append(line((x(tick), box.top), (x(tick), box.bottom), "grid"))
        attributes = {"x": x(tick), "y": box.bottom + 16, "class": "tick middle"}
        parts.append(element("text", attributes, text))
    title = f"{what(name)}, {'%' if shares else 'ms'}"
    attributes = {"x": box.right, "y": box.bottom + 33, "class": "title end"}
    parts.append(element("text", attributes, title))
    return element("g", {"aria-hidden": "true"}, joined(*parts))


def _table(rows: Sequence[Verified]) -> Table:
    names = _measured_names(rows)
    header = ["subnet", "budget", "device", *(f"{what(name)}: {_CHANGE}" for name in names)]
    lines = []
    for entry in rows:
        cells = [short(entry.digest), entry.budget or DASH, entry.device]
        for name in names:
            promised = entry.predicted.get(name)
            mean = None if promised is None else promised.mean
            cells.append(_change(name, mean, entry.measured.get(name)))
        cells += ["kept" if entry.met else "broken", entry.grade or DASH]
        lines.append(tuple(cells))
    return Table(
        header=(*header, "budget kept", "grade"),
        rows=tuple(lines),
        caption="Every verified subnet, with the grade of its latency measurement.",
        right=frozenset(range(3, 3 + len(names))),
        folded=f"All {plural(len(rows), 'verification')} as a table",
    )


def _artifacts(material: Material) -> Table:
    lines = []
    for folder, manifest in material.manifests:
        for model in manifest.models:
            entry = manifest.files.get(model.file)
            latency = (model.latency or {}).get("median_ms")
            star = f"{_STAR}{SPACE}" if model.file == manifest.recommended else ""
            lines.append(
                (
                    f"{star}{folder}/{model.file}",
                    model.precision,
                    DASH if entry is None else quantity("size", entry.size_bytes),
                    _change("accuracy", _mean(manifest.promised.get("accuracy")), model.accuracy),
                    _change("latency", _mean(manifest.promised.get("latency")), latency),
                )
            )
    return Table(
        header=(
            "exported model", "precision", "file", f"accuracy: {_CHANGE}", f"latency: {_CHANGE}",
        ),
        rows=tuple(lines),
        caption=f"Exported models; {_STAR} is recommended for the device of the measurements.",
        right=frozenset({2, 3, 4}),
    )  # fmt: skip


def _mean(found: object) -> float | None:
    """Return a promised value, which is a number or an estimate."""
    mean = found.get("mean") if isinstance(found, dict) else found
    return float(mean) if isinstance(mean, int | float) else None


def _change(name: str, promised: float | None, measured: object) -> str:
    before = DASH if promised is None else quantity(name, promised)
    after = quantity(name, measured) if isinstance(measured, int | float) else DASH
    return f"{before} → {after}"
