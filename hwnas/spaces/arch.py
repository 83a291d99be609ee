"""An architecture: one value for every gene of a space, in canonical form."""

from collections.abc import Iterator, Mapping
from typing import Any

from hwnas.errors import FormatError
from hwnas.io import Schema, digest

ARCH_SCHEMA = Schema(name="hwnas/arch", version=1)

Value = int | float | str


class Arch(Mapping[str, Value]):
    """An immutable mapping from genes to values; equal networks are equal architectures.

    Made by a `Space`, which guarantees the canonical form: genes of inactive layers have one
    fixed value.
    """

    __slots__ = ("_digest", "_values", "space")

    def __init__(self, space: str, values: Mapping[str, Value]) -> None:
        self.space = space
        self._values = dict(values)
        self._digest: str | None = None

    def __getitem__(self, gene: str) -> Value:
        return self._values[gene]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash((self.space, tuple(self._values.values())))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Arch):
            return NotImplemented
        return self.space == other.space and self._values == other._values

    def __repr__(self) -> str:
        return f"Arch({self.space}:{self.digest[:12]})"

    @property
    def digest(self) -> str:
        """The SHA-256 of the canonical JSON; the identity of the architecture."""
        if self._digest is None:
            self._digest = digest({"space": self.space, "genes": self._values})
        return self._digest

    def to_json(self) -> dict[str, Any]:
        """Return the JSON document of the architecture."""
        return ARCH_SCHEMA.stamp({"space": self.space, "genes": dict(self._values)})


def genes_of(document: Any, origin: str) -> tuple[str, dict[str, Value]]:  # noqa: ANN401 - JSON
    """Return (space name, genes) of an architecture's JSON document."""
    document = ARCH_SCHEMA.check(document, origin)
    space, genes = document.get("space"), document.get("genes")
    if not isinstance(space, str) or not isinstance(genes, dict):
        raise FormatError(f"{origin}: an architecture needs 'space' and 'genes'")
    return space, {gene: _value(value) for gene, value in genes.items()}


def _value(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return a value with tuples for the lists that JSON has for them."""
    return tuple(map(_value, value)) if isinstance(value, list) else value
