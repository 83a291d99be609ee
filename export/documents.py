"""JSON documents of this package as frozen dataclasses: written field by field, read strictly."""

import dataclasses
import json
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from hwnas.errors import FormatError, UsageError
from hwnas.io import canonical_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from pydantic import TypeAdapter

T = TypeVar("T", bound="DataclassInstance")
STRICT: dict[str, object] = {"extra": "forbid", "strict": True}


def to_document(value: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a dataclass as a JSON object; tuples become lists."""
    plain: dict[str, Any] = json.loads(canonical_json(dataclasses.asdict(value)))
    return plain


def from_document(kind: type[T], document: dict[str, Any], origin: str) -> T:
    """Return the dataclass that a checked document (with schema and version) describes.

    Classes of strict fields carry `__pydantic_config__ = STRICT`. Raises FormatError naming the
    first field that is missing, unknown or of another type.
    """
    from pydantic import ValidationError

    content = {key: value for key, value in document.items() if key not in ("schema", "version")}
    try:
        # As JSON text, because there a list is a tuple also where types are strict.
        found: T = _adapter(kind).validate_json(canonical_json(content))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "document"
        raise FormatError(f"{origin}: {place}: {first['msg'].lower()}") from error
    except UsageError as error:  # of a value that checks itself
        raise FormatError(f"{origin}: {error.message}") from error
    except ValueError as error:  # NaN or infinite numbers, which are no JSON
        raise FormatError(f"{origin}: {error}") from error
    return found


@cache
def _adapter(kind: "type[T]") -> "TypeAdapter[T]":
    from pydantic import TypeAdapter  # a tenth of a second that other verbs need not pay

    return TypeAdapter(kind)
