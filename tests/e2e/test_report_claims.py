"""What the page of a run says follows from what was measured of that front, and only from it."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.pipeline.fronts import (
    VERIFIED_FILE,
    Estimate,
    Front,
    Verified,
    add_verified,
    latest_front,
    read_verified,
    write_front,
)
from hwnas.pipeline.rundir import open_run
from hwnas.profiling.profiles import read_profile, write_profile
from hwnas.report import front, promises
from hwnas.report.blocks import Card, Section
from hwnas.report.gather import Material, gather


def searched(folder: Path, found: Front, verified: list[Verified]) -> Material:
    """Return what a report on a run is made of after a search with this outcome."""
    run = open_run(folder)
    (folder / "search" / VERIFIED_FILE).unlink()
    add_verified(run, verified)
    write_front(run, found)
    return gather(folder)


def before(folder: Path) -> tuple[Front, list[Verified]]:
    run = open_run(folder)
    return latest_front(run), read_verified(run)


def cards(material: Material) -> list[Card]:
    blocks = front.recommendation(material).blocks
    return [card for block in blocks if block.kind == "cards" for card in block.cards]


def said(section: Section) -> str:
    texts = [block.text for block in section.blocks if block.kind == "paragraph"]
    return " ".join([section.missing, *texts]).replace("\u00a0", " ")


def in_two_ways(of: Front) -> tuple[Front, Front]:
    """Return the front of another search, with 4 threads, and that of one that has both ways."""
    faster = tuple(
        replace(
            choice,
            settings={**(choice.settings or {}), "threads": 4},
            predicted={**choice.predicted, "latency": halved(choice.predicted["latency"])},
        )
        for choice in of.choices
    )
    return replace(of, choices=faster), replace(of, choices=(*of.choices, *faster))


def halved(found: Estimate) -> Estimate:
    return Estimate(mean=found.mean / 2, low=found.low / 2, high=found.high / 2)


def test_what_was_measured_another_way_says_nothing_of_a_front(copied: Path) -> None:
    found, verified = before(copied)
    other, _ = in_two_ways(found)
    material = searched(copied, other, verified)
    assert not front.is_measured(other, material.verified)
    for card in cards(material):
        assert "Not measured yet" in card.text
        assert not any(fact.measured for fact in card.facts)
    assert "Diamonds" not in said(front.front_section(material)[0])
    assert "lie in the promised" not in said(promises.section(material))
    shutil.rmtree(copied / "artifacts")
    assert promises.section(gather(copied)).missing


def test_a_subnet_in_two_ways_is_two_choices(copied: Path) -> None:
    found, verified = before(copied)
    _, both = in_two_ways(found)
    again = [
        replace(
            entry,
            settings={**(entry.settings or {}), "threads": 4},
            measured={**entry.measured, "latency": 0.5 * entry.measured["latency"]},
            predicted={**entry.predicted, "latency": halved(entry.predicted["latency"])},
        )
        for entry in verified
    ]
    material = searched(copied, both, [*verified, *again])
    for card, answer in zip(cards(material), both.answers, strict=True):
        choice = both.choices[answer.recommended or 0]
        (latency,) = (fact for fact in card.facts if fact.name == "latency")
        (entry,) = (entry for entry in verified if entry.digest == choice.digest)
        assert float(latency.measured.split()[0]) == pytest.approx(
            entry.measured["latency"], rel=0.01
        )
    text = said(promises.section(material))
    assert f"of {2 * len(verified)} measurements lie in the promised" in text
    (table,) = (block for block in promises.section(material).blocks
                if block.kind == "table" and "verified" in block.caption)  # fmt: skip
    assert sum("4\u00a0threads" in row[2] for row in table.rows) == len(again)


@pytest.mark.parametrize(
    ("provenance", "counts"),
    [
        ({}, True),  # an older front
        ({"devices": {"Toy board": []}, "supernet": {"step": 1082}}, True),
        ({"devices": {"pi5": []}}, False),
        ({"supernet": {"step": 2000}}, False),
    ],
)
def test_what_counts_was_measured_there_and_with_these_weights(
    copied: Path, provenance: dict[str, object], counts: bool
) -> None:
    found, verified = before(copied)
    known = searched(copied, replace(found, provenance=provenance), verified).verified
    assert list(known) == (verified if counts else [])


def test_what_was_measured_again_within_the_budget_is(copied: Path) -> None:
    found, verified = before(copied)
    broken = [replace(entry, met=False, grade="D") for entry in verified]
    assert all(card.warning for card in cards(searched(copied, found, broken)))
    kept = [replace(entry, met=True) for entry in verified]
    assert not any(card.warning for card in cards(searched(copied, found, [*broken, *kept])))


def test_all_verifications_count_and_the_last_are_drawn(copied: Path) -> None:
    found, verified = before(copied)
    found = replace(found, choices=found.choices[:50])
    many = [
        replace(
            verified[0], digest=choice.digest, predicted=choice.predicted,
            measured={
                "accuracy": choice.predicted["accuracy"].mean,
                "latency": choice.predicted["latency"].mean * (2 if number < 15 else 1),
            },
        )
        for number, choice in enumerate(found.choices)
    ]  # fmt: skip
    found = replace(found, answers=())
    assert len(many) == 50
    section = promises.section(searched(copied, found, many))
    assert "Latency: 35 of 50 measurements lie in the promised" in said(section)
    figures = [block for block in section.blocks if block.kind == "figure"]
    assert "of the last 40 of 50\u00a0verified subnets" in figures[0].caption
    assert figures[0].wide.count('class="range"') == 40
    (table,) = (block for block in section.blocks if block.kind == "table"
                and "verified" in block.caption)  # fmt: skip
    assert len(table.rows) == 50


def test_a_budget_that_another_quantity_broke_is_not_told_as_one_of_the_latency(
    copied: Path,
) -> None:
    found, verified = before(copied)
    broken = [
        replace(entry, budget="latency 99ms, size 1MB", limits={"latency": 99.0, "size": 1e6},
                measured={**entry.measured, "size": 1.1e6}, met=False)
        for entry in verified
    ]  # fmt: skip
    text = said(promises.section(searched(copied, found, broken)))
    assert "None of them took longer than a budget allows" in text
    assert "6 verifications broke a budget though no latency was too long: by size." in text
    late = [replace(entry, limits={"latency": 0.1, "size": 2e6}) for entry in broken]
    text = said(promises.section(searched(copied, found, late)))
    assert "6 of them took longer than a budget allows" in text
    assert "no latency was too long" not in text


def test_the_device_is_the_one_whose_latency_is_told(copied: Path) -> None:
    found, verified = before(copied)
    path = copied / "profiles" / "toy-board.jsonl"
    profile = read_profile(path)
    other = replace(profile.header, device=replace(profile.header.device, name="pi5"))
    write_profile(copied / "profiles" / "pi5.jsonl", replace(profile, header=other))

    def device(of: Front, known: list[Verified]) -> str:
        return front.device_shown(searched(copied, of, known), of)

    assert device(found, verified) == "Toy board"
    assert device(replace(found, provenance={"devices": {"pi5": []}}), []) == "pi5"
    without = [
        replace(choice, predicted={"accuracy": choice.predicted["accuracy"]})
        for choice in found.choices
    ]
    assert device(replace(found, choices=tuple(without)), []) == ""
    nothing = replace(found, answers=(replace(found.answers[0], recommended=None),))
    assert not front.is_measured(nothing, verified)


def test_a_single_choice_is_no_range(copied: Path) -> None:
    found, _ = before(copied)
    answer = replace(found.answers[0], recommended=0, knee=0, listed=(0,))
    material = searched(copied, replace(found, choices=found.choices[:1], answers=(answer,)), [])
    section, _ = front.front_section(material)
    assert re.search(r"\b1 subnet, [\d.]+ % at [\d.]+ ms, as predicted", said(section))
    (table,) = (block for block in section.blocks if block.kind == "table" and block.choices)
    assert table.folded == "The subnet as a table"
