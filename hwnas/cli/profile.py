"""`hwnas profile`: latency, throughput and memory of architectures on this machine."""

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.progress import ProgressLine, clock
from hwnas.cli.values import ARCHITECTURES, names, options, whole_numbers
from hwnas.cli.verbs import require
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.jobs import Job, Options, Outcome, Progress
    from hwnas.profiling.summaries import Group
    from hwnas.spaces import Space

PROFILES = Path("profiles")

_SETTINGS = options(
    click.option("--backend", "backends", type=names, default="onnxruntime", show_default=True,
                 metavar="NAME,..", help="Runtimes to measure with."),
    click.option("--precision", "precisions", type=names, metavar="NAME,..",
                 help="fp32, bf16, int8_dynamic, .. [default: fp32, or all that a pack holds]"),
    click.option("--threads", type=whole_numbers, default="1", show_default=True,
                 metavar="N,..", help="Threads of the runtime."),
    click.option("--batch", "batches", type=whole_numbers, default="1", show_default=True,
                 metavar="N,..", help="Images at once."),
    click.option("--workers", type=whole_numbers, default="1", show_default=True, metavar="N,..",
                 help="More than 1: throughput of that many processes, each on its own core."),
)  # fmt: skip
_CARE = options(
    click.option("--force", is_flag=True, help="Measure on a busy machine; graded accordingly."),
    click.option("--retry-failures", is_flag=True, help="Measure again what failed before."),
    click.option("--no-memory", is_flag=True, help="Do not measure peak memory."),
    click.option("--max-seconds", type=click.FloatRange(min=0, min_open=True), default=3.0,
                 show_default=True, help="Stop measuring a model after this time."),
    click.option("--timeout", type=click.FloatRange(min=0, min_open=True), default=60.0,
                 show_default=True, help="Give up on a model after this many seconds."),
)  # fmt: skip
_PLACE = options(
    click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
                 help="The profile. [default: profiles/DEVICE.jsonl]"),
    click.option("--run", "run", type=click.Path(path_type=Path), metavar="RUN",
                 help="Write into this run, and take its space unless --space is given."),
    click.option("--device", metavar="NAME", help="Call this machine so."),
    click.option("--note", default="", help="A remark for the first line of a new profile."),
    click.option("--explain", metavar="ARCH",
                 help="Show where the time of one architecture goes: a JSON file, smallest, "
                 "largest, or the beginning of a digest."),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How models are run: each combination is measured."""

    backends: tuple[str, ...]
    precisions: tuple[str, ...] | None
    threads: tuple[int, ...]
    batches: tuple[int, ...]
    workers: tuple[int, ...]


@click.command()
@click.argument("pack", required=False, type=click.Path(path_type=Path), metavar="[PACK]")
@ARCHITECTURES
@_SETTINGS
@_CARE
@_PLACE
@verb_options
def profile(
    output: Output,
    *,
    pack: Path | None,
    space_name: str | None,
    number: int,
    archs: str | None,
    seed: int,
    classes: int | None,
    channels: int | None,
    backends: tuple[str, ...],
    precisions: tuple[str, ...] | None,
    threads: tuple[int, ...],
    batches: tuple[int, ...],
    workers: tuple[int, ...],
    force: bool,
    retry_failures: bool,
    no_memory: bool,
    max_seconds: float,
    timeout: float,
    out: Path | None,
    run: Path | None,
    device: str | None,
    note: str,
    explain: str | None,
) -> None:
    """Measure architectures on this machine, those of a PACK or of a --space.

    Every measurement is kept at once; the same command goes on after any interruption.
    """
    from hwnas.profiling.jobs import Options
    from hwnas.profiling.measure import Plan

    settings = Settings(backends=backends, precisions=precisions, threads=threads,
                        batches=batches, workers=workers)  # fmt: skip
    care = Options(force=force, retry_failures=retry_failures, memory=not no_memory,
                   plan=Plan(max_s=max_seconds), timeout_s=timeout, device_name=device,
                   note=note)  # fmt: skip
    target = target_file(out, run, device)
    space = chosen_space(space_name, run, classes=classes, channels=channels)
    if explain is not None:
        from hwnas.cli.explain import show_explanation

        show_explanation(
            output, explain, pack=pack, space=space, profile=target, settings=settings, run=run
        )
        return
    source = chosen_source(pack, space, archs, number=number, seed=seed)
    measure(output, source, settings=settings, options=care, target=target)


def chosen_space(
    name: str | None, run: Path | None, *, classes: int | None, channels: int | None
) -> "Space | None":
    """Return the space of the options, or that of the run."""
    from hwnas.spaces import space

    asked = {"classes": classes, "channels": channels}
    given = {option: value for option, value in asked.items() if value is not None}
    if name is not None:
        return space(name, **given)
    if run is not None:
        from hwnas.pipeline.rundir import open_run

        there = open_run(run)
        return space(there.space, **{**there.options, **given})
    if given:
        raise UsageError(f"{' and '.join(f'--{key}' for key in given)}: of which space?",
                         "add --space NAME")  # fmt: skip
    return None


def chosen_source(
    pack: Path | None, space: "Space | None", archs: str | None, *, number: int, seed: int
) -> "Source":
    """Return the architectures that the options name."""
    from hwnas.pipeline import measuring

    if pack is not None:
        if archs is not None:
            raise UsageError(f"both a pack ({pack}) and --archs ({archs})", "leave one out")
        return measuring.from_pack(pack)
    if archs is not None:
        return measuring.from_file(Path(archs), of=space)
    if space is None:
        raise UsageError(
            "nothing to measure is named; accepted: a pack, --space, --archs or --run",
            "hwnas profile --space nano -n 20, or hwnas profile FILE.pack",
        )
    return measuring.from_space(space, number, seed=seed)


def target_file(out: Path | None, run: Path | None, device: str | None) -> Path:
    """Return the profile to write: the one named, or that of this device here or in the run."""
    from hwnas.profiling.machine import device as this_device
    from hwnas.profiling.machine import slug

    if out is not None:
        return out
    folder = PROFILES if run is None else run / PROFILES
    return folder / f"{slug(this_device(name=device).name)}.jsonl"


def measure(
    output: Output, source: "Source", *, settings: Settings, options: "Options", target: Path
) -> None:
    """Measure a source and print what was found."""
    from hwnas.profiling.backends import backend
    from hwnas.profiling.driver import profile as measure_all
    from hwnas.profiling.profiles import read_profile
    from hwnas.profiling.summaries import groups

    jobs = _jobs(source, settings, output)
    if source.precisions is None and any(backend(job.backend).takes == "onnx" for job in jobs):
        require("profile --space", ("onnx",))
    from hwnas.pipeline.measuring import plain_module

    with _terminated_is_interrupted():
        outcome = measure_all(
            jobs,
            provide=source.provide,
            provide_module=plain_module,
            output=target,
            options=options,
            progress=_Watcher(output),
        )
    wanted = {job.key for job in jobs}
    found = [record for key, record in read_profile(target).records.items() if key in wanted]
    summary = groups(found)
    document = {"profile": str(target), **_counts(outcome), "groups": [*map(asdict, summary)]}
    output.result(document, _text(target, outcome, summary))


def _jobs(source: "Source", settings: Settings, output: Output) -> "list[Job]":
    from hwnas.pipeline.measuring import runnable
    from hwnas.profiling.jobs import grid

    every = grid(
        source.archs,
        backends=settings.backends,
        threads=settings.threads,
        batches=settings.batches,
        precisions=settings.precisions or source.usual,
        workers=settings.workers,
    )
    jobs, left_out = runnable(every, source)
    for reason in left_out:
        output.note(f"left out: {reason}")
    return jobs


class _Watcher:
    """Tells of each measurement."""

    def __init__(self, output: Output) -> None:
        self._line = ProgressLine(output)

    def __call__(self, progress: "Progress") -> None:
        from hwnas.profiling.records import arch_digest

        record, last = progress.record, progress.done == progress.total
        name = f"{arch_digest(record.arch)[:12]} {record.backend} {record.settings.precision}"
        if record.failure is not None:
            self._line.note(f"failed ({record.failure.kind}): {name}: {record.failure.reason}")
        parts = [f"{progress.done}/{progress.total}", name]
        if record.latency is not None:
            parts += [f"{record.latency.median_ms:.3f} ms", f"grade {record.grade}"]
        if progress.eta_s is not None:
            parts.append(f"{clock(progress.eta_s)} left")
        self._line.show("  ".join(parts), last=last)


@contextmanager
def _terminated_is_interrupted() -> Iterator[None]:
    """Let SIGTERM end the verb as Ctrl-C does, so that no measuring process is left."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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
    return "\n".join([*lines, "", groups_table(summary)])


def groups_table(summary: "Sequence[Group]") -> str:
    """Return a line for each combination of settings."""
    header = ["space", "backend", "precision", "threads", "batch", "workers", "models",
              "median ms", "best /s", "grades"]  # fmt: skip
    rows = [
        [
            group.space,
            group.backend,
            group.settings.precision,
            str(group.settings.threads),
            str(group.settings.batch),
            str(group.settings.workers),
            f"{group.models - group.failed}/{group.models}" if group.failed else str(group.models),
            _span(group),
            "-" if group.best_per_s is None else f"{group.best_per_s:.0f}",
            " ".join(f"{count}{grade}" for grade, count in group.grades.items()) or "-",
        ]
        for group in summary
    ]
    return table(header, rows, right=(3, 4, 5, 6, 7, 8))


def _span(group: "Group") -> str:
    if group.least_ms is None or group.most_ms is None:
        return "-"
    return f"{group.least_ms:.3f}..{group.most_ms:.3f}"
