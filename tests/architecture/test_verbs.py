"""What all verbs have in common: options, help, streams, exit codes, interrupts, a reference."""

import ast
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from hwnas.cli.main import main
from hwnas.cli.reference import COMMON, commands, reference

COMMANDS = dict(commands())
FLAGS = {"as_json": "--json", "quiet": "--quiet", "debug": "--debug"}


@pytest.fixture(params=COMMANDS)
def words(request: pytest.FixtureRequest) -> list[str]:
    """Return the words of a command, without the program's name."""
    return str(request.param).split()[1:]


def test_the_reference_is_that_of_the_commands(root: Path) -> None:
    assert (root / "docs" / "cli.md").read_text() == reference(), "python docs/make_cli.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_have_the_common_options(name: str) -> None:
    command = COMMANDS[name]
    flags = {p.name: p.opts[0] for p in command.params if isinstance(p, click.Option) and p.is_flag}
    assert FLAGS.items() <= flags.items()
    assert command.help
    assert command.help.splitlines()[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in COMMON:
            assert parameter.help, parameter.name
            sentence = re.sub(r"\s*\[default[:,] .*\]$", "", parameter.help or "")
            assert sentence.endswith("."), (parameter.name, parameter.help)


def test_options_of_one_name_are_one_kind() -> None:
    """A flag in one verb that takes a value in another would be typed wrongly."""
    kinds: dict[str, set[bool]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                for option in (*parameter.opts, *parameter.secondary_opts):
                    kinds.setdefault(option, set()).add(parameter.is_flag)
    assert {option for option, found in kinds.items() if len(found) > 1} == set()


def test_an_option_of_several_verbs_is_declared_once(root: Path) -> None:
    declared: dict[str, list[str]] = {}
    for path in sorted((root / "hwnas" / "cli").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "click.option":
                declared.setdefault(ast.unparse(node), []).append(f"{path.name}:{node.lineno}")
    assert len(declared) > 50
    assert {option: places for option, places in declared.items() if len(places) > 1} == {}


def test_help_is_on_stdout(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for flag in ("--help", "-h"):
        assert main([*words, flag]) == 0
        out, err = capsys.readouterr()
        assert out.startswith(f"Usage: hwnas {' '.join(words)}")
        assert err == ""


@pytest.mark.parametrize("more", [["--json"], ["--quiet"], []])
def test_usage_errors_are_alike(
    words: list[str], more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, *more, "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert lines[0].startswith("error: ")
    assert "--no-such-option" in lines[0]
    assert lines[1:] == [f"hint: hwnas {' '.join(words)} --help"]


def test_superfluous_words_are_usage_errors(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = COMMANDS["hwnas " + " ".join(words)]
    if any(parameter.nargs == -1 for parameter in command.params):
        return  # takes any number of words
    assert main([*words, *["no-such-thing"] * 9, "--json"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")


def test_termination_is_interruption() -> None:
    """SIGTERM, which is how a system ends programs, is explained as Ctrl-C is."""
    code = (
        "import sys, time\nimport hwnas.spaces\nfrom hwnas.cli import main\n"
        "def slow(*args, **options):\n    print('started', flush=True); time.sleep(60)\n"
        "hwnas.spaces.space = slow\nsys.exit(main.main(['space', 'show', 'nano']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    time.sleep(0.05)
    os.kill(child.pid, signal.SIGTERM)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted")


def test_json_is_all_that_json_prints(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["space", "list"], ["space", "show", "nano"], ["init", "--list"]):
        assert main([*arguments, "--json"]) == 0
        out, err = capsys.readouterr()
        json.loads(out)
        assert err == ""
