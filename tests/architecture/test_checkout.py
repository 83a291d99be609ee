"""Checkouts in which symbolic links became small text files."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

LINKED = ("predictors", "export")


@pytest.fixture
def without_links(root: Path, tracked: list[Path], tmp_path: Path) -> Path:
    """Return a copy of the tracked packages as git makes it with core.symlinks=false."""
    for path in tracked:
        if path.parts[0] not in {"hwnas", *LINKED}:
            continue
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if (root / path).is_symlink():
            target.write_text(os.readlink(root / path))
        else:
            shutil.copyfile(root / path, target)
    return tmp_path


def run(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("name", LINKED)
def test_linked_packages_import_from_beside(without_links: Path, name: str) -> None:
    child = run(without_links, f"import hwnas.{name}; print(hwnas.{name}.__file__)")
    assert child.returncode == 0, child.stderr
    assert Path(child.stdout.strip()) == without_links / name / "__init__.py"


@pytest.mark.parametrize("name", LINKED)
def test_attributes_of_the_package_reach_them_too(without_links: Path, name: str) -> None:
    child = run(without_links, f"import hwnas; print(hwnas.{name}.__name__)")
    assert child.stdout.strip() == f"hwnas.{name}", child.stderr


@pytest.mark.parametrize("name", LINKED)
def test_a_lost_package_is_explained(without_links: Path, name: str) -> None:
    shutil.rmtree(without_links / name)
    child = run(without_links, "import hwnas")
    assert child.returncode == 1
    last = child.stderr.strip().splitlines()[-1]
    assert last.startswith(f"ImportError: this copy of hwnas has no package {name!r}")
    assert "git clone" in last
