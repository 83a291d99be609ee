"""The first sections of the page: what to take, and the front it was taken from."""

from collections.abc import Sequence

from hwnas.export.validate_accuracy import wilson
from hwnas.pipeline.fronts import Answer, Choice, Front, Verified, device_of, key_of, last_of
from hwnas.pipeline.significance import too_few_hold
from hwnas.report import known
from hwnas.report.baselines import RANDOM, UNIFORM, Baseline, baselines_for
from hwnas.report.blocks import (
    Block,
    Card,
    Cards,
    Figure,
    Panel,
    Paragraph,
    Section,
    Table,
    figure,
)
from hwnas.report.choices import export_command, facts_of, measured_of, notes_of
from hwnas.report.frontfigure import front_figure
from hwnas.report.gather import Material
from hwnas.report.view import ACCURACY, MACS, View, axes_of, budget_words, view_of, what
from hwnas.report.words import (
    DASH,
    MINUS,
    every,
    interval,
    listed,
    plural,
    quantity,
    short,
)

RECOMMENDATION, FRONT = "recommendation", "front"
_MOST_COMPARED = 3
_EQUAL = 0.0005  # of accuracy: what no evaluation can tell apart
_AS_GOOD = "±0"


def recommendation(material: Material) -> Section:
    """Return what the run recommends, one card for each budget."""
    title = "Recommendation"
    front = material.front
    if front is None:
        return Section(
            anchor=RECOMMENDATION,
            title=title,
            missing="Nothing has been searched yet.",
            command=f"hwnas search --run {material.run.typed} --latency 25ms",
        )
    alike: dict[int, list[Answer]] = {}
    for answer in front.answers:
        if answer.recommended is not None:
            alike.setdefault(answer.recommended, []).append(answer)
    blocks: list[Block] = []
    if alike:
        cards = tuple(_card(material, front, index, found) for index, found in alike.items())
        blocks.append(Cards(cards=cards))
        blocks += _counted(material, front)
    blocks += [Paragraph(text=_nothing(answer)) for answer in front.answers if _empty(answer)]
    return Section(anchor=RECOMMENDATION, title=title, blocks=tuple(blocks))


def _counted(material: Material, front: Front) -> list[Block]:
    """Return what accuracies on so many images are worth."""
    if not material.heldout_images or ACCURACY not in front.choices[0].predicted:
        return []
    known = measured_of(material.verified)
    best = max(
        known.get(key_of(choice), {}).get(ACCURACY, choice.predicted[ACCURACY].mean)
        for choice in _best(front)
    )
    number = material.heldout_images
    low, high = wilson(round(best * number), number)
    text = (
        f"Accuracies are shares of {plural(number, 'held-out image')}, on which the subnets were "
        f"chosen, too: {quantity(ACCURACY, best)} of so many means "
        f"{interval(ACCURACY, low, high)} on others like them (95\u00a0% interval)."
    )
    return [Paragraph(text=text, look="small")]


def headline(front: Front | None, verified: Sequence[Verified] = ()) -> str:
    """Return what a front recommends in a line, as measured where all of that is measured.

    Empty where it recommends nothing.
    """
    names = axes_of(front) if front is not None else []
    if front is None or not names:
        return ""
    best = _best(front)
    if not best:
        return ""
    known = measured_of(verified)
    if is_measured(front, verified):
        found = [known[key_of(choice)] for choice in best]
    else:
        found = [
            {name: said.mean for name, said in choice.predicted.items()} | dict(choice.costs)
            for choice in best
        ]
    where = "" if names[0] == MACS else f" in {_span(names[0], [one[names[0]] for one in found])}"
    return f"{_span(ACCURACY, [one[ACCURACY] for one in found])} accuracy{where}"


def is_measured(front: Front, verified: Sequence[Verified]) -> bool:
    """Return whether accuracy and latency of all that a front recommends were measured."""
    known, names = measured_of(verified), (ACCURACY, *axes_of(front)[:1])
    best = _best(front)
    return bool(best) and all(name in known.get(key_of(c), {}) for c in best for name in names)


