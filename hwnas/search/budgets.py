"""Budgets as a person types them: `25ms`, `5ms,10ms`, `60%`, `5ms..20ms`, `server=25ms`.

A comma separates alternatives, each of which gets an answer of its own. A share is one of what
the largest architecture has. Where more is better (throughput), a plain value is a lower bound.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from hwnas.errors import UsageError, unknown_name
from hwnas.io.units import (
    COUNT,
    DURATION_MS,
    ENERGY_MJ,
    RATE_PER_S,
    SHARE,
    SIZE_BYTES,
    Kind,
    format_range,
    format_value,
    parse,
    parse_range,
)
from hwnas.search.constraints import Constraint

# What can have a budget; the first four are properties of a device.
KINDS: Mapping[str, Kind] = {
    "latency": DURATION_MS,
    "throughput": RATE_PER_S,
    "memory": SIZE_BYTES,
    "energy": ENERGY_MJ,
    "macs": COUNT,
    "params": COUNT,
    "size": SIZE_BYTES,
}
OF_DEVICES = ("latency", "throughput", "memory", "energy")
MORE_IS_BETTER = ("throughput",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Bounds on a quantity, in its base unit, or as shares of what the largest has.

    `device`: the one it is for, None where only one is meant.
    """

    quantity: str
    device: str | None = None
    most: float = math.inf
    least: float = -math.inf
    is_share: bool = False

    @property
    def name(self) -> str:
        """The name of the quantity, with its device where that is stated."""
        return self.quantity if self.device is None else f"{self.quantity}:{self.device}"

    @property
    def text(self) -> str:
        """The budget as it would be typed, such as `25ms` or `5ms..20ms`."""
        kind = SHARE if self.is_share else KINDS[self.quantity]
        bounds = (max(self.least, 0.0), self.most)
        usual = self.quantity in MORE_IS_BETTER
        if math.isinf(self.most) and usual:
            return format_value(self.least, kind)
        if math.isinf(self.least) and not usual:
            return format_value(self.most, kind)
        return format_range(bounds, kind)

    def constraint(self, *, largest: float, confidence: float) -> Constraint:
        """Return the constraint, where the largest architecture has the value `largest`."""
        unit = largest if self.is_share else 1.0
        return Constraint(
            quantity=self.name,
            most=self.most * unit,
            least=self.least * unit,
            confidence=confidence,
        )


def label(budgets: Sequence[Budget]) -> str:
    """Return budgets that hold together as a line such as `latency 25ms, params 2M`."""
    return ", ".join(f"{budget.name} {budget.text}" for budget in budgets)


def joint_confidence(constraints: Sequence[Constraint]) -> tuple[Constraint, ...]:
    """Return the constraints so confident that all hold together with the asked probability.

    Only quantities of devices are uncertain; their errors are taken to be independent.
    """
    uncertain = [c for c in constraints if c.quantity.partition(":")[0] in OF_DEVICES]
    bounds = sum(math.isfinite(c.most) + math.isfinite(c.least) for c in uncertain)
    return tuple(
        replace(c, confidence=c.confidence ** (1.0 / bounds)) if c in uncertain else c
        for c in constraints
    )


def parse_budgets(texts: Mapping[str, str | Sequence[str]]) -> tuple[tuple[Budget, ...], ...]:
    """Return every combination of the alternatives, each a set of budgets that hold together.

    `texts`: what was typed for each quantity, or a list of it with a text per device. No budgets
    at all are one empty combination.
    """
    alternatives: dict[str, tuple[Budget, ...]] = {}
    for quantity, given in texts.items():
        typed = (given,) if isinstance(given, str) else given
        for text in typed:
            found = _typed(quantity, text)
            if found[0].name in alternatives:
                raise UsageError(
                    f"--{quantity} is given twice for {found[0].device or 'the device'}",
                    f"alternatives are separated by commas: --{quantity} {typed[0]},{text}",
                )
            alternatives[found[0].name] = found
    return tuple(product(*alternatives.values()))


def _typed(quantity: str, text: str) -> tuple[Budget, ...]:
    """Return the budgets of an option; mistakes name it, and what could be typed instead."""
    try:
        return alternatives_of(quantity, text)
    except UsageError as error:
        option = f"--{quantity}"
        hint = f"{option} {KINDS[quantity].example}, or of what the largest has: {option} 60%"
        raise UsageError(f"{option}: {error.message}", hint) from error


def alternatives_of(quantity: str, text: str) -> tuple[Budget, ...]:
    """Return the budgets of one text such as `server=10ms,20ms`."""
    if quantity not in KINDS:
        raise unknown_name("quantity", quantity, KINDS)
    before, equals, after = text.partition("=")
    device, values = (before.strip(), after) if equals else (None, text)
    if device == "" or (device and quantity not in OF_DEVICES):
        raise UsageError(
            f"{text!r}: {device!r} is no device that a budget of {quantity} could "
            f"be for; accepted: such as {KINDS[quantity].example}"
            + (f" or server={KINDS[quantity].example}" if quantity in OF_DEVICES else "")
        )
    return tuple(_budget(quantity, device, value) for value in values.split(","))


def _budget(quantity: str, device: str | None, text: str) -> Budget:
    is_share = "%" in text
    kind = SHARE if is_share else KINDS[quantity]
    bounds = parse_range(text, kind) if ".." in text else None
    if bounds is None:
        value = parse(text, kind)
        bounds = (value, math.inf) if quantity in MORE_IS_BETTER else (-math.inf, value)
    least, most = bounds
    return Budget(
        quantity=quantity,
        device=device,
        most=most,
        least=least if least > 0 else -math.inf,
        is_share=is_share,
    )
