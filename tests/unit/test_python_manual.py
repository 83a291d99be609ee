"""The functions that docs/python.md names are there, take what it shows and return what it says."""

import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from hwnas.cli.verbs import VERBS

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "python.md"
ROW = re.compile(r"^\|([^|]*)\| `([\w.]+)\.(\w+)\(([^)]*)\)` \| `([^`]+)` \|$", re.MULTILINE)
ROWS = ROW.findall(MANUAL.read_text())
WITHOUT = {"show", "completion"}  # what they do is printing


def mistakes(module: str, name: str, arguments: str, returned: str) -> list[str]:
    function: Any = getattr(import_module(module), name)
    signature = inspect.signature(function)
    annotation = str(signature.return_annotation)
    types = re.findall(r"\w+", returned)
    return [
        *(f"no argument {word}" for word in filter(None, arguments.split(", "))
          if word not in signature.parameters),
        *(f"returns {annotation}" for word in types if word not in annotation),
    ]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[1]}.{row[2]}")
def test_a_function_is_as_it_is_shown(row: tuple[str, str, str, str, str]) -> None:
    assert mistakes(*row[1:]) == []


def test_every_verb_is_in_the_table() -> None:
    lines = [line for line in MANUAL.read_text().splitlines() if line.startswith("|")]
    assert len(ROWS) == len(lines) - 2
    said = {verb.strip(" `").split(" ")[0] for verb, *_ in ROWS}
    assert set(VERBS) - said == WITHOUT


def test_what_is_not_so_is_noticed() -> None:
    found = mistakes("hwnas.spaces", "space", "name, nosuch", "Arch")
    assert [line.split(" ")[0] for line in found] == ["no", "returns"]
