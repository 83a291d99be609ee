"""One spelling for each JSON value, so that equal values have equal digests; one way to read it."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError

_MOST_NESTED = 100


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `value` as JSON with sorted keys, no spaces and no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def parse_json(text: str | bytes, origin: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the JSON value that `text` spells; `origin` names it in errors.

    Raises FormatError for what is none, and for what is nested deeper than any document of ours:
    whoever walks through it later would run out of stack.
    """
    try:
        value = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:  # a ValueError also where text is no text
        raise FormatError(f"{origin}: not JSON, perhaps truncated ({error})") from error
    if _brackets(text) > _MOST_NESTED and _is_deeper(value, _MOST_NESTED):
        raise FormatError(f"{origin}: JSON nested more than {_MOST_NESTED} deep")
    return value


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no number")


def _brackets(text: str | bytes) -> int:
    if isinstance(text, str):
        return text.count("{") + text.count("[")
    return text.count(b"{") + text.count(b"[")


def _is_deeper(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        level = [inner for outer in level for inner in _inside(outer)]
    return any(isinstance(one, dict | list) for one in level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def digest(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return the SHA-256 of the canonical JSON of `value`, as 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as 64 hex digits."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror})") from error
