"""Values with units, as a person types them: `25ms`, `60%`, `200M`, `40MB`, `200/s`, `5ms..20ms`.

Every kind of value has one base unit, in which it is returned: milliseconds, fractions, plain
counts, bytes, per second. Units are case-sensitive, since `m` and `M` differ by a factor of a
thousand million. Prefixes are decimal (MB = 1,000,000 bytes) unless they say Ki, Mi, Gi.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, DecimalException

from hwnas.errors import UsageError

Range = tuple[float, float]

_NUMBER = re.compile(r"\s*(\d[\d_]*(?:\.\d*)?(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)\s*(\S*)\s*")


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """A kind of value. `factors`: unit -> how many base units it is, the base unit first.

    The unit "" stands for a bare number. `shown`: the units that values are printed in.
    """

    name: str
    factors: Mapping[str, Decimal]
    shown: tuple[str, ...]
    example: str

    @property
    def one(self) -> str:
        """The name with its article."""
        return f"{'an' if self.name[0] in 'aeiou' else 'a'} {self.name}"


def _decimals(**factors: str) -> dict[str, Decimal]:
    return {unit: Decimal(factor) for unit, factor in factors.items()}


DURATION_MS = Kind(
    name="duration",
    factors=_decimals(ms="1", us="0.001", ns="0.000001", s="1000", min="60000", h="3600000"),
    shown=("us", "ms", "s"),
    example="25ms",
)
SHARE = Kind(
    name="share",
    factors={"%": Decimal("0.01"), "": Decimal(1)},
    shown=("%",),
    example="60%",
)
ENERGY_MJ = Kind(
    name="energy",
    factors=_decimals(mJ="1", uJ="0.001", J="1000"),
    shown=("uJ", "mJ", "J"),
    example="50mJ",
)
COUNT = Kind(
    name="count",
    factors={"": Decimal(1)} | _decimals(k="1e3", K="1e3", M="1e6", G="1e9", T="1e12"),
    shown=("", "k", "M", "G"),
    example="200M",
)
SIZE_BYTES = Kind(
    name="size",
    factors=_decimals(
        B="1", kB="1e3", KB="1e3", MB="1e6", GB="1e9", KiB="1024", MiB="1048576", GiB="1073741824"
    ),
    shown=("B", "kB", "MB", "GB"),
    example="40MB",
)
RATE_PER_S = Kind(
    name="rate",
    factors={"/s": Decimal(1), "k/s": Decimal("1e3"), "M/s": Decimal("1e6")},
    shown=("/s",),
    example="200/s",
)


def parse(text: str, kind: Kind) -> float:
    """Return the value of `text` in the base unit of `kind`."""
    return _parse(text, kind)[0]


def parse_range(text: str, kind: Kind) -> Range:
    """Return (low, high) of `5ms..20ms`; `5ms..` and `..20ms` are open on one side."""
    low_text, dots, high_text = text.partition("..")
    if not dots or not (low_text.strip() or high_text.strip()):
        raise UsageError(
            f"{text!r} is not a range; accepted: low..high, low.. or ..high",
            f"write it such as ..{kind.example}",
        )
    low, low_unit = _parse(low_text, kind) if low_text.strip() else (0.0, None)
    high, high_unit = _parse(high_text, kind) if high_text.strip() else (math.inf, None)
    if low_unit == "" and high_unit and low > 0:
        # `200..300M` means 200M..300M to whoever types it, and 200 to a program.
        raise UsageError(
            f"{text!r}: {low_text.strip()} has no unit and {high_text.strip()} has; "
            f"write both, as in {low_text.strip()}{high_unit}..{high_text.strip()}"
        )
    if low > high:
        raise UsageError(f"{text!r} is an empty range: it begins above its end")
    return low, high


def format_value(value: float, kind: Kind) -> str:
    """Return the text that `parse` turns back into exactly `value` (zero or more, finite)."""
    return _in_unit(value, _unit_for(value, kind), kind)


def format_range(bounds: Range, kind: Kind) -> str:
    """Return the text that `parse_range` turns back into exactly `bounds`."""
    low, high = bounds
    if math.isinf(high):
        return f"{format_value(low, kind)}.."
    unit = _unit_for(high, kind)  # one unit for both, so that neither end is bare
    return f"{_in_unit(low, unit, kind)}..{_in_unit(high, unit, kind)}"


def _unit_for(value: float, kind: Kind) -> str:
    fitting = [unit for unit in kind.shown if value >= kind.factors[unit]]
    return fitting[-1] if fitting else kind.shown[0]


def _in_unit(value: float, unit: str, kind: Kind) -> str:
    scaled = Decimal(repr(float(value))).scaleb(-kind.factors[unit].adjusted())
    return f"{scaled.normalize():f}{unit}"


def _parse(text: str, kind: Kind) -> tuple[float, str]:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not {kind.one}; accepted: a number with one of {_accepted(kind)}",
            f"write it such as {kind.example}",
        )
    number, unit = match.groups()
    if unit not in kind.factors:
        wrong = f"the unit {unit!r}, which is no unit of {kind.one}" if unit else "no unit"
        meant = _meant(unit, kind)
        accepted = f"did you mean {number}{meant}?" if meant else f"accepted: {_accepted(kind)}"
        raise UsageError(f"{text!r} has {wrong}; {accepted}", f"write it such as {kind.example}")
    return _scaled(number, kind.factors[unit], text, kind), unit


def _accepted(kind: Kind) -> str:
    return ", ".join(unit or "none" for unit in kind.factors)


def _meant(unit: str, kind: Kind) -> str | None:
    """Return the unit that differs from this in capitals only, if one value alone is meant."""
    alike = {kind.factors[known]: known for known in kind.factors if known.lower() == unit.lower()}
    return next(iter(alike.values())) if unit and len(alike) == 1 else None


def _scaled(number: str, factor: Decimal, text: str, kind: Kind) -> float:
    try:
        value = float(Decimal(number) * factor)
    except DecimalException:  # an exponent of many digits
        value = math.inf
    if not math.isfinite(value):
        raise UsageError(f"{text!r} is too large for {kind.one}")
    return value
