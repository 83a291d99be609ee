"""Profiling on many devices at once: the machines of a Ray cluster that carry a device's name.

Every device measures every job of a pack, which travels to it; devices need the light install and
Ray. One measurement at a time runs on a device. Records come back one by one and go into the
device's own profile here, so an interrupted session goes on where it was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hwnas.errors import HwnasError, UnreliableError
from hwnas.io.scratch import scratch_folder
from hwnas.pipeline.executor import Executor
from hwnas.pipeline.measuring import from_pack, plain_module
from hwnas.pipeline.ray_executor import OnDevices, Ray
from hwnas.profiling.bench import Bench
from hwnas.profiling.companions import tell_anew
from hwnas.profiling.driver import (
    alone_on_device,
    check_failures,
    jobs_due,
    open_bench,
)
from hwnas.profiling.jobs import Job, Options, Provide
from hwnas.profiling.paces import PaceKey
from hwnas.profiling.packs import PackProvider, read_pack
from hwnas.profiling.profiles import Profile, ProfileWriter, profile_so_far
from hwnas.profiling.records import Header, Key, Privilege, Record
from hwnas.profiling.rounds import Rounds

# What the reference took at first, with such a privilege.
Baselines = dict[tuple[Privilege, PaceKey], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """A measurement to make on a device.

    `baselines` are the first of this session there: a worker in place of another takes them over,
    since what is slower than with the first one has drifted. All errands of a device share them.
    """

    device: str
    job: Job
    baselines: Baselines = field(default_factory=dict, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What came of an errand: a record and the header of its profile, or why nothing did."""

    device: str
    header: Header | None = None
    record: Record | None = None
    refusal: HwnasError | None = None
    baselines: Baselines = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class FleetProgress:
    """Told after each measurement. `done` of `total` are those of all devices together."""

    device: str
    record: Record
    done: int
    total: int


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceOutcome:
    """What a session did on a device; `refusal` says why it did not measure all."""

    device: str
    profile: Path
    measured: int
    skipped: int
    failed: int
    refusal: HwnasError | None = None


