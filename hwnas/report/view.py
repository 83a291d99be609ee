"""What the figure of the front shows: choices, measured points, budgets, and what to compare with.

x is what a choice costs (a latency where there is one, else MACs), y its accuracy.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hwnas.errors import UsageError
from hwnas.io import units
from hwnas.pipeline.fronts import Answer, Choice, Estimate, Front, Verified, key_of
from hwnas.pipeline.landmarks import Landmark, comparable
from hwnas.report.baselines import Baseline
from hwnas.report.gather import Material
from hwnas.report.words import SPACE, listed, quantity
from hwnas.search.budgets import MORE_IS_BETTER

ACCURACY, LATENCY, MACS = "accuracy", "latency", "macs"
MOST_SPOTS = 300
_CLAUSE = re.compile(r"(\w+)[: ]?(.*?)[ =](\S+)")  # a quantity, its device, and how much
_NONE: Mapping[str, float] = {}
_KINDS = {LATENCY: units.DURATION_MS, MACS: units.COUNT}


@dataclass(frozen=True, kw_only=True, slots=True)
class Spot:
    """A choice at its place: `index` in the front, and the estimates of both axes."""

    index: int
    digest: str
    x: Estimate
    y: Estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """A choice that was measured; `spot` is what was promised of it, if the front still has it."""

    digest: str
    x: float
    y: float
    spot: Spot | None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """One figure of the front."""

    x_name: str
    spots: tuple[Spot, ...]
    left_out: int
    recommended: tuple[tuple[str, Spot], ...]
    knee: Spot | None
    delivered: tuple[Delivered, ...]
    limits: tuple[float, ...]
    baselines: tuple[Baseline, ...]
    landmarks: tuple[Landmark, ...]

    @property
    def on_front(self) -> tuple[Spot, ...]:
        """The spots that no other beats in both, by x."""
        found: list[Spot] = []
        for spot in sorted(self.spots, key=lambda spot: (spot.x.mean, -spot.y.mean)):
            if not found or spot.y.mean > found[-1].y.mean:
                found.append(spot)
        return tuple(found)


def axes_of(front: Front) -> list[str]:
    """Return the quantities that accuracy is shown over: each latency, else MACs."""
    if not front.choices or ACCURACY not in front.choices[0].predicted:
        return []
    first = front.choices[0]
    found = [name for name in first.predicted if name.partition(":")[0] == LATENCY]
    return found or ([MACS] if MACS in first.costs else [])


def view_of(material: Material, front: Front, x_name: str, baselines: tuple[Baseline, ...]) -> View:
    """Return what the figure of accuracy over `x_name` shows."""
    every = [_spot(index, choice, x_name) for index, choice in enumerate(front.choices)]
    recommended = [
        (answer.budget, every[answer.recommended])
        for answer in front.answers
        if answer.recommended is not None
    ]
    knees = [answer.knee for answer in front.answers if answer.knee is not None]
    promised = {key_of(choice): spot for choice, spot in zip(front.choices, every, strict=True)}
    delivered = _delivered(material.verified, promised, x_name)
    kept = {spot.index for _, spot in recommended} | set(knees[:1])
    kept |= {found.spot.index for found in delivered if found.spot is not None}
    spots = thinned(every, kept)
    limits = {limit for answer in front.answers for limit in limits_of(answer, x_name)}
    return View(
        x_name=x_name,
        spots=tuple(spots),
        left_out=len(every) - len(spots),
        recommended=tuple(recommended),
        knee=every[knees[0]] if knees else None,
        delivered=delivered,
        limits=tuple(sorted(limits)),
        baselines=baselines,
        landmarks=landmarks_on(material.landmarks, front, x_name),
    )


def landmarks_on(landmarks: Sequence[Landmark], front: Front, x_name: str) -> tuple[Landmark, ...]:
    """Return the landmarks that a figure over a latency may show, by latency."""
    if x_name.partition(":")[0] != LATENCY:
        return ()
    found = [landmark for landmark in landmarks if comparable(landmark, front, x_name)]
    return tuple(sorted(found, key=lambda landmark: (landmark.latency, landmark.name)))


def thinned(spots: Sequence[Spot], kept: Iterable[int]) -> list[Spot]:
    """Return at most about MOST_SPOTS of the spots, evenly by x, those in `kept` for certain."""
    if len(spots) <= MOST_SPOTS:
        return list(spots)
    order = sorted(spots, key=lambda spot: spot.x.mean)
    step = (len(order) - 1) / (MOST_SPOTS - 1)
    chosen = {order[round(step * place)].index for place in range(MOST_SPOTS)} | set(kept)
    return [spot for spot in spots if spot.index in chosen]


def limits_of(asked: Answer | Verified, name: str) -> list[float]:
    """Return the upper ends that the budget of an answer sets for a quantity."""
    return [asked.limits[name]] if name in asked.limits else limits_in(asked.budget, name)


def limits_in(budget: str, name: str) -> list[float]:
    """Return the upper ends that a budget such as `latency 25ms` sets for a quantity."""
    wanted, _, device = name.partition(":")
    found = []
    for said, amount in _clauses(budget):
        kind, _, where = said.partition(":")
        if kind != wanted or (device and where != device):
            continue
        try:
            found.append(units.parse(amount.rpartition("..")[2], _KINDS[kind]))
        except UsageError:  # such as a share of the largest
            continue
    return found


def _clauses(budget: str) -> list[tuple[str, str]]:
    """Return the quantities of a budget with what is said of each, "" for one that is not known."""
    found = []
    for part in filter(None, budget.split(", ")):
        clause = _CLAUSE.fullmatch(part)
        name = ":".join(filter(None, clause.group(1, 2))) if clause else ""
        found.append((name, clause[3] if clause else part))
    return found


def what(x_name: str) -> str:
    """Return the name of an axis in words, such as `latency on pi5`."""
    kind, _, device = x_name.partition(":")
    kind = "MACs" if kind == MACS else kind
    return f"{kind} on {device}" if device else kind


def budget_words(budget: str, limits: Mapping[str, float] = _NONE) -> str:
    """Return a budget as words of a sentence: `latency 25ms` becomes `latency up to 25 ms`.

    `limits`: what shares of the largest come to.
    """
    return listed([_bound(name, amount, limits) for name, amount in _clauses(budget)])


def _bound(name: str, amount: str, limits: Mapping[str, float]) -> str:
    """Return one quantity of a budget in words."""
    if not name:
        return amount
    low, dots, high = re.sub(r"(?<=\d)(?=[A-Za-z%/])", SPACE, amount).partition("..")
    if not dots and name.partition(":")[0] not in MORE_IS_BETTER:
        low, high = "", low
    if low and high:
        bound = f"from {low} to {high}"
    else:
        bound = f"of at least {low}" if low else f"up to {high}"
    if "%" in amount:
        bound += " of the largest"
        bound += f" ({quantity(name, limits[name])})" if name in limits else ""
    return f"{what(name)} {bound}"


def _spot(index: int, choice: Choice, x_name: str) -> Spot:
    cost = choice.costs.get(x_name, 0.0)
    x = choice.predicted.get(x_name) or Estimate(mean=cost, low=cost, high=cost)
    return Spot(index=index, digest=choice.digest, x=x, y=choice.predicted[ACCURACY])


def _delivered(
    verified: Sequence[Verified], promised: Mapping[tuple[str, str], Spot], x_name: str
) -> tuple[Delivered, ...]:
    found: dict[tuple[str, str], Delivered] = {}
    for entry in verified:
        if x_name in entry.measured and ACCURACY in entry.measured:
            found[key_of(entry)] = Delivered(
                digest=entry.digest,
                x=entry.measured[x_name],
                y=entry.measured[ACCURACY],
                spot=promised.get(key_of(entry)),
            )
    return tuple(found.values())
