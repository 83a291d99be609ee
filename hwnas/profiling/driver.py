"""Measure many architectures with several settings into one profile that survives anything.

Each finished measurement is on disk before the next one starts; what is there is not measured
again. Models run in a worker process, so a crash or a hang becomes a recorded failure.
"""

import dataclasses
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from hwnas.errors import HwnasError, UnreliableError
from hwnas.profiling import machine
from hwnas.profiling.backends import BuildCall, backend
from hwnas.profiling.backends.base import check_precision
from hwnas.profiling.grading import grade
from hwnas.profiling.locks import device_lock
from hwnas.profiling.measure import Plan
from hwnas.profiling.privilege import available_privilege
from hwnas.profiling.profiles import Profile, ProfileWriter, read_profile
from hwnas.profiling.records import (
    ArchJson,
    Conditions,
    Failure,
    Header,
    Latency,
    Memory,
    Privilege,
    Record,
    Settings,
    record_key,
)
from hwnas.profiling.reference import reference_model
from hwnas.profiling.remote import RemoteWorker, WorkerError
from hwnas.profiling.throughput import measure_throughput

FAILED_SHARE = 0.1

# Makes the model of an architecture: an ONNX file's content or path, or how to build a module.
Provide = Callable[[ArchJson, Settings], bytes | Path | BuildCall]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One measurement to make."""

    arch: ArchJson
    backend: str
    settings: Settings

    @property
    def key(self) -> tuple[str, str, str]:
        """The key that its record will have."""
        return record_key(self.arch, self.backend, self.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to profile. `force` measures on a busy machine; `retry_failures` tries failures again."""

    force: bool = False
    retry_failures: bool = False
    memory: bool = True
    timeout_s: float = 60.0
    throughput_s: float = 2.0
    plan: Plan = field(default_factory=Plan)
    privileges: tuple[Privilege, ...] = ("fifo", "autogroup")
    device_name: str | None = None
    note: str = ""
    lock_folder: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Reported after each measurement. `eta_s` is None until one has been made."""

    done: int
    total: int
    record: Record
    elapsed_s: float
    eta_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a call of `profile` did; `seconds` are those of building and measuring."""

    measured: int
    skipped: int
    failed: int
    build_s: float
    measure_s: float
    preflight: machine.Preflight


def grid(
    archs: Iterable[ArchJson],
    *,
    backends: Sequence[str] = ("onnxruntime",),
    threads: Sequence[int] = (1,),
    batches: Sequence[int] = (1,),
    precisions: Sequence[str] = ("fp32",),
    workers: Sequence[int] = (1,),
) -> list[Job]:
    """Return the jobs for each architecture with each combination of settings."""
    settings = [
        Settings(threads=t, batch=b, precision=p, workers=w)
        for p in precisions
        for t in threads
        for b in batches
        for w in workers
    ]
    return [
        Job(arch=arch, backend=name, settings=setting)
        for arch in archs
        for name in backends
        for setting in settings
    ]


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
    options: Options | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Outcome:
    """Measure the jobs that `output` does not hold yet and append them to it.

    Raises UnreliableError on a busy machine or beside another profiler, and HwnasError at the end
    when more than a tenth of the jobs failed.
    """
    options = options or Options()
    versions = _versions(jobs)
    device = machine.device(name=options.device_name)
    with ExitStack() as stack:
        stack.enter_context(device_lock(device.fingerprint, folder=options.lock_folder))
        known = _known(output, device.fingerprint)
        todo = _missing(jobs, known, options)
        state = preflight(todo, options=options)
        if state.refusals and not options.force and todo:
            raise UnreliableError(
                "this machine cannot be measured now: " + "; ".join(state.reasons),
                "stop other work, or measure anyway with --force (the records are graded so)",
            )
        header = Header(
            device=device,
            runtimes={**versions, "python": platform.python_version()},
            created_at=time.time(),
            note=options.note,
        )
        writer = stack.enter_context(ProfileWriter(output, header))
        bench = stack.enter_context(_bench(provide, options, state, versions, known))
        _run_all(todo, bench, writer, progress)
    failed = _count_failed(jobs, read_profile(output))
    outcome = Outcome(
        measured=len(todo),
        skipped=len(jobs) - len(todo),
        failed=failed,
        build_s=bench.build_s,
        measure_s=bench.measure_s,
        preflight=state,
    )
    if failed > FAILED_SHARE * len(jobs):
        raise HwnasError(
            f"{failed} of {len(jobs)} measurements failed (accepted: a tenth); all are recorded "
            f"in {output} with their reasons",
            f"hwnas profiles show {output}",
        )
    return outcome


