"""Measure many architectures with several settings into one profile that survives anything.

Each finished measurement is on disk before the next one starts; what is there is not measured
again. Models run in a worker process, so a crash or a hang becomes a recorded failure.
"""

import math
import platform
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from hwnas.errors import HwnasError, UnreliableError
from hwnas.io import write_atomic
from hwnas.io.scratch import scratch_folder
from hwnas.profiling import machine
from hwnas.profiling.backends import backend
from hwnas.profiling.backends.base import check_precision
from hwnas.profiling.bench import Bench
from hwnas.profiling.companions import Companions, tell_anew
from hwnas.profiling.footprint import Footprints
from hwnas.profiling.graphs import Graphs, changed_models
from hwnas.profiling.jobs import Job, Options, Outcome, Progress, Provide, grid
from hwnas.profiling.locks import device_lock
from hwnas.profiling.paces import baselines, paces_of
from hwnas.profiling.pages import check_pages
from hwnas.profiling.privilege import available_privilege
from hwnas.profiling.profiles import Profile, ProfileWriter, profile_so_far, read_profile
from hwnas.profiling.records import PAGES, Device, Header, Key, Privilege
from hwnas.profiling.reference import reference_model
from hwnas.profiling.remote import FreshWorkers, RemoteWorker
from hwnas.profiling.rounds import Rounds

__all__ = ["Job", "Options", "Outcome", "Progress", "Provide", "grid", "preflight", "profile"]

FAILED_SHARE = 0.1
_PROCESSES = 20  # of a session, in which models take turns


def preflight(jobs: Sequence[Job], *, options: Options | None = None) -> machine.Preflight:
    """Return whether the machine is fit for the jobs."""
    options = options or Options()
    privilege: Privilege = available_privilege() if options.privileges else "none"
    threads = max((job.settings.threads * job.settings.workers for job in jobs), default=1)
    return machine.judge(machine.read_machine(), privilege=privilege, threads=threads)


