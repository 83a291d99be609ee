"""How everything was measured, and on what: devices, settings, grades, versions, data."""

from collections import Counter
from collections.abc import Sequence

from hwnas.profiling.profiles import Profile
from hwnas.profiling.records import GRADES, Record
from hwnas.profiling.summaries import groups
from hwnas.report.blocks import Block, Paragraph, Section, Table
from hwnas.report.gather import Material
from hwnas.report.words import DASH, day, digits, listed, percent, plural
from hwnas.spaces import CONVENTION

ANCHOR, TITLE = "measuring", "How it was measured"
_GRADES = {
    "A": "repeats within half a percent",
    "B": "within one to two percent",
    "C": "good for orders of magnitude and rankings",
    "D": "kept only because somebody insisted",
}
_CLOCKS = {
    "wall": "wall clock",
    "thread_cpu": "processor time of the thread",
    "device": "the device's own clock",
}
_PRIVILEGES = {
    "fifo": "real-time priority",
    "autogroup": "raised priority",
    "none": "no priority over other work",
}


def section(material: Material) -> Section:
    """Return the devices and the measurements on them, then what else belongs to the record."""
    blocks: list[Block] = []
    if material.profiles:
        for name, profile in material.profiles:
            blocks += _profile(name, profile)
        blocks.append(Paragraph(text=_meaning(material.profiles), look="small"))
    else:
        blocks.append(Paragraph(text="No device has been measured yet."))
    blocks.append(_record(material))
    return Section(
        anchor=ANCHOR,
        title=TITLE,
        blocks=tuple(blocks),
        command="" if material.profiles else f"hwnas profile --run {material.run.typed}",
    )


def _profile(name: str, profile: Profile) -> list[Block]:
    device, header = profile.header.device, profile.header
    memory = f"{device.memory_mb / 1024:.0f}\u00a0GB of memory" if device.memory_mb >= 1024 else ""
    parts = [device.cpu, plural(device.cores, "core"), memory, device.os]
    if device.governor:
        parts.append(f"governor {device.governor}")
    runtimes = listed([f"{runtime} {version}" for runtime, version in header.runtimes.items()])
    text = f"{device.name}: {', '.join(filter(None, parts))}; {runtimes}."
    started = day(header.created_at)
    if started:
        text += f" Begun on {started}."
    text += f" {_care(profile.measured())}"
    blocks: list[Block] = [Paragraph(text=text)]
    if header.note:
        blocks.append(Paragraph(text=f"Note: {header.note}", look="small"))
    blocks.append(_groups(name, profile))
    return blocks


def _care(records: Sequence[Record]) -> str:
    latencies = [record.latency for record in records if record.latency is not None]
    if not latencies:
        return "No latency was measured."
    clock, _ = Counter(latency.clock for latency in latencies).most_common(1)[0]
    privilege, _ = Counter(latency.privilege for latency in latencies).most_common(1)[0]
    widths = sorted(latency.half_width for latency in latencies)
    runs = sum(latency.n for latency in latencies)
    return (
        f"{plural(len(latencies), 'latency', 'latencies')} from {plural(runs, 'run')}, by "
        f"{_CLOCKS[clock]} with {_PRIVILEGES[privilege]}; the median is known to "
        f"±{percent(widths[len(widths) // 2], 2)} (95\u00a0% confidence, typical)."
    )


def _groups(name: str, profile: Profile) -> Table:
    lines = []
    for group in groups(list(profile.records.values())):
        how = group.settings
        span = (
            DASH
            if group.least_ms is None or group.most_ms is None
            else f"{digits(group.least_ms)}{DASH}{digits(group.most_ms)}"
        )
        grades = " ".join(f"{number}\u00a0{grade}" for grade, number in group.grades.items())
        lines.append(
            (
                f"{group.backend}, {how.form}",
                str(how.threads),
                str(how.batch),
                str(how.workers),
                f"{group.models - group.failed} of {group.models}",
                span,
                DASH if group.best_per_s is None else f"{group.best_per_s:.0f}",
                DASH if group.drift is None else f"±{percent(group.drift)}",
                grades or DASH,
            )
        )
    return Table(
        header=(
            "runtime", "threads", "batch", "processes", "measured", "latency, ms", "best, /s",
            "drift", "grades",
        ),
        rows=tuple(lines),
        caption=f"What profiles/{name} holds. Drift: by how much the machine's pace differed among "
        "the measurements, which all of them share.",
        right=frozenset({1, 2, 3, 4, 5, 6, 7}),
    )  # fmt: skip


def _meaning(profiles: Sequence[tuple[str, Profile]]) -> str:
    there = {record.grade for _, profile in profiles for record in profile.measured()}
    texts = [f"{grade}: {_GRADES[grade]}" for grade in GRADES if grade in there]
    return f"Grades of measurements {DASH} {'; '.join(texts)}." if texts else ""


def _record(material: Material) -> Table:
    run = material.run
    options = ", ".join(f"{name} {value}" for name, value in sorted(run.options.items()))
    lines = [("space", f"{run.space} ({options})" if options else run.space)]
    if material.data:
        lines.append(("data", f"{material.data}{_held_out(material.heldout_images)}"))
    if material.step is not None:
        lines.append(("supernet", f"after {plural(material.step, 'step')} ({run.status})"))
    lines.append(("weights from", _origin(material)))
    lines.append(("costs", CONVENTION))
    if material.front is not None:
        found = material.front.provenance
        known = [f"{key} {found[key]}" for key in ("engine", "seed") if key in found]
        if isinstance(found.get("evaluations"), int):
            known.append(f"{found['evaluations']:,} subnets scored")
        when = material.front.created.replace("T", " ").replace("+00:00", " UTC")
        lines.append(("search", ", ".join(filter(None, [*known, when]))))
    lines.append(("versions", ", ".join(f"{n} {v}" for n, v in sorted(run.versions.items()))))
    host = " ".join(str(run.host[key]) for key in ("system", "machine") if key in run.host)
    lines.append(("trained on", host or DASH))
    return Table(
        header=(),
        rows=tuple(lines),
        caption="The record of the run.",
    )


def _held_out(images: int) -> str:
    """Return on how many images accuracies were measured; recipes say what they would hold out."""
    return f", accuracies on {plural(images, 'held-out image')}" if images else ""


def _origin(material: Material) -> str:
    origin = material.run.origin
    texts = [f"{key} {str(value)[:12]}" for key, value in origin.items() if value]
    return ", ".join(texts) or DASH