@dataclass(slots=True)
class _Bench:
    """Everything that a measurement needs."""

    provide: Provide
    options: Options
    preflight: machine.Preflight
    versions: dict[str, str]
    folder: Path
    worker: RemoteWorker
    baselines: dict[tuple[str, int], float]
    build_s: float = 0.0
    measure_s: float = 0.0

    def record(self, job: Job) -> Record:
        """Build and measure one job; a failure is a record too."""
        start = time.perf_counter()
        try:
            model = self._model(job)
        except (HwnasError, OSError, ValueError, ArithmeticError, LookupError) as error:
            self.build_s += time.perf_counter() - start
            return self._failure(job, kind="build", reason=str(error))
        built = time.perf_counter()
        self.build_s += built - start
        try:
            return self._measured(job, model)
        except WorkerError as error:
            return self._failure(job, kind=error.kind, reason=error.message)
        finally:
            self.measure_s += time.perf_counter() - built

    def _model(self, job: Job) -> dict[str, Any]:
        made = self.provide(job.arch, job.settings)
        if isinstance(made, BuildCall):
            return {"target": made.target, "argument": dict(made.argument)}
        if isinstance(made, Path):
            return {"path": str(made.resolve())}
        path = self.folder / "model.onnx"
        path.write_bytes(made)
        return {"path": str(path)}

    def _measured(self, job: Job, model: dict[str, Any]) -> Record:
        request = self._request(job, model)
        if job.settings.workers > 1:
            latency, conditions, rate = self._throughput(job, request)
            energy = None
        else:
            request["baseline_ms"] = self._baseline(job, request)
            reply = self._ask("measure", request)
            latency = Latency(**reply["latency"])
            conditions = self._conditions(Conditions(**reply["conditions"]))
            energy, rate = reply["energy_mj"], job.settings.batch * 1e3 / latency.median_ms
        letter, reasons = grade(
            latency,
            settings=job.settings,
            conditions=conditions,
            refusals=self.preflight.refusals,
        )
        memory = self._memory(request, reasons) if self.options.memory else None
        return Record(
            **self._what(job),
            latency=latency,
            throughput_per_s=rate,
            memory=memory,
            energy_mj=energy,
            conditions=conditions,
            grade=letter,
            reasons=reasons,
        )

    def _throughput(self, job: Job, request: dict[str, Any]) -> tuple[Latency, Conditions, float]:
        measured = measure_throughput(
            request,
            workers=job.settings.workers,
            seconds=self.options.throughput_s,
            timeout_s=self.options.timeout_s,
        )
        conditions = self._conditions(measured.conditions)
        return measured.latency, conditions, measured.per_s * job.settings.batch

    def _baseline(self, job: Job, request: dict[str, Any]) -> float:
        """Return what the reference took at first, in this profile or in this session."""
        which = (job.backend, job.settings.threads)
        if which not in self.baselines:
            self.baselines[which] = self._ask("baseline", request)["reference_ms"]
        return self.baselines[which]

    def _memory(self, request: dict[str, Any], reasons: list[str]) -> Memory | None:
        with RemoteWorker() as fresh:
            try:
                reply = fresh.ask({**request, "op": "memory"}, timeout_s=self.options.timeout_s)
            except WorkerError as error:  # no reason to lose the latency
                reasons.append(f"peak memory unknown: {error.message}")
                return None
        return Memory(**reply)

    def _request(self, job: Job, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": model,
            "backend": job.backend,
            "settings": dataclasses.asdict(job.settings),
            "reference": str(self.folder / "reference.onnx"),
            "cores": list(self.preflight.quiet_cores),
            "privileges": list(self.options.privileges),
            "plan": dataclasses.asdict(self.options.plan),
        }

    def _ask(self, op: str, request: dict[str, Any]) -> dict[str, Any]:
        return self.worker.ask({**request, "op": op}, timeout_s=self.options.timeout_s)

    def _conditions(self, seen: Conditions) -> Conditions:
        readings = self.preflight.readings
        return dataclasses.replace(
            seen, frequency_mhz=readings.frequency_mhz, temperature_c=readings.temperature_c
        )

    def _what(self, job: Job) -> dict[str, Any]:
        return {
            "arch": dict(job.arch),
            "backend": job.backend,
            "backend_version": self.versions[job.backend],
            "settings": job.settings,
            "measured_at": time.time(),
        }

    def _failure(
        self, job: Job, *, kind: Literal["error", "crash", "timeout", "build"], reason: str
    ) -> Record:
        words = " ".join(reason.split())[:500] or "no reason given"
        return Record(**self._what(job), failure=Failure(kind=kind, reason=words))


