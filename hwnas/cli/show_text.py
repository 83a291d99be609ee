"""How things that files of ours hold are said in a line or a table."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.cli.output import millions, table

if TYPE_CHECKING:
    from hwnas.export.artifact import Manifest, ModelEntry
    from hwnas.export.family import Family

Lines = Sequence[tuple[str, str]]


def preprocessing(how: Mapping[str, Any]) -> str:
    """Return how images enter a model."""
    scaled = "" if how["size"] == how["crop"] else f", scaled to {how['size']}"
    moments = " ".join(f"{name} {numbers(how[name])}" for name in ("mean", "std"))
    return (
        f"{how['channels']}, shorter side {how['resize']} ({how['interpolation']}), "
        f"crop {how['crop']}{scaled}, {moments}"
    )


def model_table(manifest: "Manifest") -> str:
    """Return the models of an artifact, a line each."""
    header = ["file", "MB", "difference", "agrees", "top-1", "p50 ms", "time", "grade"]
    rows = [
        [
            entry.file,
            f"{manifest.files[entry.file].size_bytes / 1e6:.2f}" if entry.file in manifest.files
            else "-",
            f"{entry.difference:.1e}",
            f"{entry.agreement:.1%}",
            f"{entry.accuracy:.2%}",
            *_speed(entry),
        ]
        for entry in manifest.models
    ]  # fmt: skip
    return table(header, rows, right=tuple(range(1, 7)))


def family_table(family: "Family") -> str:
    """Return the members of a family, a line each."""
    rows = [
        [
            member.file,
            ", ".join(member.budgets) or "-",
            f"{member.accuracy:.2%}",
            "-" if member.latency_ms is None else f"{member.latency_ms:.3f}",
            f"{member.size_bytes / 1e6:.2f}",
        ]
        for member in family.members
    ]
    return table(["file", "budget", "top-1", "p50 ms", "MB"], rows, right=(2, 3, 4))


def _speed(entry: "ModelEntry") -> list[str]:
    if entry.latency is None:
        return ["-", "-", "-"]
    found = entry.latency
    return [f"{found['median_ms']:.3f}", f"{found['ratio']:.2f}x", str(found["grade"])]


def outline(path: Path, kind: str, lines: Lines) -> str:
    """Return named facts, a line each."""
    width = max(len(name) for name, _ in lines)
    return "\n".join([f"{path}: {kind}", *(f"  {name:{width}}  {text}" for name, text in lines)])


def read_any(path: Path) -> dict[str, Any]:
    """Return a document whose owner needs packages that may be absent; all are at version 1."""
    from hwnas.io import Schema, read_json

    name = str(json.loads(path.read_bytes())["schema"])
    return read_json(path, Schema(name=name, version=1))


def read_any_journal(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the header and the records of a journal; all are at version 1."""
    from hwnas.io import Schema, read_journal

    header, *records = read_journal(path)
    return Schema(name=str(header["schema"]), version=1).check(header, str(path)), records


def some_of(names: Sequence[str]) -> str:
    """Return how many names there are, and the first of them."""
    shown = ", ".join(names[:6])
    return f"{len(names)}: {shown}{', ...' if len(names) > 6 else ''}"


def numbers(values: Sequence[float]) -> str:
    """Return numbers, four digits each."""
    return ",".join(f"{value:.4g}" for value in values)


def number(value: Any) -> str:  # noqa: ANN401 - a JSON value
    """Return a value as text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def megabytes(count: float) -> str:
    """Return a size in megabytes."""
    return f"{count / 1e6:.2f}MB"


def costs(values: Mapping[str, int]) -> str:
    """Return what a network costs."""
    return f"{millions(values['macs'])} MACs, {values['params']:,} parameters"


def estimates(values: Mapping[str, Any]) -> str:
    """Return those of the values that are estimates with an interval."""
    texts = [
        f"{name} {estimate(name, value)}"
        for name, value in values.items()
        if isinstance(value, dict) and {"mean", "low", "high"} <= value.keys()
    ]
    return ", ".join(texts) or "-"


def value(name: str, number: float) -> str:
    """Return the value of a quantity in its unit."""
    factor, unit = (100.0, "%") if name.startswith("accuracy") else (1.0, "")
    if name.startswith("latency"):
        unit = " ms"
    return f"{factor * number:.4g}{unit}"


def estimate(name: str, said: Mapping[str, float]) -> str:
    """Return an estimate with its interval, in the unit of what it estimates."""
    mean, low, high = (value(name, said[end]) for end in ("mean", "low", "high"))
    unit = mean.lstrip("-+.e0123456789")
    return f"{mean} ({low.removesuffix(unit)} to {high.removesuffix(unit)})"


def supernet(said: Mapping[str, Any] | None) -> str:
    """Return which weights a subnet was cut from."""
    if not said:
        return "-"
    return f"{said.get('step')} steps, sha256 {str(said.get('sha256'))[:12]}"


def versions(found: Mapping[str, str]) -> str:
    """Return packages and their versions."""
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "-"
