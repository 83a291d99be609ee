"""Axes: from values to places on the page, and the round values that are labelled."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

WIDE_RANGE = 6.0  # largest over smallest value, from which an axis is logarithmic
_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_MANTISSAS: tuple[tuple[float, ...], ...] = (
    (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0),
    (1.0, 2.0, 3.0, 5.0, 7.0),
    (1.0, 2.0, 5.0),
    (1.0, 3.0),
    (1.0,),
)
_EMPTY = (0.0, 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """Maps `low`..`high` to the places `start`..`end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the place of a value; values outside are placed at the nearest end."""
        inside = min(max(value, self.low), self.high)
        low, high = self.low, self.high
        if self.logarithmic:
            inside, low, high = math.log(inside), math.log(low), math.log(high)
        return self.start + (inside - low) / (high - low) * (self.end - self.start)

    def ticks(self, most: int) -> tuple[float, ...]:
        """Return at most about `most` round values of the axis."""
        if self.logarithmic:
            return _log_ticks(self.low, self.high, most)
        return _linear_ticks(self.low, self.high, most)


def scale_for(
    values: Iterable[float],
    *,
    start: float,
    end: float,
    zero: bool = False,
    logarithmic: bool | None = None,
    margin: float = 0.05,
) -> Scale:
    """Return a scale that shows all values with a margin.

    Logarithmic where the values span a wide range, unless that is said. `zero`: from zero on.
    """
    finite = [value for value in values if math.isfinite(value)]
    low, high = (min(finite), max(finite)) if finite else _EMPTY
    if high <= low:
        low, high = (low - 0.5, high + 0.5) if low <= 0 else (low * 0.8, high * 1.2)
    if zero:
        low, logarithmic = min(low, 0.0), False
    if logarithmic is None:
        logarithmic = low > 0 and high / low >= WIDE_RANGE
    if logarithmic and low > 0:
        factor = (high / low) ** margin
        low, high = low / factor, high * factor
    else:
        logarithmic = False
        room = margin * (high - low)
        low, high = low if zero else low - room, high + room
    return Scale(low=low, high=high, start=start, end=end, logarithmic=logarithmic)


def tick_labels(ticks: Iterable[float]) -> list[str]:
    """Return the ticks as text, with as many decimals as tell them apart."""
    ticks = list(ticks)
    if any(abs(tick) >= 1e4 for tick in ticks):
        return [_shortened(tick) for tick in ticks]
    for decimals in range(7):
        texts = [f"{tick:.{decimals}f}" for tick in ticks]
        if all(
            math.isclose(float(text), tick, rel_tol=1e-6, abs_tol=1e-9)
            for text, tick in zip(texts, ticks, strict=True)
        ):
            return texts
    return [f"{tick:g}" for tick in ticks]


def _shortened(tick: float) -> str:
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(tick) >= factor:
            return f"{tick / factor:g}{unit}"
    return f"{tick:g}"


def _linear_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    rough = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(step * power for step in _STEPS if step * power >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def _log_ticks(low: float, high: float, most: int) -> tuple[float, ...]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for mantissas in _MANTISSAS:
        ticks = [m * 10.0**power for power in powers for m in mantissas]
        inside = tuple(tick for tick in ticks if low <= tick <= high)
        if len(inside) <= most:
            return inside if len(inside) >= 3 else _linear_ticks(low, high, most)
    return _linear_ticks(low, high, most)
