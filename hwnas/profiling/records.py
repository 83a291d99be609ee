"""What one measurement is, and how it is spelled in JSON.

Milliseconds everywhere unless a name says otherwise; shares are fractions of 1.
A record either has a latency and a grade, or a failure with its reason.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from hwnas.errors import FormatError, unknown_name
from hwnas.io import canonical_json, digest

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Clock = Literal["wall", "thread_cpu", "device"]
Privilege = Literal["fifo", "autogroup", "none"]
Pages = Literal["default", "huge"]
PAGES: tuple[Pages, ...] = ("default", "huge")
Grade = Literal["A", "B", "C", "D"]
GRADES: tuple[Grade, ...] = ("A", "B", "C", "D")
SOUND: tuple[Grade, ...] = ("A", "B")  # others are measured in terms of these
STRICT: dict[str, object] = {"extra": "forbid", "strict": True}

ArchJson = Mapping[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """How a model is run. `workers` > 1 means that many pinned processes at once (throughput).

    `pages` of the memory: what the system gives, or huge ones (hwnas.profiling.pages).
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    threads: int = 1
    batch: int = 1
    precision: str = "fp32"
    workers: int = 1
    pages: Pages = "default"

    @property
    def form(self) -> str:
        """The precision, with the pages where they are huge."""
        return self.precision if self.pages == "default" else f"{self.precision}, huge pages"


