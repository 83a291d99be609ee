"""docs/spaces.md: the space that it declares is sound, and one for all commands once installed."""

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwnas.cli.main import main
from hwnas.pipeline.rundir import load_supernet, open_run
from hwnas.spaces import registry, space, space_names
from hwnas.supernet import load_subnet
from hwnas.testing.documents import blocks, executable

MANUAL = Path(__file__).resolve().parents[2] / "docs" / "spaces.md"
MODULE = "tiny_space"
SHORT = [
    "schedule.epochs=1", "schedule.warmup_epochs=0.1", "evaluation.random_subnets=0",
    "evaluation.calibration_images=64", "data.heldout=1200", "process.threads=1",
]  # fmt: skip


def code(language: str) -> list[str]:
    return [block.body for block in blocks(MANUAL) if block.language == language]


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the package of the manual, as `pip install` would."""
    declared = tomllib.loads(code("toml")[0])
    assert declared["tool"]["setuptools"]["py-modules"] == [MODULE]
    site = tmp_path / "site"
    described = site / "tiny_space-0.1.dist-info"
    described.mkdir(parents=True)
    (site / f"{MODULE}.py").write_text(code("python")[0])
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-space\nVersion: 0.1\n")
    points = declared["project"]["entry-points"][registry.ENTRY_POINTS]
    lines = [f"[{registry.ENTRY_POINTS}]", *(f"{name} = {at}" for name, at in points.items())]
    (described / "entry_points.txt").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(site)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_registered", {})
    registry._installed.cache_clear()
    yield
    registry._installed.cache_clear()
    sys.modules.pop(MODULE, None)


@pytest.mark.usefixtures("installed")
def test_the_space_passes_the_checks_of_the_manual() -> None:
    exec(code("python")[1], {})


@pytest.mark.usefixtures("installed")
def test_commands_train_and_load_a_space_of_a_package() -> None:
    assert space_names()[-1] == "tiny"
    assert MODULE not in sys.modules
    for words in executable(MANUAL):
        short = [part for text in SHORT for part in ("--set", text)] if "train" in words else []
        assert main([*words[1:], *short]) == 0
    of = load_supernet(open_run(Path("runs/tiny"))).space
    assert (of.name, of.options) == ("tiny", {"classes": 10, "channels": 1})
    (subnet,) = Path("runs/tiny/subnets").iterdir()
    assert load_subnet(subnet).description == of.network(of.smallest())
    assert space("tiny", classes=3).options["classes"] == 3
