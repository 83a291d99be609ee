"""What this machine can do now: runtimes that really run a model, quiet enough or not, data.

Everything is tried, not looked up: a runtime counts as working when it has run a small model.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from hwnas.errors import HwnasError
from hwnas.profiling.backends import BACKENDS, Backend, ModuleModel
from hwnas.profiling.backends.base import ModelSource
from hwnas.profiling.energy import counters_problem
from hwnas.profiling.machine import Preflight, device, judge, read_machine
from hwnas.profiling.pages import huge_pages_problem
from hwnas.profiling.privilege import available_privilege
from hwnas.profiling.records import Device, Privilege, Settings
from hwnas.profiling.reference import reference_model

_COMPILERS = ("c++", "g++", "clang++")
_SLOW_TO_TRY = ("torch-compiled",)
_BUSY_PERCENT = 5.0
_PATIENCE_S = 5.0
_WATCHED_S = 0.3


@dataclass(frozen=True, kw_only=True, slots=True)
class Runtime:
    """A backend of `hwnas profile`. `problem`: why it does not work; `tried`: it ran a model."""

    name: str
    version: str | None
    problem: str | None
    hint: str
    tried: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Busy:
    """A process that takes processor time, as a percentage of one core."""

    name: str
    pid: int
    percent: float


@dataclass(frozen=True, kw_only=True, slots=True)
class MachineState:
    """The machine, whether it can be measured well now, and what would make it better.

    `huge_pages_problem`: why processes cannot have them, None if they can. `energy_problem`: why it
    cannot be measured.
    """

    device: Device
    preflight: Preflight
    privilege: Privilege
    huge_pages_problem: str | None
    energy_problem: str | None
    busiest: tuple[Busy, ...]
    advice: tuple[str, ...]
    free_disk_bytes: int
    free_memory_bytes: int
    gpus: tuple[str, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Available:
    """A built-in data set: where it lies, or whether and how it can be had."""

    name: str
    place: str | None
    reachable: bool
    problem: str | None
    get: str


def machine_state(*, folder: Path = Path()) -> MachineState:
    """Return the state of this machine, after watching it for a moment."""
    processes = _watched()
    readings = read_machine(window_s=_WATCHED_S)
    busiest = _busiest(processes)
    privilege = available_privilege()
    verdict = judge(readings, privilege=privilege)
    return MachineState(
        device=device(),
        preflight=verdict,
        privilege=privilege,
        huge_pages_problem=huge_pages_problem(),
        energy_problem=counters_problem(),
        busiest=busiest,
        advice=tuple(_advice(verdict, privilege, busiest)),
        free_disk_bytes=shutil.disk_usage(folder).free,
        free_memory_bytes=psutil.virtual_memory().available,
        gpus=_gpus(),
    )


def runtimes() -> list[Runtime]:
    """Return every backend, those that are installed after running a model on them."""
    with tempfile.TemporaryDirectory(prefix="hwnas-") as folder:
        path = Path(folder) / "reference.onnx"
        path.write_bytes(reference_model())
        return [_runtime(backend, path) for backend in BACKENDS.values()]


def data_sets(*, timeout_s: float = 3.0) -> list[Available]:
    """Return the built-in data sets; asks the publishers' sites for those that are not here."""
    from hwnas.training.builtin import CIFAR_HINT, FASHION_HINT, located, published
    from hwnas.training.fetch import unreachable

    found = [_digits()]
    for name, hint in (("fashion-mnist", FASHION_HINT), ("cifar10", CIFAR_HINT)):
        place = located(name)
        problem = None if place else unreachable(published(name), timeout_s=timeout_s)
        found.append(
            Available(
                name=name,
                place=None if place is None else str(place),
                reachable=place is not None or problem is None,
                problem=problem,
                get="fetched when it is first used" if problem is None else hint,
            )
        )
    return found


def _digits() -> Available:
    from importlib.util import find_spec

    there = find_spec("sklearn") is not None
    return Available(
        name="digits",
        place="scikit-learn" if there else None,
        reachable=there,
        problem=None if there else "scikit-learn is not installed",
        get="pip install 'hwnas[all]'",
    )


def _runtime(backend: Backend, reference: Path) -> Runtime:
    problem, version, hint, tried = backend.missing(), None, backend.hint, False
    if problem is None:
        version = backend.version()
        if backend.name in _SLOW_TO_TRY:
            if not any(map(shutil.which, (os.environ.get("CXX", ""), *_COMPILERS))):
                problem, hint = "no C++ compiler", "apt-get install g++"
        else:
            problem, tried = _run_once(backend, reference), True
    return Runtime(name=backend.name, version=version, problem=problem, hint=hint, tried=tried)


def _run_once(backend: Backend, reference: Path) -> str | None:
    try:
        model: ModelSource = reference if backend.takes == "onnx" else _small_module()
        session = backend.open(model, settings=Settings())
        session.run()
        session.close()
    except HwnasError as error:
        return error.message
    # What libraries raise on import when a driver or a sister package does not fit.
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None


def _small_module() -> ModuleModel:
    from torch import nn

    return ModuleModel(module=nn.Conv2d(3, 4, 3), input_shape=(3, 16, 16))


def _watched() -> list[psutil.Process]:
    """Return the processes of others, whose time counts from now on."""
    found = []
    for process in psutil.process_iter():
        try:
            process.cpu_percent(None)
        except psutil.Error:
            continue
        if process.pid != os.getpid():
            found.append(process)
    return found


def _busiest(processes: Sequence[psutil.Process], *, most: int = 3) -> tuple[Busy, ...]:
    found = []
    for process in processes:
        try:
            percent, name = process.cpu_percent(None), process.name()
        except psutil.Error:
            continue
        if percent >= _BUSY_PERCENT:
            found.append(Busy(name=name, pid=process.pid, percent=percent))
    return tuple(sorted(found, key=lambda busy: -busy.percent)[:most])


def _advice(verdict: Preflight, privilege: Privilege, busiest: Sequence[Busy]) -> list[str]:
    advice = []
    if privilege == "none":
        advice.append("run as root, or: setcap cap_sys_nice+ep $(readlink -f $(which python3))")
    readings = verdict.readings
    if any("governor" in reason for reason in verdict.reasons):
        advice.append("cpupower frequency-set -g performance")
    if readings.quota_cores is not None:
        advice.append("give the container whole cores: --cpuset-cpus instead of a quota")
    if readings.on_battery:
        advice.append("plug it in")
    if busiest and verdict.reasons:
        names = ", ".join(f"{busy.name} ({busy.pid}: {busy.percent:.0f}%)" for busy in busiest)
        advice.append(f"stop what keeps it busy: {names}")
    return advice


def _gpus() -> tuple[str, ...]:
    """Return the GPUs that NVIDIA's driver sees, whether or not any library here uses them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ()
    try:
        listed = subprocess.run(  # noqa: S603 - a tool of the system
            [tool, "-L"], capture_output=True, text=True, timeout=_PATIENCE_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.partition(" (UUID")[0] for line in listed.splitlines())
