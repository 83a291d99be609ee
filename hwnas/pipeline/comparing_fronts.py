"""How the searches of two runs differ: predicted fronts at equal cost, and promises kept."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.io import canonical_json
from hwnas.pipeline.changes import POINTS, Change, change_between, counted_change
from hwnas.pipeline.fronts import (
    FOLDER,
    FRONT_FILE,
    Choice,
    Estimate,
    Front,
    fingerprints,
    last_of,
    latest_front,
    read_verified,
)
from hwnas.pipeline.rundir import Run
from hwnas.pipeline.significance import Interval

ACCURACY, MACS = "accuracy", "macs"
_LEVELS = 5
_TO_95 = 1.959964 / 1.644854  # from the half width of a 90 % interval to that of a 95 % one


@dataclass(frozen=True, kw_only=True, slots=True)
class _Point:
    cost: float
    accuracy: Estimate


def front_changes(one: Run, other: Run, remark: Callable[[str], None]) -> Iterator[Change]:
    """Yield how the best predicted accuracy differs within equal latencies."""
    without = [str(run.folder) for run in (one, other) if not _front_file(run).is_file()]
    if without:
        remark(f"nothing was searched in {' and '.join(without)}")
        return
    fronts = (latest_front(one), latest_front(other))
    names = _latencies(fronts[0])
    common = [name for name in names if name in _latencies(fronts[1])]
    shared = [name for name in common if _is_of_one_device(fronts, name)]
    for name in shared:
        settings = [_settings(front, name) for front in fronts]
        if settings[0] != settings[1]:
            remark(f"{name} was predicted for different settings: fronts are not compared by it")
            continue
        yield from _at_equal_cost(fronts, name, remark)
    if not shared:
        if names or _latencies(fronts[1]):
            what = "latency of one device" if common else "latency"
            remark(f"the fronts have no {what} in common: they are compared by MACs")
        yield from _at_equal_cost(fronts, MACS, remark)


def promise_changes(one: Run, other: Run, remark: Callable[[str], None]) -> Iterator[Change]:
    """Yield how many verified subnets kept their budget."""
    found = [last_of(read_verified(run)) for run in (one, other)]
    if not all(found):
        return
    shares = [(sum(entry.met for entry in entries) / len(entries), len(entries))
              for entries in found]  # fmt: skip
    yield counted_change("promises", "budgets kept", shares[0], shares[1], of="verified subnets")


def _at_equal_cost(
    fronts: tuple[Front, Front], name: str, remark: Callable[[str], None]
) -> Iterator[Change]:
    points = [_points(front, name) for front in fronts]
    if not all(points):
        remark(f"a front has no {name} with an accuracy: not compared by it")
        return
    low = max(min(point.cost for point in side) for side in points)
    high = min(max(point.cost for point in side) for side in points)
    if low > high:
        remark(f"the fronts have no {name} in common: one ends where the other begins")
        return
    levels = np.geomspace(low, high, _LEVELS).tolist() if low < high else [low]
    for level in levels:
        best = [_best(side, level) for side in points]
        half = _TO_95 * math.hypot(*(_half(estimate) for estimate in best))
        centre = best[1].mean - best[0].mean
        yield change_between(
            Interval(centre=centre, low=centre - half, high=centre + half),
            section="front",
            name=f"{name} {_cost_text(level, name)}",
            unit=POINTS,
            values=(best[0].mean, best[1].mean),
            better="more",
            how="predicted accuracy, from the predictors' 90 % intervals",
            number=1,
        )


def _points(front: Front, name: str) -> list[_Point]:
    found = []
    for choice in front.choices:
        cost = _cost(choice, name)
        if cost is not None and ACCURACY in choice.predicted:
            found.append(_Point(cost=cost, accuracy=choice.predicted[ACCURACY]))
    return found


def _cost(choice: Choice, name: str) -> float | None:
    if name in choice.predicted:
        return choice.predicted[name].mean
    return choice.costs.get(name)


def _best(points: Sequence[_Point], level: float) -> Estimate:
    # A level can be a rounding error below the point that it comes from.
    within = [point.accuracy for point in points if point.cost <= level * (1 + 1e-9)]
    return max(within, key=lambda estimate: estimate.mean)


def _half(estimate: Estimate) -> float:
    return (estimate.high - estimate.low) / 2


def _cost_text(level: float, name: str) -> str:
    return f"<= {level / 1e6:.2f}M" if name == MACS else f"<= {level:.3g} ms"


def _latencies(front: Front) -> list[str]:
    names = dict.fromkeys(name for choice in front.choices for name in choice.predicted)
    return [name for name in names if name.partition(":")[0] == "latency"]


def _is_of_one_device(fronts: tuple[Front, Front], name: str) -> bool:
    """Return whether a latency is of the same device; by its name in fronts of older versions."""
    devices, known_by = [], []
    for front in fronts:
        known = front.provenance.get("devices", {})
        devices.append(name.partition(":")[2] or next(iter(known), ""))
        known_by.append(fingerprints(front).get(devices[-1]))
    one, other = known_by if all(known_by) else devices
    return bool(one == other)


def _settings(front: Front, name: str) -> set[str]:
    """Return the settings for which a latency was predicted, each in one spelling."""
    device = name.partition(":")[2]
    found = set()
    for choice in front.choices:
        settings: Any = choice.settings
        if device and settings is not None:
            settings = settings.get(device, settings)
        found.add(canonical_json(settings))
    return found


def _front_file(run: Run) -> Path:
    return run.folder / FOLDER / FRONT_FILE
