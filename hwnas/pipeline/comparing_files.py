"""How two runs' measurements and exported models differ."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, expm1, hypot, log
from typing import TYPE_CHECKING

import numpy as np

from hwnas.pipeline.changes import Change, change_between, counted_change
from hwnas.pipeline.rundir import Run
from hwnas.pipeline.significance import Interval, signed_rank
from hwnas.profiling.profiles import Profile, merge_profiles, read_profile
from hwnas.profiling.records import GRADES, Record
from hwnas.profiling.summaries import Kind, differences

if TYPE_CHECKING:
    from hwnas.export.artifact import Manifest, ModelEntry

_WORST = GRADES[-1]


def latency_changes(one: Run, other: Run, remark: Callable[[str], None]) -> Iterator[Change]:
    """Yield how latencies differ on each device, with each backend and setting."""
    ours, theirs = _profiles(one), _profiles(other)
    if not ours or not theirs:
        empty = [str(run.folder) for run, found in ((one, ours), (other, theirs)) if not found]
        remark(f"no profiles in {' and '.join(empty)}")
        return
    shared = [fingerprint for fingerprint in ours if fingerprint in theirs]
    if not shared:
        remark("the runs were profiled on different devices")
    for fingerprint in shared:
        first, second = _trusted(ours[fingerprint]), _trusted(theirs[fingerprint])
        dropped = _dropped(ours[fingerprint], first) + _dropped(theirs[fingerprint], second)
        device = first.header.device.name
        if dropped:
            remark(f"{device}: {dropped} measurements of grade {_WORST} are left out")
        found = differences(first, second)
        others = sum(difference.other_models for _, difference in found)
        if others:
            remark(f"{device}: {others} of the measurements are of models in another form")
        if not any(difference.keys for _, difference in found):
            remark(f"{device}: no model was measured in both runs with the same settings")
        for kind, difference in found:
            if difference.keys:
                pairs = [(first.records[key], second.records[key]) for key in difference.keys]
                yield _latency_change(kind, pairs, device)


def _profiles(run: Run) -> dict[str, Profile]:
    """Return the profiles of a run by the fingerprint of their device."""
    found: dict[str, Profile] = {}
    for path in run.profiles:
        profile = read_profile(path)
        key = profile.header.device.fingerprint
        found[key] = merge_profiles(found[key], profile) if key in found else profile
    return found


def _trusted(profile: Profile) -> Profile:
    kept = {key: record for key, record in profile.records.items() if record.grade != _WORST}
    return replace(profile, records=kept)


def _dropped(whole: Profile, part: Profile) -> int:
    return len(whole.records) - len(part.records)


def _latency_change(kind: Kind, pairs: Sequence[tuple[Record, Record]], device: str) -> Change:
    space, backend, settings = kind
    times = [(_median(a), _median(b)) for a, b in pairs]
    ratios = [log(b / a) for a, b in times]
    interval, how = signed_rank(ratios), f"signed ranks over {len(pairs)} ratios"
    if interval.low is None:
        interval, how = _from_own_errors(ratios, pairs), "the measurements' own errors"
    drift = _reference_drift(pairs)
    if drift:
        interval = interval.stretched(abs(drift))
        how += f", and {expm1(abs(drift)):.1%} that the reference model changed"
    assert interval.low is not None
    assert interval.high is not None
    name = f"{device}, {backend}, {settings.form}, threads {settings.threads}"
    name += f", batch {settings.batch}" if settings.batch > 1 else ""
    name += f", workers {settings.workers}" if settings.workers > 1 else ""
    return change_between(
        Interval(centre=expm1(interval.centre), low=expm1(interval.low), high=expm1(interval.high)),
        section="latency",
        name=f"{space} on {name}",
        unit="ms",
        values=(_typical([a for a, _ in times]), _typical([b for _, b in times])),
        better="less",
        how=how,
        number=len(pairs),
    )


def _from_own_errors(
    ratios: Sequence[float], pairs: Sequence[tuple[Record, Record]]
) -> Interval:  # fmt: skip
    """Return the mean of few ratios with the interval that their measurements' errors give."""
    halves = [hypot(_half_width(a), _half_width(b)) for a, b in pairs]
    centre, half = float(np.mean(ratios)), hypot(*halves) / len(halves)
    return Interval(centre=centre, low=centre - half, high=centre + half)


