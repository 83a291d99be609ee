"""Where the milliseconds of subnets go, kept in a run: `RUN/explanations/*.json`.

Written by `hwnas profile --run RUN --explain ARCH`, so that whoever reads it has to measure
nothing.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError
from hwnas.io import Schema, read_json, write_json
from hwnas.profiling.explain import Explanation, Row
from hwnas.profiling.records import Settings, arch_digest

SCHEMA = Schema(name="hwnas/explanation", version=1)
FOLDER = "explanations"


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """An explanation with the architecture, the device and the settings it is of."""

    arch: Mapping[str, Any]
    macs: int
    device: str
    backend: str
    settings: Settings
    found: Explanation

    @property
    def digest(self) -> str:
        """The identity of the architecture."""
        return arch_digest(self.arch)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object, without schema and version."""
        return {
            "arch": dict(self.arch),
            "digest": self.digest,
            "macs": self.macs,
            "device": self.device,
            "backend": self.backend,
            "settings": asdict(self.settings),
            **asdict(self.found),
        }


def write_explanation(run: Path, explained: Explained) -> Path:
    """Keep an explanation in a run folder, in the place of an earlier one; return the file."""
    how = explained.settings
    name = f"{explained.digest[:12]}-t{how.threads}-b{how.batch}-{how.precision}.json"
    path = Path(run) / FOLDER / name
    write_json(path, SCHEMA, explained.to_json())
    return path


def read_explanations(run: Path) -> list[Explained]:
    """Return the explanations in a run folder, in the order of their file names."""
    return [_read(path) for path in sorted((Path(run) / FOLDER).glob("*.json"))]


def _read(path: Path) -> Explained:
    document = read_json(path, SCHEMA)
    try:
        rows = tuple(
            Row(**{**row, "operators": dict(row["operators"])}) for row in document["rows"]
        )
        return Explained(
            arch=dict(document["arch"]),
            macs=int(document["macs"]),
            device=str(document["device"]),
            backend=str(document["backend"]),
            settings=Settings(**document["settings"]),
            found=Explanation(
                total_ms=float(document["total_ms"]),
                timers_ms=float(document["timers_ms"]),
                rows=rows,
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            f"{path}: incomplete explanation ({error!r})", "hwnas profile --explain"
        ) from error
