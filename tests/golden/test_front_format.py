"""Fronts stored by earlier versions are read; newer and damaged ones are refused.

`python tests/golden/test_front_format.py` writes the sample of the present version.
"""

import json
from pathlib import Path

import pytest

import hwnas
from hwnas.errors import FormatError, HwnasError
from hwnas.pipeline.fronts import (
    FRONT_SCHEMA,
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    arch_of,
    latest_front,
    read_front,
    read_verified,
    write_front,
)
from hwnas.pipeline.rundir import Run

SAMPLES = Path(__file__).parent / "front"
SPACE = hwnas.space("nano", channels=1)
ACCURACY = Estimate(mean=0.9, low=0.88, high=0.91)
LATENCY = Estimate(mean=2.5, low=2.4, high=2.75)
SETTINGS = {"backend": "onnxruntime", "threads": 1, "batch": 1, "precision": "fp32"}


def sample() -> Front:
    archs = [SPACE.smallest(), SPACE.largest()]
    return Front(
        space="nano",
        options=dict(SPACE.options),
        choices=tuple(
            Choice(
                digest=arch.digest,
                genes=dict(arch),
                predicted={"accuracy": ACCURACY, "latency": LATENCY},
                costs={"macs": 1e6, "params": 2e5, "size": 8e5},
                settings=settings,
                in_range=settings is None,
            )
            for arch, settings in zip(archs, (None, SETTINGS), strict=True)
        ),
        answers=(
            Answer(budget="latency 25ms", recommended=1, knee=0, reason="best", feasible=2,
                   listed=(1, 0)),
            Answer(budget="latency 1ms", recommended=None, knee=None, reason="none", feasible=0),
        ),
        provenance={"engine": "nsga2", "seed": 3},
        created="2025-01-02T03:04:05+00:00",
    )  # fmt: skip


def run_in(folder: Path, space: str = "nano") -> Run:
    return Run(folder=folder, status="complete", space=space, options={}, origin={}, versions={},
               host={})  # fmt: skip


@pytest.mark.parametrize("version", range(1, FRONT_SCHEMA.version + 1))
def test_stored_sample(version: int) -> None:
    assert read_front(SAMPLES / f"v{version}.json") == sample()


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert write_front(run, sample()) == tmp_path / "search" / "front.json"
    assert latest_front(run) == sample()
    assert arch_of(sample(), 1) == SPACE.largest()


def test_a_run_without_a_search_says_how_to_search(tmp_path: Path) -> None:
    with pytest.raises(HwnasError, match="nothing has been searched") as caught:
        latest_front(run_in(tmp_path))
    assert "hwnas search" in caught.value.hint


def test_a_front_of_another_space_is_refused(tmp_path: Path) -> None:
    write_front(run_in(tmp_path), sample())
    with pytest.raises(FormatError, match="is of space 'nano', expected 'nasvit'"):
        latest_front(run_in(tmp_path, "nasvit"))


def no_choices(document):
    del document["choices"]


def no_mean(document):
    del document["choices"][0]["predicted"]["latency"]["mean"]


def word(document):
    document["choices"][0]["costs"]["macs"] = "many"


def other_genes(document):
    document["choices"][0]["genes"]["mb1.width"] = 16


def far_away(document):
    document["answers"][0]["recommended"] = 2


def newer(document):
    document["version"] = FRONT_SCHEMA.version + 1


def foreign(document):
    document["schema"] = "hwnas/run"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (no_choices, "incomplete front"),
        (no_mean, "incomplete front"),
        (word, "'many' is not a finite number"),
        (other_genes, "is not that of its genes"),
        (far_away, "an answer names choice 2; there are 2"),
        (newer, "accepted: up to"),
        (foreign, "expected 'hwnas/front'"),
    ],
)
def test_damage_is_named(tmp_path: Path, spoil, message: str) -> None:
    document = json.loads((SAMPLES / f"v{FRONT_SCHEMA.version}.json").read_text())
    spoil(document)
    path = tmp_path / "front.json"
    path.write_text(json.dumps(document))
    with pytest.raises(FormatError, match="front.json") as caught:
        read_front(path)
    assert message in caught.value.message


def test_verified_is_a_journal_without_repetitions(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    assert read_verified(run) == []
    first, second = (
        Verified(
            digest=digest, budget="latency 25ms", predicted={"latency": LATENCY},
            measured={"latency": 2.6, "accuracy": 0.89}, settings=SETTINGS, met=True,
            device="here", grade="A", step=7,
        )
        for digest in ("a" * 64, "b" * 64)
    )  # fmt: skip
    add_verified(run, [first])
    add_verified(run, [first, second])
    assert read_verified(run) == [first, second]
    path = tmp_path / "search" / "verified.jsonl"
    lines = path.read_text().splitlines()
    assert len(lines) == 3
    path.write_text("\n".join([*lines, '{"digest": "x"}', ""]))
    with pytest.raises(FormatError, match="line 4: not a verification"):
        read_verified(run)
    path.write_text(lines[0].replace('"version":1', '"version":9') + "\n")
    with pytest.raises(FormatError, match="version 9"):
        read_verified(run)


def rewrite() -> None:
    """Write the sample of the present version."""
    path = write_front(run_in(SAMPLES), sample())
    path.replace(SAMPLES / f"v{FRONT_SCHEMA.version}.json")
    path.parent.rmdir()


if __name__ == "__main__":
    rewrite()