@dataclass(frozen=True, kw_only=True, slots=True)
class Device:
    """The machine of a profile; `name` does not contain the host's name."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    name: str
    fingerprint: str
    cpu: str
    cores: int
    memory_mb: int
    architecture: str
    os: str
    governor: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conditions:
    """The state of the machine while a record was taken; None where it cannot be read."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    load: float | None = None
    busy_share: float | None = None
    steal_share: float | None = None
    frequency_mhz: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Latency:
    """Times of single runs and what was concluded from them.

    `samples_ms` are raw; `median_ms`, `p90_ms`, `p99_ms` are divided by `scale`, which is 1 unless
    the reference model drifted by more than a hundredth. Others cut into the `preempted` runs, of
    which `preempted_kept` are among the samples for lack of others; `contended` runs were left out
    as others used the memory or the core. `contention` is by how much slower the memory was than at
    rest beside the samples, and `memory_ms` the time of the probe that told so. `half_width` is
    that of the median's 95 % confidence interval, as a share of the median.

    With a `companion` (a network, as keys of records name it) the model was run in turns with this
    other one of the profile: `reference_ms` is what that took meanwhile, `reference_drift` by which
    share that is above its own record, and `median_ms` is what there would be without that drift.
    `reference_rest_ms` is what it took by itself, in the same process before the turns.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    samples_ms: list[float]
    median_ms: float
    p90_ms: float
    p99_ms: float
    n: int
    kept_share: float
    preempted: int
    half_width: float
    clock: Clock
    privilege: Privilege
    preempted_kept: int = 0
    contended: int = 0
    contention: float | None = None
    memory_ms: float | None = None
    reference_ms: float | None = None
    reference_drift: float | None = None
    scale: float = 1.0
    companion: str | None = None
    reference_rest_ms: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Resident peak of a fresh process that ran the model, and its size before the model."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    peak_mb: float
    before_mb: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why there is no latency."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    kind: Literal["error", "crash", "timeout", "build"]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One measurement of one architecture on one backend with one setting.

    `graph` identifies the model that was measured (hwnas.profiling.graphs), where that is known.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    arch: dict[str, Any]
    backend: str
    backend_version: str
    settings: Settings
    measured_at: float
    graph: str | None = None
    latency: Latency | None = None
    throughput_per_s: float | None = None
    memory: Memory | None = None
    energy_mj: float | None = None
    conditions: Conditions = field(default_factory=Conditions)
    grade: Grade | None = None
    reasons: list[str] = field(default_factory=list)
    failure: Failure | None = None

    @property
    def key(self) -> Key:
        """What identifies the measurement within a device: architecture, backend, settings."""
        return record_key(self.arch, self.backend, self.settings)

    @property
    def rank(self) -> tuple[int, float, str]:
        """Greater is preferred: better grade, then newer, then any fixed order."""
        level = -len(GRADES) if self.grade is None else -GRADES.index(self.grade)
        return (level, self.measured_at, canonical_json(dataclasses.asdict(self)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """The first line of a profile: where and with what it was taken."""

    __pydantic_config__: ClassVar[dict[str, object]] = STRICT
    device: Device
    runtimes: dict[str, str]
    created_at: float
    note: str = ""


def arch_digest(arch: ArchJson) -> str:
    """Return the identity of an architecture: the digest it states, else that of its genes."""
    identity = {name: arch[name] for name in ("space", "genes") if name in arch}
    return str(arch.get("digest") or digest(identity))


def network_of(arch: ArchJson) -> str:
    """Return the identity of a network: its architecture with the options that it states.

    Options of the space (classes, channels) make another network of the same genes.
    """
    options = arch.get("options")
    return arch_digest(arch) + (f"+{digest(options)[:12]}" if options else "")


def one_of_pages(name: str) -> Pages:
    """Return the kind of pages with this name."""
    for pages in PAGES:
        if name == pages:
            return pages
    raise unknown_name("kind of pages", name, PAGES)


def record_key(arch: ArchJson, backend: str, settings: Settings) -> Key:
    """Return the identity of a measurement that exists or is yet to be made."""
    return (network_of(arch), backend, canonical_json(dataclasses.asdict(settings)))


def record_json(record: Record) -> dict[str, Any]:
    """Return a record as a JSON object."""
    return dataclasses.asdict(record)


def header_json(header: Header) -> dict[str, Any]:
    """Return a header as a JSON object, without schema and version."""
    return dataclasses.asdict(header)


def record_from(document: dict[str, Any], origin: str) -> Record:
    """Return the record in `document`; `origin` (file and line) begins the error message."""
    record = _checked(_record_adapter(), document, origin)
    problems = record_problems(record)
    if problems:
        raise FormatError(f"{origin}: {problems[0]}")
    return record


def header_from(document: dict[str, Any], origin: str) -> Header:
    """Return the header in `document` (without schema and version)."""
    return _checked(_header_adapter(), document, origin)


def record_problems(record: Record) -> list[str]:
    """Return what contradicts itself within a record, in words; empty when it is sane."""
    problems = []
    if not isinstance(record.arch.get("space"), str):
        problems.append("arch.space: is missing")
    if min(record.settings.threads, record.settings.batch, record.settings.workers) < 1:
        problems.append("settings: threads, batch and workers must be at least 1")
    if (record.latency is None) == (record.failure is None):
        problems.append("needs either a latency or a failure")
    if (record.latency is None) != (record.grade is None):
        problems.append("needs a grade exactly when it has a latency")
    if record.latency is not None:
        problems += _latency_problems(record.latency)
    return problems


def _latency_problems(latency: Latency) -> list[str]:
    problems = []
    if latency.n != len(latency.samples_ms) or latency.n < 1:
        problems.append(f"latency.n: is {latency.n}, there are {len(latency.samples_ms)} samples")
    elif min(latency.samples_ms) < 0:
        problems.append("latency.samples_ms: a time is negative")
    elif not (0 < latency.median_ms <= latency.p99_ms * (1 + 1e-9)):
        problems.append("latency.median_ms: is above p99_ms or not positive")
    elif not (
        min(latency.samples_ms) * 0.999
        <= latency.median_ms * latency.scale
        <= max(latency.samples_ms) * 1.001
    ):
        problems.append("latency.median_ms: lies outside the samples")
    if not 0 <= latency.kept_share <= 1:
        problems.append(f"latency.kept_share: is {latency.kept_share}, expected 0 to 1")
    for name in ("scale", "memory_ms", "reference_ms", "reference_rest_ms"):
        value = getattr(latency, name)
        if value is not None and value <= 0:
            problems.append(f"latency.{name}: is {value}, expected more than 0")
    if latency.reference_drift is not None and latency.reference_drift <= -1:
        problems.append(f"latency.reference_drift: is {latency.reference_drift}, expected over -1")
    if latency.companion is not None and None in {latency.reference_ms, latency.reference_drift}:
        problems.append("latency.companion: needs reference_ms and reference_drift")
    return problems


@cache
def _record_adapter() -> "TypeAdapter[Record]":
    from pydantic import TypeAdapter  # a tenth of a second that other verbs need not pay

    return TypeAdapter(Record)


@cache
def _header_adapter() -> "TypeAdapter[Header]":
    from pydantic import TypeAdapter

    return TypeAdapter(Header)


T = TypeVar("T")


def _checked(adapter: "TypeAdapter[T]", document: dict[str, Any], origin: str) -> T:
    from pydantic import ValidationError

    try:
        # Strict about JSON's types, not about Python's.
        return adapter.validate_json(canonical_json(document))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "record"
        raise FormatError(f"{origin}: {place}: {first['msg']}") from error
    except ValueError as error:  # NaN or infinite numbers, which are no JSON
        raise FormatError(f"{origin}: {error}") from error
