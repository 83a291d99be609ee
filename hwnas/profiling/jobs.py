"""What there is to measure, how, and what is reported about it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hwnas.errors import HwnasError
from hwnas.profiling.backends import BuildCall, FileModel
from hwnas.profiling.machine import Preflight
from hwnas.profiling.measure import Plan
from hwnas.profiling.paces import Pace
from hwnas.profiling.profiles import Profile
from hwnas.profiling.records import (
    ArchJson,
    Grade,
    Key,
    Pages,
    Privilege,
    Record,
    Settings,
    record_key,
)

# Makes the model of an architecture: an ONNX file's content or path, or how to build a module.
Provide = Callable[[ArchJson, Settings], bytes | Path | FileModel | BuildCall]
# What that may raise where a model cannot be made.
BUILD_ERRORS = (
    HwnasError, OSError, ValueError, ArithmeticError, LookupError, MemoryError, RuntimeError
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One measurement to make."""

    arch: ArchJson
    backend: str
    settings: Settings

    @property
    def key(self) -> Key:
        """The key that its record will have."""
        return record_key(self.arch, self.backend, self.settings)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How to profile. `force` measures on a busy machine; `retry_failures` tries failures again.

    `again`: also what is graded so or worse; of two records the better graded one counts.
    `paces`: what is known of this device beside the profile that is gone on with; latencies are
    told at them, or else (`at_pace`) at the pace it has now. `beside`: profiles of this device with
    models that can be built here, too, to measure others beside. `in_proportion`: the profile's
    models are measured beside one of them however well that is known, and told anew where it was
    slowed down; else only beside a sound measurement, and told once.
    """

    force: bool = False
    retry_failures: bool = False
    again: Grade | None = None
    memory: bool = True
    timeout_s: float = 60.0
    throughput_s: float = 2.0
    plan: Plan = field(default_factory=Plan)
    privileges: tuple[Privilege, ...] = ("fifo", "autogroup")
    device_name: str | None = None
    note: str = ""
    lock_folder: Path | None = None
    paces: tuple[Pace, ...] = ()
    at_pace: bool = True
    beside: tuple[Profile, ...] = ()
    in_proportion: bool = True


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
    """What a call of `profile` did; `seconds` are those of building and measuring.

    `level_known`: everything was told at the level of the profiles to measure beside.
    """

    measured: int
    skipped: int
    failed: int
    level_known: bool
    build_s: float
    measure_s: float
    preflight: Preflight


def grid(
    archs: Iterable[ArchJson],
    *,
    backends: Sequence[str] = ("onnxruntime",),
    threads: Sequence[int] = (1,),
    batches: Sequence[int] = (1,),
    precisions: Sequence[str] = ("fp32",),
    workers: Sequence[int] = (1,),
    pages: Sequence[Pages] = ("default",),
) -> list[Job]:
    """Return the jobs for each architecture with each combination of settings."""
    settings = [
        Settings(threads=t, batch=b, precision=p, workers=w, pages=m)
        for p in precisions
        for t in threads
        for b in batches
        for w in workers
        for m in pages
    ]
    return [
        Job(arch=arch, backend=name, settings=setting)
        for arch in archs
        for name in backends
        for setting in settings
    ]
