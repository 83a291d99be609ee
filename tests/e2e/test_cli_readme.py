"""What the documentation says works: its commands run or at least parse, its Python runs.

A fenced block `console` holds commands after `$ ` with what they print: they are executed, those
of one document in one empty folder in their order, and have to print that; a line `...` stands for
any lines. Commands of hwnas anywhere else (`sh`, no language, in the text) are parsed: verb,
options and values have to exist; test_manuals.py executes those of the manuals, too. `python
tests/e2e/test_cli_readme.py` writes what is printed into the README.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import click
import pytest

from hwnas.cli.main import hwnas as command_line
from hwnas.cli.verbs import VERBS
from hwnas.errors import HwnasError
from hwnas.testing.documents import arguments_in, blocks, mentioned, spans

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
GENERATED = ROOT / "docs" / "cli.md"
DOCUMENTS = [
    README,
    *sorted({*ROOT.glob("docs/**/*.md"), *ROOT.glob("profiles/*.md")} - {GENERATED}),
]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^\$ (hwnas .*)\n((?:(?!\$ ).*\n)*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")
# Programs whose options stand in inline code, too.
OTHERS = (
    "pip", "python", "torchrun", "ray", "apt-get", "docker", "git", "make", "cpupower", "curl",
)  # fmt: skip


def bodies(language: str, document: Path = README) -> list[str]:
    return [block.body for block in blocks(document) if block.language == language]


def examples(document: Path) -> list[tuple[str, str]]:
    return [found for block in bodies("console", document) for found in COMMAND.findall(block)]


def check_parses(arguments: list[str]) -> None:
    """Raise unless verb, options and values exist. Files need not."""
    command: click.Command = command_line
    context = click.Context(command, info_name="hwnas", **command_line.context_settings)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, inner, arguments = command.resolve_command(context, arguments)
        assert inner is not None
        command, context = inner, click.Context(inner, parent=context, info_name=name)
    try:
        values, superfluous, _ = command.make_parser(context).parse_args(list(arguments))
    except click.BadOptionUsage:  # the text may name an option without its value
        values, superfluous, _ = command.make_parser(context).parse_args([*arguments, "VALUE"])
    assert not superfluous, superfluous
    for parameter in command.params:
        if parameter.name in values and not isinstance(parameter.type, click.Path | click.File):
            given = values[parameter.name]
            for value in given if isinstance(given, list) else [given]:
                if isinstance(value, str) and not value.isupper():  # FILE stands for a file
                    parameter.type(value, parameter, context)


def agrees(printed: str, expected: str) -> bool:
    pattern = ".*?".join(re.escape(part) for part in re.split(r"^\.\.\.\n?", expected, flags=re.M))
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def test_the_first_screen_has_the_two_commands() -> None:
    screen = README.read_text().splitlines()[:20]
    assert {line.split("#")[0].strip() for line in screen} >= {"make demo", "make test"}


@pytest.mark.parametrize(
    "document", [d for d in DOCUMENTS if examples(d)], ids=lambda document: document.name
)
def test_commands_print_what_the_documents_say(
    hwnas: Callable[..., CompletedProcess[str]], document: Path, tmp_path: Path
) -> None:
    for command, printed in examples(document):
        child = hwnas(*shlex.split(command)[1:], cwd=tmp_path)
        assert (child.returncode, child.stderr) == (0, ""), command
        assert agrees(child.stdout.strip() + "\n", printed.strip() + "\n"), (command, child.stdout)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_commands_in_documents_exist(document: Path) -> None:
    wrong = []
    for line in mentioned(document):
        try:
            check_parses(arguments_in(line))
        except (click.ClickException, HwnasError, AssertionError) as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def options_of(command: click.Command) -> set[str]:
    found = {name for parameter in command.params for name in parameter.opts}
    found |= {name for parameter in command.params for name in parameter.secondary_opts}
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        found |= options_of(inner)
    return found


def unknown_options(document: Path, known: set[str]) -> list[str]:
    words = [span for span in spans(document) if span.partition(" ")[0] not in OTHERS]
    return [option for span in words for option in OPTION.findall(span) if option not in known]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_options_in_documents_exist(document: Path, tmp_path: Path) -> None:
    context = click.Context(command_line)
    verbs = [command_line.get_command(context, name) for name in VERBS]
    known = {"--help"}.union(*(options_of(verb) for verb in verbs if verb is not None))
    for script in (ROOT / "benchmarks").glob("*.py"):  # documents give their figures
        known |= set(re.findall(r'"(--[a-z0-9-]+)"', script.read_text()))
    assert unknown_options(document, known) == []
    wrong = tmp_path / "wrong.md"
    wrong.write_text("`--no-such-option` and `pip install --upgrade`, `--latency`")
    assert unknown_options(wrong, known) == ["--no-such-option"]


def test_the_readme_mentions_commands() -> None:
    assert examples(README)
    assert list(mentioned(README))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_console_line_is_checked(document: Path) -> None:
    lines = [line for block in bodies("console", document) for line in block.splitlines()]
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    assert commands == [command for command, _ in examples(document)]


@pytest.mark.parametrize(
    "line",
    ["hwnas profile --no-such 3", "hwnas nosuch", "hwnas profiles nosuch x", "hwnas fit a b",
     "hwnas fit -n many", "FOO=1 python -m hwnas space show --bad"],
)  # fmt: skip
def test_what_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises((click.ClickException, HwnasError, AssertionError)):
        check_parses(arguments_in(line))


def test_any_lines_may_be_left_out() -> None:
    assert agrees("a\nb\nc\n", "a\n...\nc\n")
    assert agrees("a\nc\n", "a\n...\nc\n")
    assert not agrees("a\nb\n", "a\n...\nc\n")
    assert not agrees("a\nb\nc\n", "a\nc\n")


@pytest.mark.parametrize("code", bodies("python"))
def test_python_runs(code: str, tmp_path: Path) -> None:
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr


@pytest.mark.parametrize(
    ("example", "said"),
    [("cut_a_subnet.py", "same bits"), ("python_api.py", "accuracy           passed")],
)
def test_examples_run(root: Path, tmp_path: Path, example: str, said: str) -> None:
    child = subprocess.run(
        [sys.executable, str(root / "examples" / example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stdout + child.stderr
    assert said in child.stdout


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