def _reference_drift(pairs: Sequence[tuple[Record, Record]]) -> float:
    """Return the logarithm of how the reference model's time changed between the runs.

    Latencies are in terms of the first session of their profile, so its time is what counts.
    """
    references = [[_reference(pair[side]) for pair in pairs] for side in (0, 1)]
    known = [[value for value in side if value] for side in references]
    if not all(known):
        return 0.0
    first, second = (float(np.median(side)) for side in known)
    return log(second / first)


def _reference(record: Record) -> float:
    latency = record.latency
    assert latency is not None
    if latency.companion is not None:
        return 0.0
    return (latency.reference_ms or 0.0) / (1 + (latency.reference_drift or 0.0))


def _median(record: Record) -> float:
    assert record.latency is not None
    return record.latency.median_ms


def _half_width(record: Record) -> float:
    assert record.latency is not None
    return record.latency.half_width


def _typical(values: Sequence[float]) -> float:
    return exp(float(np.mean(np.log(values))))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Model:
    """An exported file. `subnet` is its digest, `budget` what it was chosen for."""

    subnet: str
    budget: str
    entry: "ModelEntry"
    size_bytes: int


def artifact_changes(one: Run, other: Run, remark: Callable[[str], None]) -> Iterator[Change]:
    """Yield how exported models differ: those of equal subnets, else those for equal budgets."""
    ours, theirs = _models(one), _models(other)
    if not ours or not theirs:
        return
    pairs = list(_partners(ours, theirs))
    if not pairs:
        remark("no exported model is of the same subnet, or for the same budget, in both runs")
    for name, a, b in pairs:
        ratio = b.size_bytes / a.size_bytes - 1
        yield change_between(
            Interval(centre=ratio, low=ratio, high=ratio),
            section="artifact", name=f"{name}: size", unit="bytes",
            values=(a.size_bytes, b.size_bytes), better="less", how="exact", number=1,
        )  # fmt: skip
        if a.entry.images and b.entry.images:
            yield counted_change(
                "artifact", f"{name}: accuracy", (a.entry.accuracy, a.entry.images),
                (b.entry.accuracy, b.entry.images), of="images",
            )  # fmt: skip
        yield from _exported_latency(name, a.entry, b.entry)


def _exported_latency(name: str, a: "ModelEntry", b: "ModelEntry") -> Iterator[Change]:
    if a.latency is None or b.latency is None:
        return
    if any(a.latency.get(key) != b.latency.get(key) for key in ("device", "threads", "batch")):
        return
    first, second = float(a.latency["median_ms"]), float(b.latency["median_ms"])
    yield change_between(
        Interval(centre=second / first - 1),
        section="artifact", name=f"{name}: latency", unit="ms", values=(first, second),
        better="less", how="one measurement each", number=1,
    )  # fmt: skip


def _models(run: Run) -> list[_Model]:
    from hwnas.export.artifact import MANIFEST_FILE, read_manifest

    found = []
    for path in sorted((run.folder / "artifacts").glob(f"*/{MANIFEST_FILE}")):
        manifest = read_manifest(path)
        for entry in manifest.models:
            if entry.file in manifest.files:
                size = manifest.files[entry.file].size_bytes
                found.append(
                    _Model(subnet=manifest.digest, budget=_budget(manifest), entry=entry,
                           size_bytes=size)
                )  # fmt: skip
    return found


def _budget(manifest: "Manifest") -> str:
    return str(manifest.promised.get("budget") or "")


def _partners(
    ours: Sequence[_Model], theirs: Sequence[_Model]
) -> Iterator[tuple[str, _Model, _Model]]:
    """Yield the models that correspond, with a name for both."""
    by_subnet = {(model.subnet, model.entry.precision): model for model in theirs}
    by_budget = {(model.budget, model.entry.precision): model for model in theirs if model.budget}
    for model in ours:
        precision = model.entry.precision
        if (model.subnet, precision) in by_subnet:
            yield f"{model.subnet[:12]} {precision}", model, by_subnet[model.subnet, precision]
        elif (model.budget, precision) in by_budget:
            yield f"{model.budget} {precision}", model, by_budget[model.budget, precision]
