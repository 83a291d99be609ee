"""One spelling for each JSON value, so that equal values have equal digests."""

import hashlib
import json
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return `value` as JSON with sorted keys, no spaces and no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


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
