"""Measuring on this device until its predictor is good enough: `hwnas profile --active`.

One backend with one setting. Everything that the profile holds of that setting counts, whoever
measured it, but for what is of grade D, if enough else is there. Every measurement is on disk at
once, so the profile is all the state there is: a session that was killed goes on with exactly what
it would have measured next.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.errors import UsageError
from hwnas.pipeline.choose import BATCH, MOST, Active, Round, measure_actively
from hwnas.pipeline.fronts import UNRELIABLE
from hwnas.pipeline.measuring import Source, archs_of, plain_module, runnable
from hwnas.pipeline.profiled import records_of
from hwnas.profiling.driver import (
    alone_on_device,
    check_failures,
    known_profile,
    profile_alone,
)
from hwnas.profiling.graphs import Graphs, changed_models
from hwnas.profiling.jobs import Job, Options, Progress
from hwnas.profiling.machine import device
from hwnas.profiling.records import Record, Settings
from hwnas.profiling.sampling import arch_document, middle_first
from hwnas.spaces import Arch, Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """When to stop: the error (MAPE, percent) that is asked for, or so many architectures."""

    mape: float = 3.0
    most: int = MOST
    batch: int = BATCH
    seed: int = 0


def profile_actively(
    space: Space,
    source: Source,
    *,
    backend: str,
    settings: Settings,
    output: Path,
    aim: Aim = Aim(),
    options: Options | None = None,
    progress: Callable[[Progress], None] | None = None,
    watch: Callable[[Round], None] | None = None,
) -> Active:
    """Measure batches of what is least certain into `output` until the error is reached.

    Chooses among the architectures of `source`, of the whole space if it names none. Raises
    HwnasError at the end when more than a tenth of the measurements failed.
    """
    if settings.workers > 1:
        raise UsageError(f"{settings.workers} workers measure throughput; accepted: 1")
    runnable([Job(arch={}, backend=backend, settings=settings)], source)
    bench = _Bench(
        space=space, source=source, backend=backend, settings=settings, output=output,
        options=options or Options(), progress=progress,
    )  # fmt: skip
    with alone_on_device(bench.options):
        found = measure_actively(
            space,
            bench.measure,
            wanted_mape=aim.mape,
            most=aim.most,
            batch=aim.batch,
            known=bench.known(),
            unreliable=bench.unreliable,
            among=archs_of(source, space) if source.archs else None,
            seed=aim.seed,
            watch=watch,
        )
    tried = len(found.measured) + len(found.left_out) + len(found.failed)
    check_failures(len(found.failed), tried, output)
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """Measures architectures with one setting into one profile."""

    space: Space
    source: Source
    backend: str
    settings: Settings
    output: Path
    options: Options
    progress: Callable[[Progress], None] | None

    def known(self) -> dict[Arch, float | None]:
        """Return what the profile holds, after measuring again what the options say."""
        known = self._there()
        if known and (self.options.retry_failures or self.options.again or self._changed(known)):
            self._profile(list(known), self.options, self.source.graphs)
            known = self._there()
        return known

    def _changed(self, known: Iterable[Arch]) -> bool:
        profile = known_profile(self.output, device().fingerprint)
        return bool(changed_models(self._jobs(known), profile, self.source.graphs))

    def measure(self, archs: Sequence[Arch]) -> dict[Arch, float | None]:
        """Measure architectures; return what the profile holds then, told anew for them, too."""
        options = replace(self.options, retry_failures=False, again=None)
        self._profile(archs if self._there() else middle_first(self.space, archs), options)
        return self._there()

    def _jobs(self, archs: Iterable[Arch]) -> list[Job]:
        return [
            Job(arch=arch_document(self.space, arch), backend=self.backend, settings=self.settings)
            for arch in archs
        ]

    def _profile(
        self, archs: Iterable[Arch], options: Options, graphs: Graphs | None = None
    ) -> None:
        profile_alone(
            self._jobs(archs), provide=self.source.provide, provide_module=plain_module,
            graphs=graphs, output=self.output, options=options, progress=self.progress,
        )  # fmt: skip

    def unreliable(self) -> set[Arch]:
        """Return of which architectures the profile holds no reliable latency."""
        return {arch for arch, record in self._records() if record.grade == UNRELIABLE}

    def _there(self) -> dict[Arch, float | None]:
        return {
            arch: None if record.latency is None else record.latency.median_ms
            for arch, record in self._records()
        }

    def _records(self) -> list[tuple[Arch, Record]]:
        profile = known_profile(self.output, device().fingerprint)
        if profile is None:
            return []
        return [
            (arch, record)
            for arch, record in records_of(profile, self.space, origin=str(self.output))
            if record.backend == self.backend and record.settings == self.settings
        ]
