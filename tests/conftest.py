"""What all tests share: the tree, the command line as a child process, one thread each."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before torch is imported: threads of several test processes would fight for the cores.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

ROOT = Path(__file__).resolve().parent.parent

# Shared machines stall for seconds; a deadline would measure the neighbours.
settings.register_profile(
    "hwnas", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("hwnas")

Run = Callable[..., subprocess.CompletedProcess[str]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the slow files, so that no worker has one left when the others are done."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.fixture(scope="session")
def root() -> Path:
    """Return the folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tracked() -> list[Path]:
    """Return the tracked files that exist, relative to the root; links are files here."""
    command = ["git", "-c", "safe.directory=*", "-C", str(ROOT), "ls-files", "-z"]
    if (ROOT / ".git").exists():
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode()
        paths = [Path(name) for name in listed.split("\0") if name]
    else:  # an unpacked archive
        paths = [path.relative_to(ROOT) for path in ROOT.rglob("*") if not path.is_dir()]
        paths = [path for path in paths if not _is_generated(path)]
    return sorted(path for path in paths if (ROOT / path).is_symlink() or (ROOT / path).exists())


@pytest.fixture(scope="session")
def wheel(root: Path, tracked: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that pip makes of the sdist of the tracked files, without network."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for path in tracked:  # a copy, so that building leaves nothing in the checkout
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, source / path, follow_symlinks=False)
    build = f"from setuptools import build_meta; build_meta.build_sdist({str(folder)!r})"
    _run_alone([sys.executable, "-c", build], cwd=source)
    (sdist,) = folder.glob("*.tar.gz")
    _run_alone(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-index", "--wheel-dir", str(folder), str(sdist)],
        cwd=folder,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


def _run_alone(command: list[str], *, cwd: Path) -> None:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, env=clean, check=False, timeout=1800
    )
    assert child.returncode == 0, child.stdout + child.stderr


def _is_generated(path: Path) -> bool:
    return any(
        part in {".venv", "__pycache__", "build", "dist", ".hypothesis"}
        or part.endswith(("_cache", ".egg-info"))
        for part in path.parts
    )


@pytest.fixture(scope="session")
def hwnas(root: Path) -> Run:
    """Return a function that runs the command line in a child process."""

    def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hwnas", *arguments],
            capture_output=True,
            text=True,
            check=False,
            cwd=cwd or root,
            timeout=1800,  # a hang; what loud neighbours slow down is none
        )

    return run