def device_shown(material: Material, front: Front) -> str:
    """Return the device whose latency the headline tells, empty where it tells none."""
    latency = next((name for name in axes_of(front) if name != MACS), None)
    if latency is None:
        return ""
    device = device_of(front, latency)
    if device is not None:
        return device
    # Older fronts do not say for which device they are.
    measured = [entry.device for entry in material.verified]
    profiled = [profile.header.device.name for _, profile in material.profiles]
    return listed(list(dict.fromkeys(measured or profiled)))


def _best(front: Front) -> list[Choice]:
    return [front.choices[a.recommended] for a in front.answers if a.recommended is not None]


def _span(name: str, values: Sequence[float]) -> str:
    return interval(name, min(values), max(values))


def front_section(material: Material) -> tuple[Section, list[int]]:
    """Return the section of the front, and the indices of the choices that it shows."""
    title, front = "Accuracy against latency", material.front
    if front is None or not front.choices:
        return Section(
            anchor=FRONT,
            title="The front",
            missing="There is no front of accuracy and latency yet.",
            command=f"hwnas search --run {material.run.typed} --latency 25ms",
        ), []
    blocks: list[Block] = []
    shown: dict[int, None] = {}
    names = axes_of(front)
    for name in names:
        baselines = baselines_for(material.run, material.space, front, name)
        view = view_of(material, front, name, baselines)
        shown |= dict.fromkeys(spot.index for spot in view.spots)
        blocks.append(Paragraph(text=_sentences(view, front)))
        if view.landmarks:
            blocks.append(Paragraph(text=known.sentence(view)))
        blocks.append(_figure(view))
        if name == names[0]:
            blocks.append(Panel())
        if view.landmarks:
            blocks.append(known.table(view))
    if names:
        title = f"Accuracy against {what(names[0]).partition(' on ')[0]}"
    else:
        shown = dict.fromkeys(range(min(len(front.choices), 300)))
        title = "The front"
        blocks.append(Panel())
    blocks.append(_table(front, list(shown)))
    return Section(anchor=FRONT, title=title, blocks=tuple(blocks)), list(shown)


