"""A quantity that two runs have in common: both values, the change and its 95 % interval."""

from dataclasses import dataclass
from typing import Literal

from hwnas.pipeline.significance import Interval, shares_difference

Section = Literal["accuracy", "front", "latency", "artifact", "promises"]
Unit = Literal["share", "ms", "bytes", ""]
POINTS: Unit = "share"  # changes of shares are differences, all others are relative


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A quantity of both runs. `change`: in points for shares, else relative to the first.

    `low` and `high` are its 95 % interval (None: unknown), `how` what that is of, `number` of how
    many values. `better`: whether more or less of it is.
    """

    section: Section
    name: str
    unit: Unit
    first: float
    second: float
    change: float
    low: float | None
    high: float | None
    better: Literal["more", "less"]
    how: str
    number: int

    @property
    def significant(self) -> bool:
        """Whether chance does not explain it."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high

    @property
    def loss(self) -> float:
        """By how much the second run is worse; negative where it is better."""
        return -self.change if self.better == "more" else self.change


def change_between(
    interval: Interval,
    *,
    section: Section,
    name: str,
    unit: Unit,
    values: tuple[float, float],
    better: Literal["more", "less"],
    how: str,
    number: int,
) -> Change:
    """Return the change that an interval describes."""
    return Change(
        section=section, name=name, unit=unit, first=values[0], second=values[1],
        change=interval.centre, low=interval.low, high=interval.high, better=better, how=how,
        number=number,
    )  # fmt: skip


def counted_change(
    section: Section, name: str, first: tuple[float, int], second: tuple[float, int], *, of: str
) -> Change:
    """Return the change of a share that was counted in both runs, among so many `of`."""
    return change_between(
        shares_difference(first, second),
        section=section, name=name, unit=POINTS, values=(first[0], second[0]), better="more",
        how=f"counted among {first[1]} and {second[1]} {of}", number=1,
    )  # fmt: skip
