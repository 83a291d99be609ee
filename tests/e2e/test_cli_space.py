"""`hwnas space ...` as a child process."""

import json
from collections.abc import Callable
from subprocess import CompletedProcess
from textwrap import fill

import pytest

from hwnas.spaces import CONVENTION, SPACES, space

PRINTED = fill(CONVENTION, 78)
Run = Callable[..., CompletedProcess[str]]


def test_list_names_every_space_and_the_convention(hwnas: Run) -> None:
    child = hwnas("space", "list")
    assert (child.returncode, child.stderr) == (0, "")
    lines = child.stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : 1 + len(SPACES)]] == list(SPACES)
    assert child.stdout.endswith(f"\n{PRINTED}\n")
    assert "189.79M..1881.71M" in child.stdout


def test_list_as_json(hwnas: Run) -> None:
    document = json.loads(hwnas("space", "list", "--json").stdout)
    assert document["macs_convention"] == CONVENTION
    assert [entry["space"] for entry in document["spaces"]] == list(SPACES)


@pytest.mark.parametrize("name", SPACES)
def test_show_prints_every_choice(hwnas: Run, name: str) -> None:
    child = hwnas("space", "show", name)
    assert (child.returncode, child.stderr) == (0, "")
    of = space(name)
    assert f"{of.count():,} architectures" in child.stdout
    assert PRINTED in child.stdout
    shown = [line.split() for line in child.stdout.splitlines()]
    for gene, values in of.genes.items():
        choice = [gene.rpartition(".")[2], *map(str, values)]
        assert any(line[-len(choice) :] == choice for line in shown), gene
    assert max(map(len, child.stdout.splitlines())) <= 80
    assert "\x1b" not in child.stdout


def test_show_as_json(hwnas: Run) -> None:
    document = json.loads(hwnas("space", "show", "nasvit", "--json").stdout)
    of = space("nasvit")
    assert document["genes"] == {gene: list(values) for gene, values in of.genes.items()}
    assert document["smallest"]["digest"] == of.smallest().digest
    assert round(document["smallest"]["macs"] / 1e6, 2) == 189.79
    assert round(document["largest"]["macs"] / 1e6, 2) == 1881.71
    assert document["input_sides"] == [192, 224, 256, 288]
    assert document["macs_convention"] == CONVENTION


def test_sample_within_a_cost(hwnas: Run) -> None:
    arguments = ("space", "sample", "nasvit", "-n", "5", "--macs", "200M..300M", "--json")
    child = hwnas(*arguments)
    assert (child.returncode, child.stderr) == (0, "")
    entries = json.loads(child.stdout)
    of = space("nasvit")
    assert len(entries) == 5
    for entry in entries:
        arch = of.arch_from_json(entry["arch"])
        costs = of.cost([arch])
        assert entry["digest"] == arch.digest
        assert (entry["macs"], entry["params"]) == (costs.macs[0], costs.params[0])
        assert 200e6 <= entry["macs"] <= 300e6
    assert hwnas(*arguments).stdout == child.stdout
    assert hwnas(*arguments, "--seed", "1").stdout != child.stdout


def test_sample_with_two_bounds(hwnas: Run) -> None:
    child = hwnas(
        "space", "sample", "nano", "--macs", "2M..3M", "--params", "..300k", "-n", "3", "--json"
    )
    for entry in json.loads(child.stdout):
        assert 2e6 <= entry["macs"] <= 3e6
        assert entry["params"] <= 300e3


def test_sample_as_text(hwnas: Run) -> None:
    text = hwnas("space", "sample", "nano", "-n", "2").stdout
    lines = text.splitlines()
    assert lines[0].split() == ["architecture", "MACs", "params", "input"]
    assert len(lines) == 4 + len(PRINTED.splitlines())
    assert text.endswith(f"\n{PRINTED}\n")


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["show", "nasvti"], 2, "error: unknown space 'nasvti'; did you mean nasvit"),
        (["show"], 2, "error: missing argument 'NAME'"),
        (["sample", "nano", "--macs", "200..300M"], 2, "write both, as in 200M..300M"),
        (["sample", "nano", "--macs", "3M..2M"], 2, "empty range"),
        (["sample", "nano", "--macs", "200M..300M"], 3, "found: 807,552..6,672,960"),
        (["sample", "nano", "-n", "0"], 2, "x>=1"),
    ],
)
def test_mistakes(hwnas: Run, arguments: list[str], code: int, told: str) -> None:
    child = hwnas("space", *arguments)
    assert child.returncode == code
    assert child.stdout == ""
    assert told in child.stderr
    lines = child.stderr.splitlines()
    assert lines[0].startswith("error: ")
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert len(lines) <= 2
