"""The settings of ONNX Runtime that run a model fastest on this device, found by measuring.

First the threads, then, with the best number of them, what is left: the optimisation level, and
for several threads whether waiting ones spin and whether branches run side by side. At last,
where these are best as they are by default, whether huge pages pay, if the system has them.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from hwnas.errors import UnreliableError
from hwnas.export.speed import Race, race
from hwnas.io import Schema, write_json
from hwnas.profiling.backends.ort import feeds_for
from hwnas.profiling.machine import available_cores, device
from hwnas.profiling.measure import Plan, measure
from hwnas.profiling.pages import huge_pages_problem, page_environment
from hwnas.profiling.privilege import privileged
from hwnas.profiling.records import Pages

SETTINGS_SCHEMA = Schema(name="hwnas/ort-settings", version=1)
SETTINGS_FILE = "ort_settings.json"
_PLAN = Plan(min_runs=20, max_runs=100, max_s=0.5)
_ROUNDS = 3
_BETTER = 0.98  # of the time of the simpler setting
_SPINNING = "session.intra_op.allow_spinning"


@dataclass(frozen=True, kw_only=True, slots=True)
class OrtSettings:
    """Settings of a session, in the words of ONNX Runtime."""

    threads: int = 1
    inter_threads: int = 1
    optimisation: str = "ORT_ENABLE_ALL"
    execution: str = "ORT_SEQUENTIAL"
    spinning: bool = True
    pages: Pages = "default"

    @property
    def options(self) -> dict[str, int | str]:
        """The attributes of onnxruntime.SessionOptions."""
        return {
            "intra_op_num_threads": self.threads,
            "inter_op_num_threads": self.inter_threads,
            "graph_optimization_level": self.optimisation,
            "execution_mode": self.execution,
        }

    @property
    def entries(self) -> dict[str, str]:
        """The entries of a session's configuration."""
        return {_SPINNING: "1" if self.spinning else "0"}

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process has to be started with."""
        return page_environment(self.pages)


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """The best settings, and the median time of all that were tried; none if not measured."""

    best: OrtSettings
    tried: tuple[tuple[OrtSettings, float], ...] = ()


def find_settings(model: Path, *, batch: int = 1, measured: bool = True) -> Found:
    """Return the fastest settings for batches of `batch`; without measuring one thread."""
    if not measured:
        return Found(best=OrtSettings())
    cores = available_cores()
    counts = sorted({1, *(2**power for power in range(cores.bit_length())), cores})
    first = _timed(model, [OrtSettings(threads=count) for count in counts if count <= cores], batch)
    best = _best(first)
    second = _timed(model, [best, *_variants(best)], batch)
    best = _best(second)
    third = _with_pages(model, best, batch, known=second)
    times = {**dict(first), **dict(second), **dict(third)}
    return Found(best=_best(third), tried=tuple(times.items()))


def _with_pages(
    model: Path, best: OrtSettings, batch: int, *, known: Sequence[tuple[OrtSettings, float]]
) -> list[tuple[OrtSettings, float]]:
    """Return the time with the usual pages, and with huge ones where these can be tried.

    Pages are of a process, and what is timed in one of its own has the runtime's other settings
    as they are by default: how many times as long as with the usual pages it takes there counts.
    """
    usual = (best, dict(known)[best])
    if huge_pages_problem() or best != OrtSettings(threads=best.threads):
        return [usual]
    huge = replace(best, pages="huge")
    try:
        ratio = _time_apart(model, huge, batch) / _time_apart(model, best, batch)
    except UnreliableError:  # somebody else measures: what is known without is good enough
        return [usual]
    return [usual, (huge, ratio * usual[1])]


def _time_apart(model: Path, settings: OrtSettings, batch: int) -> float:
    how = Race(threads=settings.threads, batch=batch, pages=settings.pages, seconds=_PLAN.max_s)
    return float(race({model.name: model}, how=how)[model.name]["median_ms"])


def _variants(best: OrtSettings) -> list[OrtSettings]:
    variants = [replace(best, optimisation="ORT_ENABLE_EXTENDED")]
    if best.threads > 1:
        variants.append(replace(best, spinning=False))
        variants.append(replace(best, execution="ORT_PARALLEL", inter_threads=best.threads))
    return variants


def _best(timed: Sequence[tuple[OrtSettings, float]]) -> OrtSettings:
    """Return the fastest; a later, less simple setting has to be clearly faster."""
    best, least = timed[0]
    for settings, time in timed[1:]:
        if time < _BETTER * least:
            best, least = settings, time
    return best


def _timed(
    model: Path, candidates: Sequence[OrtSettings], batch: int
) -> list[tuple[OrtSettings, float]]:
    """Return the median time of each, measured in turns; one session is open at a time."""
    times: dict[OrtSettings, list[float]] = {settings: [] for settings in candidates}
    for _ in range(_ROUNDS):
        for settings in candidates:
            times[settings].append(_time(model, settings, batch))
    return [(settings, median(values)) for settings, values in times.items()]


def _time(model: Path, settings: OrtSettings, batch: int) -> float:
    session = open_with(model, settings)
    feeds = feeds_for(session, batch)

    def run() -> None:
        session.run(None, feeds)

    with privileged(threads=settings.threads) as held:
        alone = held.privilege == "none" and settings.threads == 1
        found = measure(
            run,
            clock="thread_cpu" if alone else "wall",
            privilege=held.privilege,
            rest_share=held.rest_share,
            plan=_PLAN,
        )
    return found.median_ms


def open_with(model: Path, settings: OrtSettings) -> Any:  # noqa: ANN401 - onnxruntime is untyped
    """Return an onnxruntime.InferenceSession with these settings."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    for name, value in settings.options.items():
        kind = type(getattr(options, name))
        setattr(options, name, getattr(kind, value) if isinstance(value, str) else value)
    for name, text in settings.entries.items():
        options.add_session_config_entry(name, text)
    return onnxruntime.InferenceSession(
        os.fspath(model), options, providers=["CPUExecutionProvider"]
    )


def write_settings(path: Path, found: Found, *, model: str) -> None:
    """Write the settings for the script beside them; `model` is relative to their folder."""
    tried: list[Mapping[str, Any]] = [
        {**asdict(settings), "median_ms": time} for settings, time in found.tried
    ]
    content = {
        "model": model,
        "device": device().name,
        "options": found.best.options,
        "entries": found.best.entries,
        "environment": found.best.environment,
        "tried": tried,
    }
    write_json(path, SETTINGS_SCHEMA, content)
