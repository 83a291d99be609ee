"""The machine before and during a measurement: what it is, and whether it is quiet enough.

Whatever cannot be read (other systems, containers, missing drivers) is None and held against
nobody.
"""

import math
import os
import platform
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

import psutil

from hwnas.io import digest
from hwnas.profiling.records import Conditions, Device, Privilege

Verdict = Literal["fine", "degraded", "refused"]

BUSY_LIMIT = 0.10
STEAL_LIMIT = 0.02
HOT_C = 85.0
T = TypeVar("T")
_SLOW_GOVERNORS = ("powersave", "ondemand", "conservative", "schedutil")


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuTimes:
    """Seconds since boot that each core was busy, and that all lost to other guests and had."""

    busy: Mapping[int, float]
    steal: float
    total: float
    at: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Readings:
    """What could be read of the machine's state. Shares are fractions of a core's time.

    `busy_by_core` is of all cores that are on, by their numbers; `allowed` are those that we may
    use (none named: all).
    """

    cores: int
    load: float | None = None
    busy_by_core: Mapping[int, float] = field(default_factory=dict)
    allowed: tuple[int, ...] = ()
    steal_share: float | None = None
    governor: str | None = None
    frequency_mhz: float | None = None
    temperature_c: float | None = None
    quota_cores: float | None = None
    on_battery: bool = False

    @property
    def busy_share(self) -> float | None:
        """The mean over the cores that we may use: a container often has few of many."""
        return _mean_of(self.busy_by_core, self.allowed)

    @property
    def conditions(self) -> Conditions:
        """The part that goes into each record."""
        return Conditions(
            load=self.load,
            busy_share=self.busy_share,
            steal_share=self.steal_share,
            frequency_mhz=self.frequency_mhz,
            temperature_c=self.temperature_c,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """Whether to measure now. `refusals` and `cautions` hold the numbers."""

    refusals: tuple[str, ...]
    cautions: tuple[str, ...]
    readings: Readings
    privilege: Privilege

    @property
    def verdict(self) -> Verdict:
        """The conclusion."""
        return "refused" if self.refusals else "degraded" if self.cautions else "fine"

    @property
    def reasons(self) -> tuple[str, ...]:
        """All that speaks against measuring now, the worst first."""
        return (*self.refusals, *self.cautions)

    @property
    def quiet_cores(self) -> tuple[int, ...]:
        """The cores that may be used, quietest first, later ones first among equals.

        Those of which nothing is known come last.
        """
        busy = self.readings.busy_by_core
        return tuple(
            sorted(allowed_cores(), key=lambda core: (round(busy.get(core, math.inf), 1), -core))
        )


def judge(readings: Readings, *, privilege: Privilege, threads: int = 1) -> Preflight:
    """Return whether a machine in this state can be measured with this privilege."""
    refused: list[str] = []
    degraded: list[str] = []
    busy = readings.busy_share
    if busy is not None and busy > BUSY_LIMIT:
        text = f"the cores are {busy:.0%} busy with other work (limit {BUSY_LIMIT:.0%})"
        (degraded if privilege != "none" else refused).append(text)
    if readings.load is not None and readings.load > max(1.0, readings.cores / 2):
        degraded.append(f"load average {readings.load:.1f} on {readings.cores} cores")
    if readings.steal_share is not None and readings.steal_share > STEAL_LIMIT:
        refused.append(f"{readings.steal_share:.1%} of the time is stolen by other guests")
    if readings.quota_cores is not None and readings.quota_cores < threads:
        refused.append(
            f"the cgroup grants {readings.quota_cores:.2f} cores, {threads} threads would be paused"
        )
    if threads > readings.cores:
        refused.append(f"{threads} threads on {readings.cores} cores")
    if readings.governor in _SLOW_GOVERNORS:
        degraded.append(f"frequency governor {readings.governor!r} changes the clock with the load")
    if readings.temperature_c is not None and readings.temperature_c > HOT_C:
        degraded.append(f"{readings.temperature_c:.0f} C, near thermal throttling")
    if readings.on_battery:
        degraded.append("running on battery")
    return Preflight(
        refusals=tuple(refused),
        cautions=tuple(degraded),
        readings=readings,
        privilege=privilege,
    )


def read_machine(*, window_s: float = 0.3) -> Readings:
    """Return the machine's state, watching its cores for `window_s`."""
    before = cpu_times()
    time.sleep(window_s)
    after = cpu_times()
    busy, steal = shares_between(before, after)
    return Readings(
        cores=available_cores(),
        load=_load(),
        busy_by_core=busy,
        allowed=tuple(allowed_cores()),
        steal_share=steal,
        governor=_governor(),
        frequency_mhz=_frequency(),
        temperature_c=_temperature(),
        quota_cores=cgroup_quota(),
        on_battery=_on_battery(),
    )


def cpu_times() -> CpuTimes:
    """Return the cores' clocks."""
    cores = _reading(lambda: psutil.cpu_times(percpu=True)) or []
    idle = [core.idle + getattr(core, "iowait", 0.0) for core in cores]
    # Guest time is contained in user time, so it must not be counted twice.
    whole = [
        sum(core) - getattr(core, "guest", 0) - getattr(core, "guest_nice", 0) for core in cores
    ]
    return CpuTimes(
        busy=dict(
            zip(
                _core_numbers(len(cores)),
                (total - rest for total, rest in zip(whole, idle, strict=True)),
                strict=True,
            )
        ),
        steal=sum(getattr(core, "steal", 0.0) for core in cores),
        total=sum(whole),
        at=time.monotonic(),
    )


def shares_between(
    before: CpuTimes, after: CpuTimes, *, own_seconds: float = 0.0
) -> tuple[dict[int, float], float]:
    """Return the busy share of each core and the stolen share between two readings.

    `own_seconds` of processor time (our own measurement) are taken off the busiest cores. Where a
    core went off or on in between, nothing is known.
    """
    if before.busy.keys() != after.busy.keys():
        return {}, 0.0
    elapsed = max(after.at - before.at, 1e-6)
    busy = {core: max(0.0, after.busy[core] - then) for core, then in before.busy.items()}
    for core in sorted(busy, key=lambda core: -busy[core]):
        ours = min(busy[core], own_seconds)
        busy[core] -= ours
        own_seconds -= ours
    total = max(after.total - before.total, 1e-6)
    shares = {core: min(1.0, seconds / elapsed) for core, seconds in busy.items()}
    return shares, max(0.0, after.steal - before.steal) / total


def conditions_since(before: CpuTimes, *, own_seconds: float) -> Conditions:
    """Return what others did since `before`; `own_seconds` of processor time were ours."""
    busy, steal = shares_between(before, cpu_times(), own_seconds=own_seconds)
    return Conditions(
        load=_load(),
        busy_share=_mean_of(busy, allowed_cores()),
        steal_share=steal if busy else None,
        frequency_mhz=_frequency(),
        temperature_c=_temperature(),
    )


def _core_numbers(count: int) -> Sequence[int]:
    """Return the numbers of the cores that psutil lists: of those that are on, with gaps."""
    lines = re.findall(r"^cpu(\d+) ", _text(Path("/proc/stat")) or "", re.MULTILINE)
    return [int(number) for number in lines] if len(lines) == count else range(count)


def _mean_of(busy: Mapping[int, float], cores: Sequence[int]) -> float | None:
    counted = [busy[core] for core in cores if core in busy] or list(busy.values())
    return sum(counted) / len(counted) if counted else None


def available_cores() -> int:
    """Return how many cores this process may use."""
    return len(allowed_cores())


def allowed_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cgroup_quota(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> float | None:
    """Return how many cores' worth of time the control group grants, None without a limit."""
    folders = [root, root / "cpu"]
    for line in (_text(membership) or "").splitlines():
        _, names, path = [*line.split(":", 2), "", ""][:3]
        base = root if not names else root / "cpu"
        if not names or "cpu" in names.split(","):
            inner = PurePosixPath(path.lstrip("/"))  # a group above may be the one with a limit
            folders += [base / group for group in (inner, *inner.parents)]
    quotas = [quota for quota in map(_quota_in, folders) if quota is not None]
    return min(quotas, default=None)


def whole_machine() -> str:
    """Return what identifies this machine whichever of its cores this process may use."""
    return digest({"cpu": _cpu_model(), "machine": platform.machine()})[:16]


def device(*, name: str | None = None) -> Device:
    """Return the description of this machine; `name` replaces the generated one."""
    cpu, cores, machine = _cpu_model(), available_cores(), platform.machine()
    return Device(
        name=name or f"{slug(cpu)}-{cores}core",
        fingerprint=digest({"cpu": cpu, "cores": cores, "machine": machine})[:16],
        cpu=cpu,
        cores=cores,
        memory_mb=round(psutil.virtual_memory().total / 2**20),
        architecture=machine,
        os=f"{platform.system()} {platform.release()}",
        governor=_governor(),
    )


def slug(text: str) -> str:
    """Return `text` as a file name: lower case words joined by dashes."""
    words = re.sub(r"\((r|tm|c)\)|\bcpu\b|@.*|processor", " ", text.lower())
    return "-".join(re.findall(r"[a-z0-9]+", words))[:60] or "device"


def _quota_in(folder: Path) -> float | None:
    limit = (_text(folder / "cpu.max") or "").split()  # cgroups of version 2, then of version 1
    if len(limit) != 2:
        limit = [
            _text(folder / "cpu.cfs_quota_us") or "", _text(folder / "cpu.cfs_period_us") or ""
        ]  # fmt: skip
    if not all(number.isdecimal() and int(number) > 0 for number in limit):
        return None  # "max", "-1", or nothing
    return int(limit[0]) / int(limit[1])


def _cpu_model() -> str:
    board = (_text(Path("/proc/device-tree/model")) or "").strip("\0 \n")
    fields = dict(_cpuinfo_fields())
    model = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields:  # virtual machines often hide the model's name
        model += f" (family {fields['cpu family']} model {fields.get('model', '?')})"
    elif "CPU part" in fields:
        model += f" (implementer {fields.get('CPU implementer')} part {fields['CPU part']})"
    return f"{board} {model}".strip()


def _cpuinfo_fields() -> Sequence[tuple[str, str]]:
    lines = (_text(Path("/proc/cpuinfo")) or "").split("\n\n")[0].splitlines()
    pairs = [line.partition(":") for line in lines]
    return [(name.strip(), value.strip()) for name, _, value in pairs]


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _reading(read: Callable[[], T]) -> T | None:
    """Return what `read` does, None where this system does not tell."""
    try:
        return read()
    except (OSError, AttributeError, RuntimeError, ValueError, psutil.Error):
        return None


def _told(name: str) -> Any:  # noqa: ANN401 - psutil's own types
    """Return what a function of psutil says; on some systems it has fewer of them."""
    read = getattr(psutil, name, None)
    return None if read is None else _reading(read)


def _load() -> float | None:
    return _reading(lambda: os.getloadavg()[0])


def _governor() -> str | None:
    return _text(Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"))


def _frequency() -> float | None:
    frequency = _told("cpu_freq")
    return float(frequency.current) if frequency and frequency.current else None


def _temperature() -> float | None:
    found = _told("sensors_temperatures") or {}
    values = [sensor.current for group in found.values() for sensor in group if sensor.current]
    return float(max(values)) if values else None


def _on_battery() -> bool:
    battery = _told("sensors_battery")
    return battery is not None and battery.power_plugged is False
