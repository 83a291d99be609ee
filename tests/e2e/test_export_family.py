"""`hwnas export --family`: a member per budget, chosen by latency, bound by hashes."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hwnas.cli.main import hwnas, main
from hwnas.errors import GateError
from hwnas.export import choose_member
from hwnas.export.family import FAMILY_FILE, read_family, verify_family
from hwnas.pipeline import families
from hwnas.pipeline.exporting import Wish
from hwnas.pipeline.fronts import Answer, Choice, Estimate, Front, write_front
from hwnas.pipeline.rundir import Run, open_run, space_of
from hwnas.supernet.card import read_card
from hwnas.testing.runs import small_run

QUIET = Wish(measured=False, images=50)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    code = main(["export", *map(str, arguments)])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return code, errors


def exported(*arguments: object) -> dict:
    done = CliRunner().invoke(hwnas, ["export", *map(str, arguments), "--json", "--quiet"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


def searched(trained: Path, folder: Path, *, answered: bool = True) -> Run:
    """Return a copy of the run with a front of four, and answers to two budgets."""
    shutil.copytree(trained, folder)
    run = open_run(folder)
    of = space_of(run)
    archs = [of.smallest(), *of.sample(2, np.random.default_rng(0)), of.largest()]
    choices = tuple(
        Choice(
            digest=arch.digest, genes=dict(arch), costs={},
            predicted={"latency": Estimate(mean=place + 1.0, low=0.5, high=9.0)},
        )
        for place, arch in enumerate(archs)
    )  # fmt: skip
    answers = tuple(
        Answer(budget=budget, recommended=index if answered else None, knee=None, reason="",
               feasible=1, listed=(index,))
        for budget, index in (("latency 5ms", 0), ("latency 10ms", 3), ("latency 20ms", 3))
    )  # fmt: skip
    write_front(run, Front(
        space=run.space, options=run.options, choices=choices, answers=answers, provenance={},
        created="",
    ))  # fmt: skip
    return run


def test_a_family_has_a_member_per_budget(trained: Path, tmp_path: Path) -> None:
    run = searched(trained, tmp_path / "run")
    pack = families.export_family(run, wish=QUIET)
    assert pack.folder == run.folder / "artifacts" / "family"
    assert len(pack.family.members) == 2
    small, large = pack.family.members
    assert pack.family.budgets == {
        "latency 5ms": small.file, "latency 10ms": large.file, "latency 20ms": large.file,
    }  # fmt: skip
    assert (small.latency_ms, large.latency_ms, large.measured) == (1.0, 4.0, False)
    assert small.promised["latency"]["mean"] == 1.0
    assert choose_member(pack.folder, latency_ms=1.5) == small
    assert verify_family(pack.folder) == read_family(pack.folder / FAMILY_FILE)
    (pack.folder / large.file).write_bytes(b"x")
    with pytest.raises(GateError, match=r"model\.onnx was changed"):
        verify_family(pack.folder)


def test_accuracies_are_of_all_images_that_the_networks_were_measured_on(
    trained: Path, tmp_path: Path
) -> None:
    run = searched(trained, tmp_path / "run")
    wish = replace(QUIET, images=10)
    for member in families.export_family(run, wish=wish).family.members:
        known = read_card(run.folder / "subnets" / member.digest[:12]).accuracy
        assert known is not None
        assert known.images > 10
        assert member.precision == "fp32"  # which answers as the network does
        assert member.accuracy == pytest.approx(known.value)


def test_members_can_be_spread_over_the_front(trained: Path, tmp_path: Path) -> None:
    run = searched(trained, tmp_path / "run")
    told = exported("--run", run.folder, "--members", 3, "--no-speed", "--images", 20)
    assert [member["latency_ms"] for member in told["members"]] == [1.0, 3.0, 4.0]
    assert told["budgets"] == {}


def test_a_search_without_answers_makes_no_family(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = searched(trained, tmp_path / "run", answered=False)
    code, errors = refused(capsys, "--run", run.folder, "--family")
    assert code == 2
    assert "recommends nothing" in errors
    code, errors = refused(capsys, "--run", run.folder, "--members", 9)
    assert code == 2
    assert "the front has 4 choices" in errors
    assert not (run.folder / "artifacts").exists()
