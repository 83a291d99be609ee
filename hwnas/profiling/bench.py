"""Turns jobs into records: builds a model, has a worker measure it, grades what comes back."""

import dataclasses
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hwnas.io.atomic import is_full, write_error
from hwnas.profiling.backends import BuildCall, FileModel, backend
from hwnas.profiling.companions import Companions, Known
from hwnas.profiling.footprint import Footprints
from hwnas.profiling.grading import grade
from hwnas.profiling.graphs import graph_of
from hwnas.profiling.jobs import BUILD_ERRORS, Job, Options, Provide
from hwnas.profiling.machine import Preflight
from hwnas.profiling.paces import PaceKey, pace_key
from hwnas.profiling.records import Conditions, Failure, Key, Latency, Memory, Pages, Record
from hwnas.profiling.remote import FreshWorkers, RemoteWorker, WorkerError
from hwnas.profiling.throughput import measure_throughput


@dataclass(slots=True)
class Bench:
    """Everything that a measurement needs. `provide`: by what the backends take.

    Without `footprints` peak memory is not measured. `baselines`: what the reference took at first,
    in this profile or in this session, at which latencies are told; `expected`: what it takes here
    when nobody disturbs, as far as is known. `turns`: workers for models beside a companion.
    `written`: the model that lies in `folder`, and the digest of its graph. `beside`: the models of
    companions that were prepared; `note` is told of one that is not to be had.
    """

    provide: Mapping[str, Provide]
    options: Options
    preflight: Preflight
    versions: dict[str, str]
    folder: Path
    workers: Mapping[Pages, RemoteWorker]
    turns: FreshWorkers
    baselines: dict[PaceKey, float]
    expected: Mapping[PaceKey, float] = field(default_factory=dict)
    footprints: Footprints | None = None
    companions: Companions = field(default_factory=Companions)
    beside: dict[Key, dict[str, Any]] = field(default_factory=dict)
    note: Callable[[str], None] | None = None
    written: tuple[bytes, str | None] = (b"", None)
    build_s: float = 0.0
    measure_s: float = 0.0

    def record(self, job: Job) -> Record:
        """Build and measure one job; a failure is a record too.

        Raises HwnasError where no model can be built, because the disk is full.
        """
        start = time.perf_counter()
        if self.footprints is not None:
            self.footprints.start(job.backend, job.settings.pages)
        try:
            self._prepare_companion(job)  # first: the last model that is written is this one's
            worker = self._worker(job)
            model, graph = self._model(job)
        except BUILD_ERRORS as error:
            self.build_s += time.perf_counter() - start
            if is_full(error):  # no fault of this model, and the next would fail as well
                raise write_error(error, self.folder) from error
            return self._failure(job, kind="build", reason=str(error) or type(error).__name__)
        built = time.perf_counter()
        self.build_s += built - start
        try:
            record = replace(self._measured(job, model, worker), graph=graph)
            self.companions.learn(record)
            return record
        except WorkerError as error:
            return replace(self._failure(job, kind=error.kind, reason=error.message), graph=graph)
        finally:
            self.measure_s += time.perf_counter() - built

    def _model(self, job: Job) -> tuple[dict[str, Any], str | None]:
        """Return what a worker has to know of a model, and the digest of its graph."""
        made = self.provide[backend(job.backend).takes](job.arch, job.settings)
        if isinstance(made, BuildCall):
            return {"target": made.target, "argument": dict(made.argument)}, None
        if isinstance(made, Path):
            made = FileModel(path=made)
        if isinstance(made, FileModel):
            known = {"path": str(made.path.resolve()), "sample": list(made.sample)}
            return known, graph_of(made.path.read_bytes())
        path = self.folder / "model.onnx"
        if self.written[0] is not made:  # providers keep a model for its other settings
            self.written = (b"", None)
            path.write_bytes(made)
            self.written = (made, graph_of(made))
        return {"path": str(path)}, self.written[1]

    def _prepare_companion(self, job: Job) -> None:
        known = self.companions.of(job)
        if known is None or known.job.key in self.beside:
            return
        try:
            model, graph = self._model(known.job)
        except BUILD_ERRORS as error:
            if is_full(error):
                raise
            self._do_without(known, f"cannot be made here: {error}")
            return
        if None not in {graph, known.graph} and graph != known.graph:
            self._do_without(known, "is another model of the same network here")
            return
        if Path(model.get("path", "")).parent == self.folder:  # where the next will be written
            path = self.folder / f"companion{len(self.beside)}.onnx"
            path.write_bytes(Path(model["path"]).read_bytes())
            model["path"] = str(path)
        self.beside[known.job.key] = model

    def _worker(self, job: Job) -> RemoteWorker:
        """Return who measures a job; a new process gets ready while the model is built."""
        companion = self._companion(job)
        # Importing torch again and again would take longer than measuring.
        if companion is None or backend(job.backend).takes != "onnx":
            return self.workers[job.settings.pages]
        worker = self.turns.worker(job.settings.pages)
        worker.begin(
            {
                "op": "companion",
                "backend": job.backend,
                "settings": dataclasses.asdict(job.settings),
                "companion": companion,
            }
        )
        return worker

    def _do_without(self, known: Known, why: str) -> None:
        self.companions.forget(known)
        if self.note is not None:
            self.note(
                f"{known.job.key[0][:12]}, which earlier measurements were made beside, {why}; "
                "what is measured now has a level of its own, and compares with them less well"
            )

    def _companion(self, job: Job) -> dict[str, Any] | None:
        """Return what a worker has to know of the model that this one is measured beside."""
        known = self.companions.of(job)
        if known is None:
            return None
        name, latency_ms = known.job.key[0], known.latency_ms
        return {"model": self.beside[known.job.key], "network": name, "latency_ms": latency_ms}

    def _measured(self, job: Job, model: dict[str, Any], worker: RemoteWorker) -> Record:
        request = self._request(job, model)
        if self.footprints is not None:
            self.footprints.settle()
        if job.settings.workers > 1:
            latency, conditions, rate = self._throughput(job, request)
            energy = None
        else:
            if request["companion"] is None:
                request["baseline_ms"] = self._baseline(job, request, worker)
            reply = self._ask(worker, "measure", request)
            latency = Latency(**reply["latency"])
            conditions = Conditions(**reply["conditions"])
            energy, rate = reply["energy_mj"], job.settings.batch * 1e3 / latency.median_ms
        known = self.companions.of(job)
        letter, reasons = grade(
            latency,
            settings=job.settings,
            conditions=conditions,
            refusals=self.preflight.refusals,
            companion=None if known is None else known.grade,
        )
        memory = self._memory(request, reasons)
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
        return measured.latency, measured.conditions, measured.per_s * job.settings.batch

    def _baseline(self, job: Job, request: dict[str, Any], worker: RemoteWorker) -> float:
        """Return what the reference took at first, in this profile or in this session."""
        which = pace_key(job.backend, job.settings)
        if which not in self.baselines:
            self.baselines[which] = self._ask(worker, "baseline", request)["reference_ms"]
        return self.baselines[which]

    def _memory(self, request: dict[str, Any], reasons: list[str]) -> Memory | None:
        try:
            return None if self.footprints is None else self.footprints.measure(request)
        except WorkerError as error:  # no reason to lose the latency
            reasons.append(f"peak memory unknown: {error.message}")
            return None

    def _request(self, job: Job, model: dict[str, Any]) -> dict[str, Any]:
        return {
            "model": model,
            "backend": job.backend,
            "settings": dataclasses.asdict(job.settings),
            "companion": self._companion(job),
            "reference": str(self.folder / "reference.onnx"),
            "cores": list(self.preflight.quiet_cores),
            "privileges": list(self.options.privileges),
            "plan": dataclasses.asdict(self.options.plan),
            "expected_ms": self.expected.get(pace_key(job.backend, job.settings)),
        }

    def _ask(self, worker: RemoteWorker, op: str, request: dict[str, Any]) -> dict[str, Any]:
        return worker.ask({**request, "op": op}, timeout_s=self.options.timeout_s)

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
