"""The tree: its folders, its links, and the sizes of what is in it."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDERS = {
    ".ci", "benchmarks", "docs", "examples", "export", "hwnas", "predictors", "profiles", "tests",
}  # fmt: skip
FILES = {
    ".gitignore", "LICENSE", "Makefile", "README.md", "constraints.txt", "pyproject.toml",
}  # fmt: skip
LONGEST_FILE, LONGEST_FUNCTION = 400, 50
# The function that declares a space is a table of its choices; splitting it would hide them.
DECLARATIONS = Path("hwnas/spaces/catalog")
# In pieces, so that this file does not contain what it forbids.
FORBIDDEN = {
    "registry host": r"py" r"pi\.org|python" r"hosted|download\.py" r"torch",
    "absolute path of a machine": r"(?<![\w.])/(?:wo" r"rk|ro" r"ot|ho" r"me|Us" r"ers)/\w",
    "mark of unfinished work": r"\b(?:TO" r"DO|FIX" r"ME|XX" r"X)\b",
}


def source_files(tracked: list[Path]) -> list[Path]:
    return [path for path in tracked if path.suffix == ".py"]


def test_top_level_holds_what_the_design_names(tracked: list[Path]) -> None:
    folders = {path.parts[0] for path in tracked if len(path.parts) > 1}
    assert folders <= FOLDERS
    assert {str(path) for path in tracked if len(path.parts) == 1} == FILES


@pytest.mark.parametrize("name", ["predictors", "export"])
def test_linked_packages_live_at_the_top(root: Path, name: str) -> None:
    link = root / "hwnas" / name
    target = os.readlink(link) if link.is_symlink() else link.read_text()
    assert target == f"../{name}"
    assert (root / name / "__init__.py").is_file()


@pytest.mark.parametrize("name", ["predictors", "export"])
def test_linked_packages_refuse_their_bare_name(root: Path, name: str) -> None:
    child = subprocess.run(
        [sys.executable, "-c", f"import {name}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 1
    assert f"ImportError: import hwnas.{name} instead of {name}" in child.stderr


def test_files_are_short(root: Path, tracked: list[Path]) -> None:
    lengths = {path: len((root / path).read_text().splitlines()) for path in source_files(tracked)}
    assert {str(path): n for path, n in lengths.items() if n > LONGEST_FILE} == {}


def test_functions_are_short(root: Path, tracked: list[Path]) -> None:
    too_long = {}
    for path in source_files(tracked):
        if path.parent == DECLARATIONS:
            continue
        for node in ast.walk(ast.parse((root / path).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    too_long[f"{path}:{node.name}"] = length
    assert too_long == {}


def test_packages_say_what_they_are(root: Path, tracked: list[Path]) -> None:
    packages = {path.parent for path in source_files(tracked) if path.parts[0] == "hwnas"}
    for package in packages:
        assert ast.get_docstring(ast.parse((root / package / "__init__.py").read_text())), package


@pytest.mark.parametrize("kind", FORBIDDEN)
def test_no_tracked_file_contains(root: Path, tracked: list[Path], kind: str) -> None:
    pattern = re.compile(FORBIDDEN[kind])
    found = []
    for path in tracked:
        if (root / path).is_symlink():
            continue
        content = (root / path).read_bytes()
        if b"\0" in content:
            continue
        for number, line in enumerate(content.decode().splitlines(), start=1):
            if pattern.search(line):
                found.append(f"{path}:{number}: {line.strip()[:80]}")
    assert found == []


def test_no_test_is_skipped(root: Path, tracked: list[Path]) -> None:
    pattern = re.compile(
        r"\b(?:xf" r"ail|sk" r"ipif|importor" r"skip)\b|pytest\.(?:mark\.)?sk" r"ip\b"
    )
    tests = [path for path in source_files(tracked) if path.parts[0] == "tests"]
    assert [str(path) for path in tests if pattern.search((root / path).read_text())] == []
