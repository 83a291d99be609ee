"""How two runs differ, and which differences are more than chance.

Every change has a 95 % interval where one can be had, and says what it is the interval of:
- accuracies of subnets that both runs measured: pairs of equal architectures, Wilcoxon's signed
  ranks over them, widened by the error of counting right answers (there are no results per image,
  so images that both got wrong count twice: the interval is rather too wide)
- accuracies of single subnets, and promises kept: two counted shares, Newcombe's interval
- predicted fronts: best accuracy within equal latency, from the predictors' own intervals
- latencies of one device: signed ranks over the logarithms of the ratios, stretched by what the
  reference model changed between the two sessions
Accuracies change in points, everything else in shares of the first run's value.
"""

import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import FormatError
from hwnas.io.paths import resolved
from hwnas.pipeline.accuracies import CONFIG_FILE, Accuracy, read_accuracies
from hwnas.pipeline.changes import POINTS, Change, change_between, counted_change
from hwnas.pipeline.comparing_files import artifact_changes, latency_changes
from hwnas.pipeline.comparing_fronts import front_changes, promise_changes
from hwnas.pipeline.rundir import LATEST_FILE, SUPERNET_FOLDER, Run, latest_step, open_run, space_of
from hwnas.pipeline.significance import shares_difference, signed_rank


@dataclass(frozen=True, kw_only=True, slots=True)
class Differing:
    """A key of the recipes, or of how the runs came about, with both values (None: absent)."""

    key: str
    first: Any
    second: Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Side:
    """A run that was compared. `step`: of its supernet, None without one."""

    folder: Path
    space: str
    step: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """Two runs, side by side. `remarks`: what could not be compared, and why."""

    first: Side
    second: Side
    changes: tuple[Change, ...]
    differing: tuple[Differing, ...]
    remarks: tuple[str, ...]

    def regressions(self, limit: float) -> list[Change]:
        """Return what got worse significantly and by more than `limit`, a share."""
        return [change for change in self.changes if change.significant and change.loss > limit]


def compare_runs(first: Path | str, second: Path | str) -> Comparison:
    """Return how the run in `second` differs from that in `first`."""
    one, other = open_run(first), open_run(second)
    remarks: list[str] = []
    changes: list[Change] = []
    for find in (
        accuracy_changes, front_changes, latency_changes, artifact_changes, promise_changes,
    ):  # fmt: skip
        changes += find(one, other, remarks.append)
    return Comparison(
        first=_side(one),
        second=_side(other),
        changes=tuple(changes),
        differing=tuple(differing(one, other)),
        remarks=tuple(remarks),
    )


def accuracy_changes(one: Run, other: Run, remark: Callable[[str], None]) -> Iterator[Change]:
    """Yield how accuracies differ: of subnets in both, of the smallest and of the largest."""
    known = [_accuracies(run) for run in (one, other)]
    if not all(known):
        missing = [str(run.folder) for run, found in zip((one, other), known, strict=True)
                   if not found]  # fmt: skip
        remark(f"no accuracies of subnets in {' and '.join(missing)} (hwnas fit measures them)")
        return
    pairs = []
    if (one.space, one.options) == (other.space, other.options):
        pairs = [(entry, known[1][key]) for key, entry in known[0].items() if key in known[1]]
    if pairs:
        yield _paired(pairs)
    else:
        remark("no subnet's accuracy is in both runs")
    ends = [_ends(run, found) for run, found in zip((one, other), known, strict=True)]
    for name in ends[0]:
        if name in ends[1]:
            a, b = ends[0][name], ends[1][name]
            yield counted_change(
                "accuracy", f"{name} subnet", (a.accuracy, a.images), (b.accuracy, b.images),
                of="images",
            )  # fmt: skip


def _paired(pairs: list[tuple[Accuracy, Accuracy]]) -> Change:
    means = [float(np.mean([pair[side].accuracy for pair in pairs])) for side in (0, 1)]
    over_archs = signed_rank([b.accuracy - a.accuracy for a, b in pairs])
    images = [min(pair[side].images for pair in pairs) for side in (0, 1)]
    counting = shares_difference((means[0], images[0]), (means[1], images[1]))
    assert counting.low is not None
    interval = over_archs.widened(counting.centre - counting.low)
    return change_between(
        interval,
        section="accuracy",
        name="subnets in both",
        unit=POINTS,
        values=(means[0], means[1]),
        better="more",
        how=f"signed ranks over {len(pairs)} equal subnets, and counting among {images[0]} and "
        f"{images[1]} images",
        number=len(pairs),
    )


def _accuracies(run: Run) -> dict[str, Accuracy]:
    return {entry.arch.digest: entry for entry in read_accuracies(run)} if _has_net(run) else {}


def _ends(run: Run, known: Mapping[str, Accuracy]) -> dict[str, Accuracy]:
    space = space_of(run)
    wanted = {"smallest": space.smallest().digest, "largest": space.largest().digest}
    return {name: known[key] for name, key in wanted.items() if key in known}


def differing(one: Run, other: Run) -> Iterator[Differing]:
    """Yield the keys in which the recipes, the spaces and the versions of two runs differ."""
    for section, tables in (
        ("", [_flat({"space": run.space, "options": dict(run.options)}) for run in (one, other)]),
        ("", [_flat(_recipe(run)) for run in (one, other)]),
        ("versions.", [dict(run.versions) for run in (one, other)]),
    ):
        first, second = tables
        for key in dict.fromkeys((*first, *second)):
            if first.get(key) != second.get(key):
                yield Differing(key=section + key, first=first.get(key), second=second.get(key))


def _recipe(run: Run) -> dict[str, Any]:
    """Return the resolved recipe as it stands, also one that this version would not accept."""
    path = run.folder / CONFIG_FILE
    if not path.is_file():
        return {}
    try:
        recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: not TOML ({error})") from error
    data = recipe.get("data")
    if isinstance(data, dict) and isinstance(data.get("path"), str):
        data["path"] = os.path.abspath(resolved(data["path"], run.folder))  # the same for both
    return recipe


def _flat(table: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{above}{key}.")
        else:
            found[above + key] = value
    return found


def _side(run: Run) -> Side:
    step = latest_step(run) if _has_net(run) else None
    return Side(folder=run.folder, space=run.space, step=step)


def _has_net(run: Run) -> bool:
    return (run.folder / SUPERNET_FOLDER / LATEST_FILE).is_file()