def profile(
    jobs: Sequence[Job],
    *,
    provide: Provide,
    output: Path,
    provide_module: Provide | None = None,
    graphs: Graphs | None = None,
    options: Options | None = None,
    progress: Callable[[Progress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Outcome:
    """Measure the jobs that `output` does not hold yet and append them to it.

    `provide_module` serves the backends that run torch modules; by default `provide` does. With
    `graphs`, what was measured of other models than `provide` makes now is measured again, and
    `note` is told.
    Raises UnreliableError on a busy machine or beside another profiler, and HwnasError at the end
    when more than a tenth of the jobs failed.
    """
    options = options or Options()
    with alone_on_device(options):
        outcome = profile_alone(
            jobs,
            provide=provide,
            output=output,
            provide_module=provide_module,
            graphs=graphs,
            options=options,
            progress=progress,
            note=note,
        )
    check_failures(outcome.failed, len(jobs), output)
    return outcome


@contextmanager
def alone_on_device(options: Options) -> Iterator[None]:
    """Keep other profilers off this device."""
    with device_lock(folder=options.lock_folder):
        yield


def profile_alone(
    jobs: Sequence[Job],
    *,
    provide: Provide,
    output: Path,
    provide_module: Provide | None = None,
    graphs: Graphs | None = None,
    options: Options,
    progress: Callable[[Progress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> Outcome:
    """Measure as `profile` does, for who holds the device; however many fail."""
    makers = {"onnx": provide, "module": provide_module or provide}
    known = known_profile(output, machine.device().fingerprint)
    todo = jobs_due(jobs, known, options=options, graphs=graphs, output=output, note=note)
    with ExitStack() as stack:
        bench, header = stack.enter_context(
            open_bench(jobs, makers=makers, options=options, known=known, todo=todo, note=note)
        )
        writer = stack.enter_context(ProfileWriter(output, header))
        if options.in_proportion and note is not None:
            for job in bench.companions.missed(todo):
                note(_without_companion(job, header.runtimes[job.backend]))
        _run_all(todo, bench, writer, progress, note)
    if options.in_proportion:
        tell_anew(output)
    return Outcome(
        measured=len(todo),
        skipped=len(jobs) - len(todo),
        failed=_count_failed(jobs, read_profile(output)),
        level_known=bool(options.beside) and not bench.companions.missed(todo),
        build_s=bench.build_s,
        measure_s=bench.measure_s,
        preflight=bench.preflight,
    )


def _without_companion(job: Job, version: str) -> str:
    settings = job.settings
    return (
        f"none of the profiles to measure beside has {job.arch.get('space')} on {job.backend} "
        f"{version} ({settings.form}, batch {settings.batch}, one thread): what is measured of it "
        "now has a level of its own"
    )


@contextmanager
def open_bench(
    jobs: Sequence[Job],
    *,
    makers: Mapping[str, Provide],
    options: Options,
    known: Profile | None,
    todo: Sequence[Job] | None = None,
    note: Callable[[str], None] | None = None,
) -> Iterator[tuple[Bench, Header]]:
    """Yield a bench for the jobs on this machine, and the header of the profile they belong in.

    `makers`: by what the backends take. `known`: what was measured earlier, of this device.
    `todo`: those of the jobs that are still to be measured; where none are, a busy machine will do.
    """
    versions = _versions(jobs)
    device = machine.device(name=options.device_name)
    if known is not None:
        _check_device(known, device.fingerprint, "the profile to go on with")
        _check_name(known, options.device_name)
    todo = jobs if todo is None else todo
    state = preflight(todo, options=options)
    if state.refusals and not options.force and todo:
        raise UnreliableError(
            "this machine cannot be measured now: " + "; ".join(state.reasons),
            "stop other work, or measure anyway with --force (the records are graded so)",
        )
    with _bench(makers, options, state, versions, known=known, todo=todo, note=note) as bench:
        yield bench, _header(device, versions, options)


def check_failures(failed: int, jobs: int, output: Path) -> None:
    """Raise HwnasError when more than a tenth of the measurements failed."""
    if failed > FAILED_SHARE * jobs:
        raise HwnasError(
            f"{failed} of {jobs} measurements failed (accepted: a tenth); all are recorded "
            f"in {output} with their reasons",
            f"hwnas profiles show {output}; --retry-failures measures them again",
        )


@contextmanager
def _bench(
    provide: Mapping[str, Provide],
    options: Options,
    state: machine.Preflight,
    versions: dict[str, str],
    *,
    known: Profile | None,
    todo: Sequence[Job],
    note: Callable[[str], None] | None,
) -> Iterator[Bench]:
    earlier = paces_of(known) if known else ()
    told_at = (*earlier, *options.paces) if options.at_pace else earlier
    with scratch_folder() as folder, ExitStack() as stack:
        write_atomic(folder / "reference.onnx", reference_model())
        footprints = stack.enter_context(closing(Footprints(timeout_s=options.timeout_s)))
        workers = {pages: stack.enter_context(RemoteWorker(pages=pages)) for pages in PAGES}
        turns = FreshWorkers(uses=math.ceil(len(todo) / _PROCESSES) or 1)
        stack.callback(turns.close)
        yield Bench(
            provide=provide,
            options=options,
            preflight=state,
            versions=versions,
            folder=folder,
            workers=workers,
            turns=turns,
            baselines=baselines(told_at, state.privilege, versions),
            expected=baselines((*earlier, *options.paces), state.privilege, versions),
            footprints=footprints if options.memory else None,
            companions=Companions(known, options.beside, versions, options.in_proportion),
            note=note,
        )


def _run_all(
    todo: Sequence[Job],
    bench: Bench,
    writer: ProfileWriter,
    progress: Callable[[Progress], None] | None,
    note: Callable[[str], None] | None,
) -> None:
    start, queue, rounds = time.perf_counter(), list(todo), Rounds(todo)
    for done, job in enumerate(queue, start=1):
        record = bench.record(job)
        keep, once_more = rounds.take(record)
        if keep:
            writer.add(record)
        queue += once_more
        if once_more and note is not None:
            note(
                f"{len(once_more)} of {len(todo)} measurements met a machine that others slowed "
                "down, as was seen by the best of them, and are made once more; all are recorded"
            )
        if progress is not None:
            elapsed = time.perf_counter() - start
            progress(
                Progress(
                    done=done,
                    total=len(queue),
                    record=record,
                    elapsed_s=elapsed,
                    eta_s=elapsed / done * (len(queue) - done),
                )
            )


def _versions(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the versions of the backends; raises if one cannot do what is asked of it."""
    for job in jobs:
        check_precision(backend(job.backend), job.settings)
        check_pages(job.settings.pages)
    return {name: backend(name).version() for name in sorted({job.backend for job in jobs})}


def _header(device: Device, versions: dict[str, str], options: Options) -> Header:
    return Header(
        device=device,
        runtimes={**versions, "python": platform.python_version()},
        created_at=time.time(),
        note=options.note,
    )


def known_profile(output: Path, fingerprint: str) -> Profile | None:
    """Return what was measured earlier, None if nothing was.

    Raises HwnasError for the profile of another device.
    """
    known = profile_so_far(output)
    if known is not None:
        _check_device(known, fingerprint, str(output))
    return known


def _check_name(known: Profile, name: str | None) -> None:
    there = known.header.device.name
    if name is not None and name != there:
        raise HwnasError(
            f"the profile to go on with calls this device {there!r}, not {name!r}",
            "leave --device out, or choose another output file",
        )


def _check_device(known: Profile, fingerprint: str, what: str) -> None:
    if known.header.device.fingerprint != fingerprint:
        raise HwnasError(
            f"{what} is a profile of {known.header.device.name!r}, not of this device",
            "choose another output file",
        )


def jobs_due(
    jobs: Sequence[Job],
    known: Profile | None,
    *,
    options: Options,
    output: Path,
    graphs: Graphs | None,
    note: Callable[[str], None] | None,
) -> list[Job]:
    """Return `missing_jobs` and those of which another model was measured, of which `note` tells.

    `known` is what the profile `output` holds.
    """
    changed = changed_models(jobs, known, graphs)
    if changed and note is not None:
        note(
            f"{len(changed)} measurements in {output} are of other models of the same networks "
            "than those asked for now, and are made again"
        )
    return missing_jobs(jobs, known, options, changed)


def missing_jobs(
    jobs: Sequence[Job],
    known: Profile | None,
    options: Options,
    changed: Collection[Key] = (),
) -> list[Job]:
    """Return the jobs, each once, that a profile does not hold or that shall be repeated.

    `changed`: what counts as missing, because another model was measured.
    """
    there = dict(known.records) if known else {}
    there = {key: record for key, record in there.items() if key not in changed}
    if options.retry_failures:
        there = {key: record for key, record in there.items() if record.failure is None}
    if options.again is not None:
        worse = options.again
        there = {
            key: record
            for key, record in there.items()
            if record.failure is not None or (record.grade or "A") < worse
        }
    unique = {job.key: job for job in jobs}
    return [job for key, job in unique.items() if key not in there]


def _count_failed(jobs: Sequence[Job], found: Profile) -> int:
    keys = {job.key for job in jobs}
    return sum(key in keys and record.failure is not None for key, record in found.records.items())
