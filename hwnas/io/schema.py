"""JSON files that say what they are: every one begins with its schema and version.

Older versions are upgraded by pure functions, newer ones refused.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hwnas.errors import AbsentError, FormatError
from hwnas.io.atomic import write_atomic
from hwnas.io.canonical import parse_json

Document = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schema:
    """A kind of file. `upgrades[n]` turns a document of version n into one of version n + 1."""

    name: str
    version: int
    upgrades: Mapping[int, Callable[[Document], Document]] = field(default_factory=dict)

    def stamp(self, content: Document) -> Document:
        """Return `content` with schema and version in front."""
        return {"schema": self.name, "version": self.version, **content}

    def check(self, document: Any, origin: str) -> Document:  # noqa: ANN401 - parsed JSON
        """Return `document` in the newest version; `origin` names it in errors."""
        if not isinstance(document, dict) or "schema" not in document:
            raise FormatError(f"{origin}: not a file of hwnas (no schema in it)")
        if document["schema"] != self.name:
            raise FormatError(f"{origin}: is a {document['schema']!r}, expected {self.name!r}")
        version = document.get("version")
        if type(version) is not int or version < 1:
            raise FormatError(f"{origin}: version is {version!r}, expected 1 to {self.version}")
        if version > self.version:
            raise FormatError(
                f"{origin}: version {version} of {self.name}; accepted: up to {self.version}",
                "pip install --upgrade hwnas",
            )
        while version < self.version:
            document = self.upgrades[version](document)
            version += 1
        return {**document, "version": version}


def read_json(path: Path, schema: Schema) -> Document:
    """Return the document in `path`, upgraded to the newest version of `schema`."""
    path = Path(path)
    try:
        text = path.read_bytes()
    except FileNotFoundError as error:
        raise AbsentError(f"{path}: no such file") from error
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
    return schema.check(parse_json(text, str(path)), str(path))


def is_ours(path: Path) -> bool:
    """Return whether a file says of which schema it is, as every document of ours does."""
    try:
        document = parse_json(Path(path).read_bytes(), str(path))
    except (OSError, FormatError):
        return False
    return isinstance(document, dict) and "schema" in document


def write_json(path: Path, schema: Schema, content: Document) -> None:
    """Write `content` under `schema`, atomically."""
    write_atomic(path, json.dumps(schema.stamp(content), indent=1, allow_nan=False) + "\n")
