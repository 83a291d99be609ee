"""Starting up: what `import hwnas` and `hwnas --help` load and cost."""

import json
import resource
import subprocess
import sys
from pathlib import Path

import click
import pytest

import hwnas
from hwnas.cli.main import hwnas as command_line
from hwnas.cli.verbs import VERBS

HEAVY = {"torch", "sklearn", "onnxruntime", "pymoo", "timm", "scipy", "numpy", "pydantic"}
HELP_CPU_S = 0.25


def loaded_by(root: Path, code: str) -> set[str]:
    report = "import json, sys; print(json.dumps([*sys.modules]), file=sys.stderr)"
    child = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(child.stderr)}


@pytest.mark.parametrize("arguments", [["--help"], ["--version"]])
def test_help_loads_nothing_heavy(root: Path, arguments: list[str]) -> None:
    code = f"from hwnas.cli.main import main\nassert main({arguments}) == 0"
    assert loaded_by(root, code) & HEAVY == set()


def test_help_imports_no_verb() -> None:
    code = (
        "import sys\nfrom hwnas.cli.main import main\nmain(['--help'])\n"
        "from hwnas.cli.verbs import VERBS\n"
        "assert not {verb.target.partition(':')[0] for verb in VERBS.values()} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_training_loads_no_compiler(root: Path) -> None:
    """torch's compiler takes 140 MB and seconds; its optimiser classes would load it."""
    code = """
import torch, hwnas
from hwnas.supernet import Supernet
from hwnas.training.flat import FlatParameters
from hwnas.training.optimise import make_optimiser
supernet = Supernet(hwnas.space("nano")).train()
flat = FlatParameters(supernet, decays=lambda name, tensor: True)
optimiser = make_optimiser(
    "adamw", flat, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8, momentum=0.0
)
flat.attach(0)
supernet(torch.ones(2, 3, 32, 32), supernet.space.smallest()).sum().backward()
optimiser.step(learning_rate=0.1)
"""
    assert loaded_by(root, code) & {"torch", "triton", "sympy"} == {"torch"}


def test_help_is_cheap(root: Path) -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "hwnas", "--help"],
            cwd=root,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    assert min(cpu_seconds() for _ in range(5)) <= HELP_CPU_S


def test_help_lists_every_verb_with_the_help_it_gives_itself() -> None:
    context = click.Context(command_line, info_name="hwnas")
    for name, verb in VERBS.items():
        command = command_line.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=200) == verb.help


def test_import_is_light(root: Path) -> None:
    assert loaded_by(root, "import hwnas") & HEAVY == set()


def test_public_names_are_there() -> None:
    for name in hwnas.__all__:
        assert getattr(hwnas, name) is not None
        assert name in dir(hwnas)
    assert hwnas.space("nano").name == "nano"
    assert hwnas.interop.nasvit.arch_from is not None


def test_unknown_names_are_attribute_errors() -> None:
    assert not hasattr(hwnas, "no_such_thing")
    with pytest.raises(AttributeError, match="_private"):
        hwnas._private
