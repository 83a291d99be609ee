"""Measuring for `hwnas profile`: progress while it goes on, a table at the end."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.cli.output import Output, table
from hwnas.cli.progress import ProgressLine, clock
from hwnas.cli.verbs import require

if TYPE_CHECKING:
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.jobs import Job, Options, Outcome, Progress
    from hwnas.profiling.summaries import Group

PROFILES = Path("profiles")
_NOTABLE_DRIFT = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How models are run: each combination is measured."""

    backends: tuple[str, ...]
    precisions: tuple[str, ...] | None
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    workers: tuple[int, ...]
    pages: tuple[str, ...]


def measure(
    output: Output, source: "Source", *, settings: Settings, options: "Options", target: Path
) -> None:
    """Measure a source and print what was found."""
    from hwnas.profiling.driver import alone_on_device, check_failures, profile_alone
    from hwnas.profiling.profiles import read_profile
    from hwnas.profiling.summaries import groups

    jobs = jobs_of(source, settings, output)
    require_builders(source, [job.backend for job in jobs])
    from hwnas.pipeline.measuring import plain_module

    watcher = Watcher(output)
    with alone_on_device(options):
        outcome = profile_alone(
            jobs,
            provide=source.provide,
            provide_module=plain_module,
            graphs=source.graphs,
            output=target,
            options=options,
            progress=watcher,
            note=watcher.note,
        )
    wanted = {job.key for job in jobs}
    found = [record for key, record in read_profile(target).records.items() if key in wanted]
    summary = groups(found)
    document = {"profile": str(target), **_counts(outcome), "groups": [*map(asdict, summary)]}
    output.result(document, _text(target, outcome, summary))
    check_failures(outcome.failed, len(jobs), target)


def require_builders(source: "Source", backends: Iterable[str]) -> None:
    """Raise MissingPackageError if models have to be built and cannot."""
    from hwnas.profiling.backends import backend

    if source.precisions is None and any(backend(name).takes == "onnx" for name in backends):
        require("profile --space", ("onnx",))


def jobs_of(source: "Source", settings: Settings, output: Output) -> "list[Job]":
    """Return the measurements to make; tells which combinations are left out."""
    from hwnas.pipeline.measuring import runnable
    from hwnas.profiling.jobs import grid
    from hwnas.profiling.records import one_of_pages

    every = grid(
        source.archs,
        backends=settings.backends,
        threads=settings.threads,
        batches=settings.batches,
        precisions=settings.precisions or source.usual,
        workers=settings.workers,
        pages=[one_of_pages(name) for name in settings.pages],
    )
    jobs, left_out = runnable(every, source)
    for reason in left_out:
        output.note(f"left out: {reason}")
    return jobs


class Watcher:
    """Tells of each measurement."""

    def __init__(self, output: Output) -> None:
        self._line = ProgressLine(output)

    def note(self, text: str) -> None:
        """Show a line that stays."""
        self._line.note(text)

    def __call__(self, progress: "Progress") -> None:
        """Show a measurement, and a failure on a line of its own."""
        from hwnas.profiling.records import arch_digest

        record, last = progress.record, progress.done == progress.total
        name = f"{arch_digest(record.arch)[:12]} {record.backend} {record.settings.form}"
        if record.failure is not None:
            self._line.note(f"failed ({record.failure.kind}): {name}: {record.failure.reason}")
        parts = [f"{progress.done}/{progress.total}", name]
        if record.latency is not None:
            parts += [f"{record.latency.median_ms:.3f} ms", f"grade {record.grade}"]
        if progress.eta_s is not None:
            parts.append(f"{clock(progress.eta_s)} left")
        self._line.show("  ".join(parts), last=last)


def _counts(outcome: "Outcome") -> dict[str, Any]:
    return {
        "measured": outcome.measured,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
        "build_s": round(outcome.build_s, 3),
        "measure_s": round(outcome.measure_s, 3),
        "privilege": outcome.preflight.privilege,
        "cautions": list(outcome.preflight.reasons),
    }


def _text(target: Path, outcome: "Outcome", summary: "Sequence[Group]") -> str:
    lines = [
        f"{target}: {outcome.measured} measured, {outcome.skipped} there already, "
        f"{outcome.failed} failed; building {clock(outcome.build_s)}, "
        f"measuring {clock(outcome.measure_s)}"
    ]
    lines += [f"caution: {reason}" for reason in outcome.preflight.reasons]
    drift = max((group.drift for group in summary if group.drift is not None), default=0.0)
    if drift > _NOTABLE_DRIFT and not outcome.level_known:
        lines.append(
            f"caution: the pace of this machine differed by ±{100 * drift:.1f}% among the "
            "measurements; they hold in proportion to each other, and as a whole to so much. "
            "--beside PROFILE tells them at the level of an earlier profile"
        )
    return "\n".join([*lines, "", groups_table(summary)])


def groups_table(summary: "Sequence[Group]") -> str:
    """Return a line for each combination of settings."""
    header = ["space", "backend", "precision", "threads", "batch", "workers", "models",
              "median ms", "best /s", "drift", "grades"]  # fmt: skip
    rows = [
        [
            group.space,
            group.backend,
            group.settings.form,
            str(group.settings.threads),
            str(group.settings.batch),
            str(group.settings.workers),
            f"{group.models - group.failed}/{group.models}" if group.failed else str(group.models),
            _span(group),
            "-" if group.best_per_s is None else f"{group.best_per_s:.0f}",
            "-" if group.drift is None else f"±{100 * group.drift:.1f}%",
            " ".join(f"{count}{grade}" for grade, count in group.grades.items()) or "-",
        ]
        for group in summary
    ]
    return table(header, rows, right=(3, 4, 5, 6, 7, 8, 9))


def _span(group: "Group") -> str:
    if group.least_ms is None or group.most_ms is None:
        return "-"
    return f"{group.least_ms:.3f}..{group.most_ms:.3f}"
