"""Extracting from a run that goes on, and to where something was done since."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hwnas.errors import UsageError
from hwnas.io import digest_file
from hwnas.pipeline import extracting
from hwnas.pipeline.rundir import Run, load_supernet, save_supernet, space_of
from hwnas.supernet import load_subnet, read_card
from hwnas.supernet.card import write_card
from hwnas.testing.runs import imported_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return imported_run(tmp_path / "run")


def extracted(run: Run) -> extracting.Subnet:
    return extracting.extract(run, extracting.select(run, arch="smallest"))


def train_on(run: Run) -> None:
    """Leave newer weights in the run."""
    weights = load_supernet(run)
    with torch.no_grad():
        for parameter in weights.parameters():
            parameter.mul_(1.01)
    save_supernet(run, weights, step=9)


def test_what_was_done_to_a_subnet_since_is_not_overwritten(run: Run) -> None:
    found = extracted(run)
    train_on(run)
    write_card(found.folder, replace(found.card, training={"how": "fine-tuned", "epochs": 1}))
    with pytest.raises(UsageError, match="was trained after it was cut out"):
        extracted(run)
    write_card(found.folder, found.card)
    (found.folder / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match=r"holds notes\.txt, which is no part of the subnet"):
        extracted(run)
    assert read_card(found.folder) == found.card
    (found.folder / "notes.txt").unlink()
    assert extracted(run).card.supernet["step"] == 9


def test_the_card_names_the_weights_of_a_run_that_goes_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained_meanwhile(path: Path) -> str:
        train_on(run)
        return digest_file(path)

    monkeypatch.setattr(extracting, "digest_file", trained_meanwhile)
    found = extracted(run)
    assert found.card.supernet["step"] == 0
    arch = space_of(run).smallest()
    expected = load_supernet(run, step=0).extract(arch).state_dict()
    for name, tensor in load_subnet(found.folder).state_dict().items():
        assert torch.equal(tensor, expected[name]), name