def _card(material: Material, front: Front, index: int, answers: Sequence[Answer]) -> Card:
    """Return the card of a choice that is recommended for one budget or several."""
    choice = front.choices[index]
    entries = [entry for entry in material.verified if key_of(entry) == key_of(choice)]
    measured = measured_of(entries).get(key_of(choice), {})
    words = listed([budget_words(answer.budget, answer.limits) for answer in answers])
    several = "Nothing better was found for the larger budget" if len(answers) > 1 else ""
    sentences = [_sentence(answers[-1].reason), _sentence(several), _proof(entries)]
    mine = {answer.budget for answer in answers}
    broken = [entry for entry in last_of(entries) if entry.budget in mine and not entry.met]
    return Card(
        title=f"For {words}" if words else "Without a budget",
        name=short(choice.digest),
        facts=facts_of(choice, measured),
        text=" ".join(filter(None, [*sentences, *notes_of(choice)])),
        warning="Over its budget when measured." if broken else "",
        command=export_command(material.run, choice),
        index=index,
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "." if text else ""


def _empty(answer: Answer) -> bool:
    return answer.recommended is None


def _nothing(answer: Answer) -> str:
    words = budget_words(answer.budget, answer.limits) or "this search"
    return f"For {words} nothing is recommended: {answer.reason or 'no subnet keeps it'}."


def _proof(entries: Sequence[Verified]) -> str:
    if not entries:
        return "Not measured yet: all values are predictions."
    return f"Built and measured on {entries[-1].device}."


def _sentences(view: View, front: Front) -> str:
    spots = view.on_front
    first, last = spots[0], spots[-1]
    name = view.x_name
    ends = [
        f"{quantity(ACCURACY, spot.y.mean)} at {quantity(name, spot.x.mean)}"
        for spot in (first, last)
    ]
    span = ends[0] if ends[0] == ends[1] else f"from {ends[0]} to {ends[1]}"
    text = f"{plural(len(front.choices), 'subnet')}, {span}, as predicted. "
    if view.recommended:
        text += _against(view)
    if view.delivered:
        text += f"Diamonds are {plural(len(view.delivered), 'subnet')} built and measured. "
        text += _missed(view)
    if view.left_out:
        text += f"{plural(view.left_out, 'subnet')} in between are not drawn. "
    return text.strip()


def _missed(view: View) -> str:
    """Return that too few of the measured points lie in their intervals, if that is no chance."""
    pairs = [(found, found.spot) for found in view.delivered if found.spot is not None]
    inside = {
        ACCURACY: sum(spot.y.low <= found.y <= spot.y.high for found, spot in pairs),
        what(view.x_name): sum(spot.x.low <= found.x <= spot.x.high for found, spot in pairs),
    }
    worse = [
        f"the {name} of {kept or 'none'}"
        for name, kept in inside.items()
        if too_few_hold(kept, len(pairs))
    ]
    if not worse:
        return ""
    return (
        f"Of the {len(pairs)} that were predicted, {listed(worse)} came out in the 90\u00a0% "
        "interval: go by what was measured, not by the front. "
    )


def _against(view: View) -> str:
    """Return how far the recommended choices are above what is simpler, at their own cost."""
    best = {spot.index: spot for _, spot in view.recommended}
    spots = sorted(list(best.values())[:_MOST_COMPARED], key=lambda spot: spot.x.mean)
    places = listed([quantity(view.x_name, spot.x.mean) for spot in spots])
    found = []
    for baseline in view.baselines:
        reached = [baseline.best_within(spot.x.mean) for spot in spots]
        gains = [
            _gain(spot.y.mean - value)
            for spot, value in zip(spots, reached, strict=True)
            if value is not None
        ]
        if len(gains) == len(spots):
            unit = "points " if any(gain != _AS_GOOD for gain in gains) else ""
            found.append(f"{listed(gains)} {unit}against {_compared(baseline)}")
    if not found:
        return ""
    subnets = "subnet" if len(spots) == 1 else "subnets"
    return f"Predicted accuracy of the {subnets} recommended at {places}: {'; '.join(found)}. "


def _gain(gain: float) -> str:
    if abs(gain) < _EQUAL:
        return _AS_GOOD
    return f"{'+' if gain > 0 else MINUS}{abs(100 * gain):.1f}"


def _compared(baseline: Baseline) -> str:
    return {
        UNIFORM: "scaling all choices uniformly",
        RANDOM: f"the best of {baseline.tried:,} random subnets",
    }[baseline.name]


def _figure(view: View) -> Figure:
    legend = [("choice", "predicted, with 90 % intervals")]
    if view.recommended:
        legend.append(("choice best", "recommended"))
    if view.delivered:
        legend.append(("measured", "measured"))
    if view.limits:
        legend.append(("budget", "budget"))
    if view.baselines:
        legend += [("uniform-mark", UNIFORM), ("random-line", RANDOM)]
    if known.drawn(view):
        legend.append(("landmark", "other networks, same training"))
    return figure(
        lambda width: front_figure(view, width),
        "Hover or use the arrow keys to see a subnet; click or press Enter to pick it.",
        legend=tuple(legend),
        look="front-figure",
    )


def _table(front: Front, shown: list[int]) -> Table:
    names = [fact.name for fact in facts_of(front.choices[0])]
    rows = []
    for index in shown:
        choice = front.choices[index]
        cells = [short(choice.digest)]
        for name, estimate in choice.predicted.items():
            ends = interval(name, estimate.low, estimate.high)
            cells.append(f"{quantity(name, estimate.mean)} ({ends})")
        cells += [quantity(name, value) for name, value in choice.costs.items()]
        rows.append(tuple(cells))
    return Table(
        header=("subnet", *names),
        rows=tuple(rows),
        caption=f"Predicted values with 90 % intervals (low{DASH}high).",
        right=frozenset(range(1, len(names) + 1)),
        folded=f"{every(len(rows), 'subnet')} as a table",
        choices=tuple(shown),
    )
