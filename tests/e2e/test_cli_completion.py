"""Completion in shells: what is offered, what a real bash makes of it, and what it loads."""

import errno
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import click
import pytest

from hwnas.cli.completing import SHELLS, Known, script
from hwnas.cli.main import hwnas, main
from hwnas.cli.verbs import VERBS, Verb
from hwnas.pipeline.config import recipe_names
from hwnas.spaces import SPACES

Hwnas = Callable[..., CompletedProcess[str]]
Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsysbinary) -> Offered:
    """Return what is offered for a line whose last word is being typed, as "type,value"."""

    def ask(line: str) -> list[str]:
        monkeypatch.setenv("_HWNAS_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        assert main([]) == 0
        out, err = capsysbinary.readouterr()
        assert err == b""
        return out.decode().splitlines()

    return ask


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty folder, which is the present one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plain(*values: str) -> list[str]:
    return [f"plain,{value}" for value in values]


def test_verbs_are_offered(offered: Offered) -> None:
    assert offered("hwnas ") == plain(*VERBS)
    assert offered("hwnas fi") == plain(*(name for name in VERBS if name.startswith("fi")))
    assert offered("hwnas space s") == plain("sample", "show")
    assert offered("hwnas --deb") == plain("--debug")


def test_options_are_offered(offered: Offered) -> None:
    assert offered("hwnas profile --bat") == plain("--batch")
    assert offered("hwnas space sample nano --se") == plain("--seed")


def test_names_of_spaces_and_recipes_are_offered(offered: Offered, folder: Path) -> None:
    assert offered("hwnas space show ") == plain(*SPACES)
    assert offered("hwnas profile --space nas") == plain("nasvit", "nasvit-paper")
    assert offered("hwnas init nano") == plain(*(n for n in recipe_names() if n[:4] == "nano"))
    (folder / "mine.toml").touch()
    (folder / "mine.txt").touch()
    assert offered("hwnas train mi") == plain("mine.toml")
    assert offered("hwnas train ") == plain(*recipe_names(), "mine.toml")


def test_run_folders_are_offered(offered: Offered, folder: Path) -> None:
    assert offered("hwnas fit --run ") == ["dir,"]
    for name in ("here", "runs/a", "runs/b", "runs/no-run", ".hidden"):
        (folder / name).mkdir(parents=True)
        if name != "runs/no-run":
            (folder / name / "run.json").touch()
    assert offered("hwnas fit --run ") == plain("here", "runs/a", "runs/b")
    assert offered("hwnas compare runs/a runs/") == plain("runs/a", "runs/b")
    assert offered("hwnas compare he") == plain("here")


def test_folders_that_may_not_be_read_are_no_runs(
    offered: Offered, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: os.PathLike[str], **options: Any) -> os.stat_result:
        if "closed" in os.fspath(path).split(os.sep)[:-1]:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return stat(path, **options)

    stat = os.stat
    for name in ("closed", "open"):
        (folder / name).mkdir()
        (folder / name / "run.json").touch()
    monkeypatch.setattr(os, "stat", refused)
    assert offered("hwnas report ") == plain("open")


def test_what_is_typed_after_completing_means_the_same(offered: Offered, folder: Path) -> None:
    offered("hwnas train --run ")
    offered("hwnas space show na")
    typed = hwnas.make_context("hwnas", ["train"])
    for verb, *below in (["train"], ["space", "show"]):
        command = hwnas.get_command(typed, verb)
        for name in below:
            assert isinstance(command, click.Group)
            command = command.commands[name]
        assert command is not None
        assert not any(isinstance(parameter.type, Known) for parameter in command.params)


@pytest.mark.parametrize("line", ["hwnas nosuch ", "hwnas probe --", "hwnas space show nano "])
def test_nothing_to_offer_is_no_error(
    offered: Offered, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setitem(VERBS, "probe", Verb(target="x:y", help="", needs=("no_such_package",)))
    assert offered(line) in ([], [""])


def test_completing_loads_little(root: Path) -> None:
    code = (
        "import json, os, sys\nfrom hwnas.cli.main import main\n"
        "for line in ('hwnas tr', 'hwnas train nano', 'hwnas fit --run ', 'hwnas search --la'):\n"
        "    os.environ |= {'_HWNAS_COMPLETE': 'bash_complete', 'COMP_WORDS': line,\n"
        "                   'COMP_CWORD': str(len(line.split(' ')) - 1)}\n"
        "    assert main([]) == 0\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})),"
        " file=sys.stderr)"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    heavy = {"torch", "sklearn", "onnxruntime", "pymoo", "timm", "scipy", "pydantic"}
    assert set(json.loads(child.stderr)) & heavy == set()


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_are_printed(hwnas: Hwnas, shell: str) -> None:
    child = hwnas("completion", shell, "--quiet")
    assert (child.returncode, child.stderr) == (0, "")
    assert f"_HWNAS_COMPLETE={shell}_complete" in child.stdout
    told = hwnas("completion", shell, "--json")
    assert json.loads(told.stdout)["script"].strip() == child.stdout.strip()
    assert f"hwnas completion {shell}" in told.stderr


def test_scripts_work_where_those_of_click_do_not() -> None:
    assert 'string split --max 1 ","' in script("fish")  # descriptions have commas
    first, second, *_ = script("zsh").lstrip().splitlines()
    assert first == "#compdef hwnas"  # what makes it loadable from a folder of completions
    assert second.endswith("|| { autoload -Uz compinit && compinit }")


def test_the_shell_is_found_or_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHELL", "/usr/bin/zsh")
    assert main(["completion", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shell"] == "zsh"
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    assert main(["completion"]) == 2
    assert "$SHELL names tcsh; accepted: bash, zsh, fish" in capsys.readouterr().err


def test_a_real_bash_completes(folder: Path) -> None:
    command = f"{shlex.quote(sys.executable)} -m hwnas"
    (folder / "hwnas").write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    (folder / "hwnas").chmod(0o755)
    typed = (
        'eval "$(hwnas completion bash --quiet)"; COMP_WORDS=(hwnas prof); COMP_CWORD=1;'
        ' _hwnas_completion hwnas; echo "${COMPREPLY[@]}"'
    )
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    child = subprocess.run(
        ["bash", "-c", typed], capture_output=True, text=True, check=True,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    assert child.stdout == "profile profiles\n"


def test_completion_needs_no_generic_types_of_click() -> None:
    """Before 8.4 they exist for type checkers only; other programs may hold click back."""
    code = (
        "import click, click.shell_completion as shell\n"
        "def refuse(*_): raise TypeError('not subscriptable')\n"
        "for kind in (click.ParamType, shell.CompletionItem):\n"
        "    kind.__class_getitem__ = classmethod(refuse)\n"
        "import hwnas.cli.completing, hwnas.cli.values\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
