"""The process that runs models, so that a runtime that crashes takes nothing else with it.

Reads one JSON request a line from standard input and answers with one line. Only explained errors
are answered; any other ends the process, and whoever asked reads the last words on stderr.
"""

import ctypes
import dataclasses
import importlib
import json
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import psutil

from hwnas.errors import HwnasError
from hwnas.profiling.backends import BuildCall, FileModel, Session, backend
from hwnas.profiling.backends.base import ModelSource
from hwnas.profiling.beside import Companion, measure_beside
from hwnas.profiling.contention import Levels, MemoryProbe
from hwnas.profiling.energy import energy_per_run_mj
from hwnas.profiling.machine import CpuTimes, conditions_since, cpu_times
from hwnas.profiling.measure import Plan, Run, measure
from hwnas.profiling.privilege import Held, privileged
from hwnas.profiling.records import Conditions, Latency, Settings

Request = dict[str, Any]
_WINDOW_S = 0.3  # shorter, the system's clocks are too coarse to see what others do
_PR_SET_PDEATHSIG = 1


class _Worker:
    """What is kept between requests: references, how the machine was, and a prepared model."""

    def __init__(self) -> None:
        self._references: dict[str, Session] = {}
        self._companions: dict[str, Session] = {}
        self._prepared: Session | None = None
        self._probe = MemoryProbe()
        self._cores: dict[tuple[str, int], Levels] = defaultdict(Levels)

    def answer(self, request: Request) -> dict[str, Any]:
        """Return the reply to a request."""
        verbs: dict[str, Callable[[Request], dict[str, Any]]] = {
            "measure": self._measure,
            "baseline": self._baseline,
            "load": self._load,
            "companion": self._open_companion,
            "memory": self._memory,
            "prepare": self._prepare,
            "rate": self._rate,
        }
        return verbs[request["op"]](request)

    def _measure(self, request: Request) -> dict[str, Any]:
        settings = Settings(**request["settings"])
        before, own = cpu_times(), time.process_time()
        session = _open(request)
        with _privileged(request, settings) as held:
            latency = self._latency(session.run, request, held)
        conditions = _conditions(before, own)
        # The counters are the processor's.
        energy = None if latency.clock == "device" else energy_per_run_mj(session.run)
        session.close()
        return {
            "latency": dataclasses.asdict(latency),
            "conditions": dataclasses.asdict(conditions),
            "energy_mj": energy,
        }

    def _latency(self, run: Run, request: Request, held: Held) -> Latency:
        clock = _clock(held, Settings(**request["settings"]))
        plan = Plan(**request.get("plan", {}))
        if request.get("companion") is not None:
            return measure_beside(
                run,
                self._companion(request),
                clock=clock,
                privilege=held.privilege,
                rest_share=held.rest_share,
                plan=plan,
            )
        return measure(
            run,
            clock=clock,
            privilege=held.privilege,
            rest_share=held.rest_share,
            reference=self._reference(request).run,
            baseline_ms=request.get("baseline_ms"),
            memory=self._probe,
            core=self._core(request),
            plan=plan,
        )

    def _companion(self, request: Request) -> Companion:
        asked = request["companion"]
        key = json.dumps([asked["model"], request["backend"], request["settings"]])
        if key not in self._companions:
            self._companions[key] = _open(request | {"model": asked["model"]})
        run = self._companions[key].run
        return Companion(run=run, latency_ms=asked["latency_ms"], network=asked["network"])

    def _open_companion(self, request: Request) -> dict[str, Any]:
        """Open the companion of the model that comes next."""
        self._companion(request)
        return {}

    def _baseline(self, request: Request) -> dict[str, Any]:
        """Time the reference itself, at rest."""
        settings = Settings(**request["settings"])
        reference = self._reference(request)
        with _privileged(request, settings) as held:
            latency = measure(
                reference.run,
                clock=_clock(held, settings),
                privilege=held.privilege,
                rest_share=held.rest_share,
                reference=reference.run,
                core=self._core(request),
            )
        return {"reference_ms": latency.median_ms}

    def _load(self, request: Request) -> dict[str, Any]:
        """Import a runtime, which is part of the process and not of its models."""
        asked = backend(request["backend"])
        asked.version()
        if asked.takes == "module":
            importlib.import_module("torch")
        return {}

    def _memory(self, request: Request) -> dict[str, Any]:
        """Run the model a few times in this process, which should be fresh."""
        self._load(request)
        before = psutil.Process().memory_info().rss
        session = _open(request)
        for _ in range(3):
            session.run()
        peak = max(_peak_bytes(), before)
        session.close()
        return {"peak_mb": round(peak / 2**20, 2), "before_mb": round(before / 2**20, 2)}

    def _prepare(self, request: Request) -> dict[str, Any]:
        """Open a model in this process, which is bound to its cores for good."""
        if request["cores"] and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, request["cores"])
        self._prepared = _open(request)
        for _ in range(5):
            self._prepared.run()
        return {}

    def _rate(self, request: Request) -> dict[str, Any]:
        """Run the prepared model from `start_at` for `seconds`, on one core."""
        assert self._prepared is not None
        run, settings = self._prepared.run, Settings(**request["settings"])
        samples: list[float] = []
        own = time.process_time()
        with _privileged(request, settings) as held:
            time.sleep(max(0.0, request["start_at"] - time.monotonic()))
            start = now = time.perf_counter()
            while now - start < request["seconds"]:
                run()
                then, now = now, time.perf_counter()
                samples.append(round((now - then) * 1e3, 5))
        return {
            "elapsed_s": now - start,
            "own_s": time.process_time() - own,
            "samples_ms": samples,
            "privilege": held.privilege,
        }

    def _reference(self, request: Request) -> Session:
        name = request["backend"] if backend(request["backend"]).takes == "onnx" else "onnxruntime"
        if name not in self._references:
            # One thread always: two pools of spinning threads would be in each other's way.
            path = Path(request["reference"])
            self._references[name] = backend(name).open(path, settings=Settings())
        return self._references[name]

    def _core(self, request: Request) -> Levels:
        """Return what the reference took so far; threads that wait for work slow it down, too."""
        levels = self._cores[request["backend"], request["settings"]["threads"]]
        if request.get("expected_ms") is not None:
            levels.expect(request["expected_ms"])
        return levels


