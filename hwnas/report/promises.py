"""What was promised and what was delivered: budgets, predictions and measurements side by side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hwnas.pipeline.fronts import Estimate, Verified, key_of, last_of
from hwnas.report.blocks import Block, Paragraph, Section, Table, figure
from hwnas.report.gather import Material
from hwnas.report.html import Html, element, joined
from hwnas.report.labels import text_width
from hwnas.report.plot import Room, drawing, line, mark
from hwnas.report.scales import Scale, scale_for, tick_labels
from hwnas.report.view import ACCURACY, LATENCY, limits_of, what
from hwnas.report.words import (
    DASH,
    SPACE,
    digits,
    every,
    listed,
    percent,
    plural,
    quantity,
    settings_text,
    short,
)

ANCHOR, TITLE = "promises", "Promised and delivered"
_ROW = 30.0
_MOST = 40  # rows of a figure
_CHANGE, _STAR = "promised → measured", "★"


def section(material: Material) -> Section:
    """Return how promises were kept, for verified choices and for exported models."""
    if not material.verified and not material.manifests:
        return Section(
            anchor=ANCHOR,
            title=TITLE,
            missing="Nothing of the front has been built and measured yet.",
            command=f"hwnas search --run {material.run.typed} --latency 25ms --verify 5",
        )
    blocks: list[Block] = []
    latest = last_of(material.verified)
    for name in _measured_names(latest):
        rows = _subnets(latest, name)
        if rows:
            blocks += [Paragraph(text=_sentence(rows, name)), _ranges(rows, name)]
    otherwise = _otherwise(latest)
    if otherwise:
        blocks.append(Paragraph(text=otherwise))
    if latest:
        blocks.append(_table(latest))
    if material.manifests:
        blocks.append(_artifacts(material))
    return Section(anchor=ANCHOR, title=TITLE, blocks=tuple(blocks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Subnet:
    """A verified subnet: what was promised and measured, and the limits of all its budgets."""

    digest: str
    promised: Estimate
    measured: float
    limits: tuple[float, ...]


def _subnets(latest: Sequence[Verified], name: str) -> list[Subnet]:
    """Return what was measured of a quantity of each choice, whatever budgets it was tried for."""
    alike: dict[tuple[str, str], list[Verified]] = {}
    for entry in latest:
        if name in entry.measured and name in entry.predicted:
            alike.setdefault(key_of(entry), []).append(entry)
    return [
        Subnet(
            digest=digest,
            promised=entries[-1].predicted[name],
            measured=entries[-1].measured[name],
            limits=() if name == ACCURACY else _limits(entries, name),
        )
        for (digest, _), entries in alike.items()
    ]


def _limits(entries: Sequence[Verified], name: str) -> tuple[float, ...]:
    found = {min(limits) for entry in entries if (limits := limits_of(entry, name))}
    return tuple(sorted(found))


def _measured_names(rows: Sequence[Verified]) -> list[str]:
    names = dict.fromkeys(name for entry in rows for name in entry.measured)
    return [name for name in names if name.partition(":")[0] in (LATENCY, ACCURACY)]


def _sentence(rows: Sequence[Subnet], name: str) -> str:
    inside = sum(row.promised.low <= row.measured <= row.promised.high for row in rows)
    if name == "accuracy":
        away = [abs(row.measured - row.promised.mean) for row in rows]
        how = f"{digits(100 * float(np.median(away)), 2)} points"
    else:
        away = [abs(row.measured / row.promised.mean - 1) for row in rows]
        how = percent(float(np.median(away)))
    text = (
        f"{_capital(what(name))}: {inside} of {plural(len(rows), 'measurement')} lie in the "
        f"promised 90 % interval; the median difference is {how}."
    )
    limited = [row for row in rows if row.limits]
    if limited:
        longer = sum(row.measured > min(row.limits) for row in limited)
        text += f" {longer or 'None'} of them took longer than a budget allows."
    return text


def _otherwise(latest: Sequence[Verified]) -> str:
    """Return how many broke a budget though no latency was too long, and by what."""
    broken = [entry for entry in latest if not entry.met and _is_fast(entry)]
    if not broken:
        return ""
    above = dict.fromkeys(
        what(name)
        for entry in broken
        for name, limit in entry.limits.items()
        if entry.measured.get(name, 0.0) > limit
    )
    text = f"{plural(len(broken), 'verification')} broke a budget though no latency was too long"
    return f"{text}: by {listed(list(above))}." if above else f"{text}."


def _is_fast(entry: Verified) -> bool:
    """Return whether every latency that was measured is within a budget that is known."""
    names = [name for name in entry.measured if name.partition(":")[0] == LATENCY]
    within = [
        entry.measured[name] <= min(found) for name in names if (found := limits_of(entry, name))
    ]
    return bool(names) and all(within) and bool(within or entry.limits)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ranges(rows: Sequence[Subnet], name: str) -> Block:
    shown = rows[-_MOST:]
    which = "each verified subnet"
    if len(shown) < len(rows):
        which = f"the last {len(shown)} of {plural(len(rows), 'verified subnet')}"
    legend = [("range", "promised: 90 % interval"), ("measured", "measured")]
    if any(row.limits for row in shown):
        legend.append(("budget-mark", "budget"))
    return figure(
        lambda width: range_figure(shown, name, width),
        f"Promised and measured {what(name)} of {which}.",
        legend=tuple(legend),
    )


def range_figure(rows: Sequence[Subnet], name: str, width: float) -> Html:
    """Return a row per verified subnet: promised interval, measured value, budgets."""
    left = text_width("0" * 12) + 12
    room = Room(width=width, height=26 + _ROW * len(rows) + 42, left=left, right=70.0, top=22.0)
    values = [limit for row in rows for limit in row.limits]
    for row in rows:
        values += [row.promised.low, row.promised.high, row.measured]
    box = room.box
    logarithmic = False if name == ACCURACY else None
    x = scale_for(values, start=box.left, end=box.right, logarithmic=logarithmic)
    parts = [_ruler(room, x, name)]
    for place, row in enumerate(rows):
        parts += _row(row, name, x, box.top + _ROW * (place + 0.5), right=box.right)
    return drawing(room, f"Promised and measured {what(name)}", *parts)


def _row(row: Subnet, name: str, x: Scale, y: float, *, right: float) -> list[Html]:
    promised, measured = row.promised, row.measured
    look = "tick" if promised.low <= measured <= promised.high else "tick outside-text"
    return [
        element("text", {"x": 0, "y": y + 4, "class": "tick"}, short(row.digest)),
        line((x(promised.low), y), (x(promised.high), y), "range"),
        line((x(promised.mean), y - 5), (x(promised.mean), y + 5), "range-mean"),
        mark("diamond", (x(measured), y), "measured", size=4.2),
        element("text", {"x": right + 8, "y": y + 4, "class": look}, quantity(name, measured)),
        *(line((x(limit), y - 9), (x(limit), y + 9), "budget-mark") for limit in row.limits),
    ]


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
    ways = {way for _, way in map(key_of, rows)}
    for entry in rows:
        how = settings_text(entry.settings) if len(ways) > 1 else ""
        where = ", ".join(filter(None, [entry.device, how]))
        cells = [short(entry.digest), entry.budget or DASH, where]
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
        folded=f"{every(len(rows), 'verification')} as a table",
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
                    _change("latency", foretold_ms(manifest.promised, model.latency), latency),
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


def foretold_ms(promised: Mapping[str, Any], measured: Mapping[str, Any] | None) -> float | None:
    """Return the promised latency, None where it is of another device than the measured one."""
    devices, here = promised.get("devices"), (measured or {}).get("fingerprint")
    if isinstance(devices, dict) and here is not None and here not in devices.values():
        return None
    return _mean(promised.get("latency"))


def _mean(found: object) -> float | None:
    """Return a promised value, which is a number or an estimate."""
    mean = found.get("mean") if isinstance(found, dict) else found
    return float(mean) if isinstance(mean, int | float) else None


def _change(name: str, promised: float | None, measured: object) -> str:
    before = DASH if promised is None else quantity(name, promised)
    after = quantity(name, measured) if isinstance(measured, int | float) else DASH
    return f"{before} → {after}"