def profile_fleet(
    pack: Path,
    jobs: Sequence[Job],
    *,
    devices: Sequence[str],
    folder: Path,
    address: str,
    options: Options | None = None,
    progress: Callable[[FleetProgress], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> list[DeviceOutcome]:
    """Measure the jobs on each device, except what its profile in `folder` holds already.

    `devices` are names of resources in the cluster, and of the profiles. A device that refuses
    (busy, another profiler) does not keep the others from measuring.
    """
    options = options or Options()
    outputs = {device: folder / f"{device}.jsonl" for device in devices}
    known = {device: profile_so_far(path) for device, path in outputs.items()}
    start = partial(
        bench_on, pack=pack.read_bytes(), devices=tuple(devices), jobs=tuple(jobs),
        options=options, known=known,
    )  # fmt: skip
    places = OnDevices(names=tuple(devices))
    executor: Ray[Errand, Report] = Ray(
        start, address=address, places=places, label_of=_device_of, note=note
    )
    graphs = from_pack(pack).graphs
    todo = {
        device: jobs_due(
            jobs, known[device], options=options, graphs=graphs, output=output, note=note
        )
        for device, output in outputs.items()
    }
    measured, refusals = _collect(executor, outputs, todo, progress)
    for output in outputs.values():
        tell_anew(output)
    wanted = {job.key for job in jobs}
    return [
        DeviceOutcome(
            device=device,
            profile=outputs[device],
            measured=measured[device],
            skipped=len(wanted) - len(todo[device]),
            failed=_count_failed(outputs[device], wanted),
            refusal=refusals.get(device),
        )
        for device in devices
    ]


def conclude(outcomes: Iterable[DeviceOutcome], jobs: int) -> None:
    """Raise what a session on one device would raise: a refusal, or too many failures."""
    outcomes = list(outcomes)
    refused = [outcome for outcome in outcomes if outcome.refusal is not None]
    if refused:
        first = refused[0].refusal
        assert first is not None
        whole = "; ".join(f"{outcome.device}: {outcome.refusal}" for outcome in refused)
        kind = UnreliableError if isinstance(first, UnreliableError) else HwnasError
        raise kind(whole, first.hint)
    for outcome in outcomes:
        check_failures(outcome.failed, jobs, outcome.profile)


def bench_on(
    number: int,
    *,
    pack: bytes,
    devices: Sequence[str],
    jobs: Sequence[Job],
    options: Options,
    known: dict[str, Profile | None],
) -> "DeviceBench":
    """Return what measures on the machine that this runs on, which is the device `number`."""
    device = devices[number]
    return DeviceBench(device, pack, jobs, replace(options, device_name=device), known[device])


class DeviceBench:
    """Measures errands where it is, with the device to itself."""

    def __init__(
        self,
        device: str,
        pack: bytes,
        jobs: Sequence[Job],
        options: Options,
        known: Profile | None,
    ) -> None:
        self._device = device
        self._stack = ExitStack()
        self._bench: Bench | None = None
        self._header: Header | None = None
        self._refusal: HwnasError | None = None
        try:
            path = self._stack.enter_context(scratch_folder()) / "models.pack"
            path.write_bytes(pack)
            makers: dict[str, Provide] = {
                "onnx": PackProvider(read_pack(path)),
                "module": plain_module,
            }
            self._stack.enter_context(alone_on_device(options))
            self._bench, self._header = self._stack.enter_context(
                open_bench(jobs, makers=makers, options=options, known=known)
            )
        except HwnasError as error:
            self._stack.close()
            self._refusal = error

    def __call__(self, errand: Errand) -> Report:
        """Return what came of an errand."""
        if self._bench is None:
            return Report(device=self._device, refusal=self._refusal)
        privilege, first = self._bench.preflight.privilege, self._bench.baselines
        for (of, key), reference_ms in errand.baselines.items():
            if of == privilege:
                first.setdefault(key, reference_ms)
        try:
            record = self._bench.record(errand.job)
        except HwnasError as error:  # the disk of this device is full; others go on
            return Report(device=self._device, refusal=error)
        return Report(
            device=self._device,
            header=self._header,
            record=record,
            baselines={(privilege, key): reference_ms for key, reference_ms in first.items()},
        )

    def close(self) -> None:
        """Give the device back."""
        self._stack.close()


def _collect(
    executor: Executor[Errand, Report],
    outputs: Mapping[str, Path],
    todo: Mapping[str, Sequence[Job]],
    progress: Callable[[FleetProgress], None] | None,
) -> tuple[dict[str, int], dict[str, HwnasError]]:
    """Send jobs out, write down the records as they come, have made again what was disturbed.

    Returns how many jobs each device measured, and why devices refused.
    """
    baselines: dict[str, Baselines] = {device: {} for device in todo}
    for device, jobs in todo.items():
        for job in jobs:
            executor.submit(Errand(device=device, job=job, baselines=baselines[device]))
    rounds = {device: Rounds(jobs) for device, jobs in todo.items()}
    done, total = 0, sum(map(len, todo.values()))
    refusals: dict[str, HwnasError] = {}
    with ExitStack() as stack:
        writers: dict[str, ProfileWriter] = {}
        for report in executor:
            if report.record is None:
                assert report.refusal is not None
                refusals[report.device] = report.refusal
                continue
            shared = baselines[report.device]
            shared |= {**report.baselines, **shared}
            if report.device not in writers:
                assert report.header is not None
                writer = ProfileWriter(outputs[report.device], report.header)
                writers[report.device] = stack.enter_context(writer)
            keep, once_more = rounds[report.device].take(report.record)
            if keep:
                writers[report.device].add(report.record)
            for job in once_more:
                executor.submit(Errand(device=report.device, job=job, baselines=shared))
            done, total = done + 1, total + len(once_more)
            if progress is not None:
                progress(FleetProgress(device=report.device, record=report.record, done=done,
                                       total=total))  # fmt: skip
    return {device: one.measured for device, one in rounds.items()}, refusals


def _count_failed(path: Path, wanted: set[Key]) -> int:
    known = profile_so_far(path)
    return sum(record.key in wanted for record in known.failed()) if known else 0


def _device_of(errand: Errand) -> str:
    return errand.device