@contextmanager
def _bench(
    provide: Provide,
    options: Options,
    state: machine.Preflight,
    versions: dict[str, str],
    known: Profile | None,
) -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder, RemoteWorker() as worker:
        (Path(folder) / "reference.onnx").write_bytes(reference_model())
        yield _Bench(
            provide=provide,
            options=options,
            preflight=state,
            versions=versions,
            folder=Path(folder),
            worker=worker,
            baselines=_baselines(known, state.privilege),
        )


def _run_all(
    todo: Sequence[Job],
    bench: _Bench,
    writer: ProfileWriter,
    progress: Callable[[Progress], None] | None,
) -> None:
    start = time.perf_counter()
    for done, job in enumerate(todo, start=1):
        record = bench.record(job)
        writer.add(record)
        if progress is not None:
            elapsed = time.perf_counter() - start
            progress(
                Progress(
                    done=done,
                    total=len(todo),
                    record=record,
                    elapsed_s=elapsed,
                    eta_s=elapsed / done * (len(todo) - done),
                )
            )


def _versions(jobs: Sequence[Job]) -> dict[str, str]:
    """Return the versions of the backends; raises if one cannot do what is asked of it."""
    for job in jobs:
        check_precision(backend(job.backend), job.settings)
    return {name: backend(name).version() for name in sorted({job.backend for job in jobs})}


def _known(output: Path, fingerprint: str) -> Profile | None:
    """Return what was measured earlier. A file that ends in its first line holds nothing."""
    if not output.exists() or b"\n" not in output.read_bytes():
        return None
    known = read_profile(output)
    if known.header.device.fingerprint != fingerprint:
        raise HwnasError(
            f"{output} is a profile of {known.header.device.name!r}, not of this device",
            "choose another output file",
        )
    return known


def _missing(jobs: Sequence[Job], known: Profile | None, options: Options) -> list[Job]:
    there = dict(known.records) if known else {}
    if options.retry_failures:
        there = {key: record for key, record in there.items() if record.failure is None}
    unique = {job.key: job for job in jobs}
    return [job for key, job in unique.items() if key not in there]


def _baselines(known: Profile | None, privilege: Privilege) -> dict[tuple[str, int], float]:
    """Return the first reference times of earlier sessions taken under the same privilege."""
    found: dict[tuple[str, int], float] = {}
    for record in sorted(known.measured() if known else [], key=lambda r: r.measured_at):
        latency = record.latency
        assert latency is not None
        if latency.reference_ms and latency.privilege == privilege and record.grade in ("A", "B"):
            # Undo the drift: what is wanted is the first session's baseline.
            first = latency.reference_ms / (1 + (latency.reference_drift or 0.0))
            found.setdefault((record.backend, record.settings.threads), first)
    return found


def _count_failed(jobs: Sequence[Job], found: Profile) -> int:
    keys = {job.key for job in jobs}
    return sum(key in keys and record.failure is not None for key, record in found.records.items())
