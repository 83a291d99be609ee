"""The wheel, built through the sdist without network: its content, and how it does alone."""

import os
import subprocess
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

LINKED = ("predictors", "export")


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment with the wheel and its declared requirements only."""
    folder = tmp_path_factory.mktemp("alone")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (metadata,) = packages.glob("hwnas-*.dist-info")
    for needed in requirements(PathDistribution(metadata)):
        for top in {file.parts[0] for file in needed.files or () if file.parts[0] != ".."}:
            target = packages / top
            if not target.exists():
                target.symlink_to(Path(str(needed.locate_file(top))))
    return folder / "bin" / "python"


def requirements(of: Distribution) -> Iterator[Distribution]:
    """Yield what a distribution requires without extras, and what that requires."""
    for line in of.requires or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        needed = distribution(requirement.name)
        yield needed
        yield from requirements(needed)


def run(command: list[str], *, cwd: Path) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=clean, check=False, timeout=1800
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child


def test_wheel_holds_exactly_the_tracked_modules(
    root: Path, tracked: list[Path], wheel: Path
) -> None:
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]
    packaged = ["*.py", *settings["package-data"]["*"]]
    expected = set()
    for path in tracked:
        if any(fnmatch(path.name, pattern) for pattern in packaged) and path.parts[0] in {
            "hwnas",
            *LINKED,
        }:
            inside = path if path.parts[0] == "hwnas" else "hwnas" / path
            expected.add(inside.as_posix())
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if ".dist-info/" not in name} == expected
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_wheel_alone_runs_the_light_commands(alone: Path, tmp_path: Path) -> None:
    assert "space" in run([str(alone), "-m", "hwnas", "--help"], cwd=tmp_path).stdout
    listed = run([str(alone), "-m", "hwnas", "space", "list"], cwd=tmp_path).stdout
    assert "189.79M..1881.71M" in listed
    sampled = run([str(alone), "-m", "hwnas", "space", "sample", "nano"], cwd=tmp_path)
    assert sampled.stderr == ""
    doctor = run([str(alone), "-m", "hwnas", "doctor"], cwd=tmp_path).stdout
    assert "get it: pip install 'hwnas[all]'" in doctor
    assert "no torch" in doctor


def test_wheel_alone_imports_the_linked_packages(alone: Path, tmp_path: Path) -> None:
    code = "import hwnas; hwnas.predictors; hwnas.export; print(hwnas.__file__)"
    where = run([str(alone), "-c", code], cwd=tmp_path).stdout
    assert "site-packages" in where


def test_wheel_alone_names_what_a_verb_lacks(alone: Path, tmp_path: Path) -> None:
    child = subprocess.run(
        [str(alone), "-m", "hwnas", "import", "nasvit", "file.pth", "--out", "run"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 1
    assert child.stderr == (
        "error: `hwnas import` needs torch, which is not installed\n"
        "hint: pip install 'hwnas[all]'\n"
    )
