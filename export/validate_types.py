"""What the examination of a model file is asked for, and what it found: gates and a verdict.

A gate is a question with an answer. "told" is an answer nobody set a limit for; "unsure" means the
machine was too noisy to tell.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import EXIT_OK, GateError, UnreliableError
from hwnas.io import Schema

if TYPE_CHECKING:
    from PIL.Image import Image

    from hwnas.profiling.records import Pages

VERDICT_SCHEMA = Schema(name="hwnas/verdict", version=1)

State = Literal["passed", "failed", "unsure", "skipped", "told"]


class ReadableImages(Protocol):
    """Images by number."""

    def read(self, index: int) -> "Image":
        """Return one image, decoded; raises HwnasError naming what cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Examples:
    """Labelled images; `labels[i]` is an index into `classes` and belongs to `images.read(i)`."""

    name: str
    classes: tuple[str, ...]
    images: ReadableImages
    labels: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What is asked of the file; None where nothing is. Milliseconds, fractions, bytes."""

    max_latency_ms: float | None = None
    max_p99_ms: float | None = None
    min_accuracy: float | None = None
    max_size_bytes: float | None = None
    max_memory_bytes: float | None = None

    @property
    def of_speed(self) -> bool:
        """Whether anything is asked that needs a measurement."""
        wanted = (self.max_latency_ms, self.max_p99_ms, self.max_memory_bytes)
        return any(limit is not None for limit in wanted)


@dataclass(frozen=True, kw_only=True, slots=True)
class Running:
    """How the file is run where its speed is measured. `seconds` bounds one measurement.

    A `batch` of None is that of the file, 1 where it takes any.
    """

    backend: str = "onnxruntime"
    threads: int = 1
    batch: int | None = None
    pages: "Pages" = "default"
    seconds: float = 6.0
    measured: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """One question about the file. `wanted` and `found` are short; `reason` is a sentence."""

    name: str
    state: State
    wanted: str = ""
    found: str = ""
    reason: str = ""
    hint: str = ""
    seconds: float = 0.0


def passed(name: str, found: str, *, wanted: str = "", reason: str = "") -> Gate:
    """Return a gate that is met."""
    return Gate(name=name, state="passed", wanted=wanted, found=found, reason=reason)


def failed(name: str, reason: str, *, wanted: str = "", found: str = "", hint: str = "") -> Gate:
    """Return a gate that is not met, and why."""
    return Gate(name=name, state="failed", wanted=wanted, found=found, reason=reason, hint=hint)


def skipped(name: str, reason: str, *, wanted: str = "", hint: str = "") -> Gate:
    """Return a gate that could not be looked at, and why."""
    return Gate(name=name, state="skipped", wanted=wanted, reason=reason, hint=hint)


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What was found about one file. `figures` holds every number that was measured."""

    file: str
    sha256: str | None
    gates: tuple[Gate, ...]
    figures: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    created: float = 0.0

    @property
    def state(self) -> State:
        """The conclusion: failed if any gate is, else unsure if any is, else passed."""
        states = {gate.state for gate in self.gates}
        return "failed" if "failed" in states else "unsure" if "unsure" in states else "passed"

    @property
    def exit_code(self) -> int:
        """What a command that stands for this verdict returns."""
        codes: Mapping[State, int] = {
            "failed": GateError.exit_code,
            "unsure": UnreliableError.exit_code,
        }
        return codes.get(self.state, EXIT_OK)

    def of(self, state: State) -> tuple[Gate, ...]:
        """Return the gates in a state."""
        return tuple(gate for gate in self.gates if gate.state == state)

    def gate(self, name: str) -> Gate:
        """Return a gate by name; raises KeyError if there is none."""
        found = {gate.name: gate for gate in self.gates}
        return found[name]

    def to_json(self) -> dict[str, Any]:
        """Return the document of the schema hwnas/verdict."""
        return VERDICT_SCHEMA.stamp(
            {
                "file": self.file,
                "sha256": self.sha256,
                "state": self.state,
                "exit_code": self.exit_code,
                "gates": [asdict(gate) for gate in self.gates],
                "figures": dict(self.figures),
                "versions": dict(self.versions),
                "created": self.created,
            }
        )


def listed(names: Sequence[str], *, shown: int = 5) -> str:
    """Return names as text, the first few and how many more there are."""
    more = len(names) - shown
    text = ", ".join(repr(name) for name in names[:shown])
    return text + (f" and {more} more" if more > 0 else "")