def main() -> None:
    """Serve requests until standard input ends."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # runtimes print; what they print is no reply
    _die_with_parent()
    worker = _Worker()
    for line in sys.stdin:
        try:
            reply: dict[str, Any] = {"ok": worker.answer(json.loads(line))}
        except HwnasError as error:
            reply = {"error": error.message}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _open(request: Request) -> Session:
    source: ModelSource
    if "path" in request["model"]:
        known = request["model"]
        source = FileModel(path=Path(known["path"]), sample=tuple(known.get("sample", ())))
    else:
        source = BuildCall(**request["model"])
    settings = Settings(**request["settings"])
    return backend(request["backend"]).open(source, settings=settings)


def _privileged(request: Request, settings: Settings) -> Any:  # noqa: ANN401 - a context manager
    return privileged(
        threads=settings.threads,
        cores=request.get("cores", ()),
        allowed=request.get("privileges", ("fifo", "autogroup")),
    )


def _clock(held: Held, settings: Settings) -> Literal["wall", "thread_cpu"]:
    return "thread_cpu" if held.privilege == "none" and settings.threads == 1 else "wall"


def _conditions(before: CpuTimes, own_before: float) -> Conditions:
    """Return what else went on since `before`, not counting this process."""
    time.sleep(max(0.0, _WINDOW_S - (time.monotonic() - before.at)))
    own = time.process_time() - own_before
    return conditions_since(before, own_seconds=own)


def _peak_bytes() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        # Not getrusage: there Linux hands a parent's peak down to its children.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        if "VmHWM" in fields:
            return int(fields["VmHWM"].split()[0]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _die_with_parent() -> None:
    """Ask Linux to end this process with its parent, so that `kill -9` leaves nothing running."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
