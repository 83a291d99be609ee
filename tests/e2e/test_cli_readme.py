"""The commands in the README print what it says, and its Python runs.

`python tests/e2e/test_cli_readme.py` writes what they print now into it.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (hwnas .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)


def blocks(language: str) -> list[str]:
    return [body for kind, body in BLOCK.findall(README.read_text()) if kind == language]


EXAMPLES = [example for block in blocks("console") for example in COMMAND.findall(block)]


def test_the_first_screen_has_the_two_commands() -> None:
    screen = README.read_text().splitlines()[:20]
    assert {line.split("#")[0].strip() for line in screen} >= {"make demo", "make test"}


@pytest.mark.parametrize(("command", "printed"), EXAMPLES, ids=[c for c, _ in EXAMPLES])
def test_commands_print_what_the_readme_says(
    hwnas: Callable[..., CompletedProcess[str]], command: str, printed: str
) -> None:
    child = hwnas(*shlex.split(command)[1:])
    assert (child.returncode, child.stderr) == (0, "")
    assert printed.rstrip("\n") == child.stdout.rstrip("\n")


def test_every_console_line_is_checked() -> None:
    lines = [line for block in blocks("console") for line in block.splitlines()]
    assert [line[2:] for line in lines if line.startswith("$ ")] == [c for c, _ in EXAMPLES]
    assert EXAMPLES


@pytest.mark.parametrize("code", blocks("python"))
def test_python_runs(code: str, tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize("example", ["cut_a_subnet.py"])
def test_examples_run(root: Path, tmp_path: Path, example: str) -> None:
    child = subprocess.run(
        [sys.executable, str(root / "examples" / example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert "same bits" in child.stdout


def rewrite() -> None:
    """Put the present output of each command into the README."""

    def printing(command: str) -> str:
        arguments = [sys.executable, "-m", *shlex.split(command)]
        printed = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
        return f"$ {command}\n{printed.rstrip()}\n"

    def rewritten(match: re.Match[str]) -> str:
        if match[1] != "console":
            return match[0]
        body = "\n".join(printing(command) for command, _ in COMMAND.findall(match[2]))
        return f"```console\n{body}```"

    README.write_text(BLOCK.sub(rewritten, README.read_text()))


if __name__ == "__main__":
    rewrite()
