"""The rules that tools check: imports in one direction, annotations, docstrings, complexity."""

import subprocess
import sys
from pathlib import Path


def _run(root: Path, *command: str) -> subprocess.CompletedProcess[str]:
    tool = Path(sys.executable).with_name(command[0])
    return subprocess.run(
        [str(tool), *command[1:]], cwd=root, capture_output=True, text=True, check=False
    )


def test_packages_import_in_one_direction(root: Path) -> None:
    child = _run(root, "lint-imports", "--no-cache")
    assert child.returncode == 0, child.stdout + child.stderr


def test_sources_keep_the_rules_of_ruff(root: Path, tracked: list[Path]) -> None:
    sources = [str(path) for path in tracked if path.suffix == ".py"]
    child = _run(root, "ruff", "check", "--no-cache", *sources)
    assert child.returncode == 0, child.stdout


def test_ruff_checks_what_the_rules_demand(root: Path, tmp_path: Path) -> None:
    branches = "".join(f"    if value == {n}:\n        return {n}\n" for n in range(11))
    source = f"import predictors\n\n\ndef public(value):\n{branches}    return predictors\n"
    (tmp_path / "sample.py").write_text(source)
    child = _run(
        root, "ruff", "check", "--no-cache", "--config", "pyproject.toml", "--output-format",
        "concise", str(tmp_path / "sample.py"),
    )  # fmt: skip
    for rule in ("D100", "D103", "ANN001", "ANN201", "C901", "TID251"):
        assert f" {rule} " in child.stdout, rule
