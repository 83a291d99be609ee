"""Every outcome of the command line: text, streams and exit codes."""

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from subprocess import CompletedProcess

import click
import pytest

from hwnas.cli import main as command_line
from hwnas.cli.verbs import EXTRA_OF, VERBS, Verb, install_command
from hwnas.errors import GateError, HwnasError, InfeasibleError, UnreliableError, UsageError

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that makes `hwnas probe` call what it is given."""

    def install(action: Callable[[], None], *needs: str) -> None:
        command = click.Command("probe", callback=action)
        monkeypatch.setattr(sys.modules[__name__], "probe_command", command, raising=False)
        verb = Verb(target=f"{__name__}:probe_command", help="", needs=needs)
        monkeypatch.setitem(VERBS, "probe", verb)

    return install


def fail(error: BaseException) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


@pytest.mark.parametrize(
    ("kind", "code"),
    [(HwnasError, 1), (UsageError, 2), (InfeasibleError, 3), (GateError, 4), (UnreliableError, 5)],
)
def test_errors_have_their_text_and_code(
    probe: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    kind: type[HwnasError],
    code: int,
) -> None:
    probe(fail(kind("what was wrong", "what to type")))
    assert command_line.main(["probe"]) == code
    out, err = capsys.readouterr()
    assert (out, err) == ("", "error: what was wrong\nhint: what to type\n")


def test_debug_shows_the_traceback(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(HwnasError("what was wrong")))
    assert command_line.main(["--debug", "probe"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert err.endswith("error: what was wrong\n")


def test_our_own_mistakes_ask_to_be_reported(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(ZeroDivisionError("0 / 0")))
    assert command_line.main(["probe"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback")
    assert "ZeroDivisionError: 0 / 0\nerror: this is a bug in hwnas\nhint: please report" in err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9")],
)
def test_short_memory_is_not_our_mistake(
    error: Exception, probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(error))
    assert command_line.main(["probe"]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: out of memory (")
    assert "hint: when there is more" in err


def test_an_interrupt_that_became_an_error_is_an_interrupt(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    wrapped = RuntimeError("while compiling")
    wrapped.__cause__ = KeyboardInterrupt()
    probe(fail(wrapped))
    assert command_line.main(["probe"]) == 130
    assert capsys.readouterr().err.startswith("error: interrupted")


def test_what_the_system_refuses_is_no_bug(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(PermissionError(13, "Permission denied", "/a/b")))
    assert command_line.main(["probe"]) == 1
    assert capsys.readouterr().err == "error: /a/b: Permission denied\n"
    assert command_line.main(["validate", "a" * 300]) == 1
    err = capsys.readouterr().err
    assert err.startswith("error: aaa")
    assert err.endswith("a...: File name too long\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["profile", "--threads", "x"], "--threads: 'x'; accepted: whole numbers from 1"),
        (["fleet", "p", "--devices", "a,,b"], "--devices: 'a,,b' has an empty name"),
        (["space", "sample", "nano", "--macs", "5"], "--macs: '5' is not a range; accepted: low.."),
        (["validate", "m.onnx", "--max-p99", "5 days"], "--max-p99: '5 days' has the unit 'days'"),
        (["validate", "m.onnx", "--mean", "a"], "--mean: 'a'; accepted: numbers such as"),
        (["export", "--target", ","], "--target: ',' has an empty name"),
        (["export", "missing"], "missing: no such folder"),
        (["init", "no such.toml"], "hint: hwnas init own-images --out 'no such.toml';"),
        (["train", "no such.toml"], "hwnas init own-images --out 'no such.toml' writes one"),
        (["run", "no such.toml"], "no such.toml: no such recipe"),
        (["run", "."], "hwnas run own-images --set data.path=."),
        (["profile", "--space", "nano", "--active", "--wanted-error", "25"], "--wanted-error '25'"),
        (["profile", "--space", "nano", "--active", "--wanted-error", "0%"], "--wanted-error '0%'"),
        (["profile", "--space", "nano", "--active", "--wanted-error", ""], "'' is not a share"),
    ],
)
def test_mistakes_are_named(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_interruption_can_be_resumed(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(KeyboardInterrupt()))
    assert command_line.main(["probe"]) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "the same command" in err


def test_warnings_are_one_line(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    def action() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a torn line", stacklevel=1)

    probe(action)
    assert command_line.main(["probe"]) == 0
    assert capsys.readouterr().err == "warning: a torn line\n"


def test_missing_packages_name_the_command_that_helps(
    probe: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    probe(fail(AssertionError("must not run")), "click", "no_such_package")
    assert command_line.main(["probe"]) == 1
    assert capsys.readouterr().err == (
        "error: `hwnas probe` needs no_such_package, which is not installed\n"
        "hint: pip install hwnas\n"
    )


def test_every_needed_package_has_an_extra() -> None:
    for verb in VERBS.values():
        assert set(verb.needs) <= set(EXTRA_OF)
    assert install_command(("torch", "sklearn")) == "pip install 'hwnas[all]'"
    assert install_command(("torch", "ray")) == "pip install 'hwnas[all,ray]'"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["spac"], "unknown command 'spac'; did you mean space"),
        (["--no-such"], "--no-such"),
        (["space", "lst"], "lst"),
        (["space", "list", "--jsn"], "--jsn"),
    ],
)
def test_usage_errors_are_in_the_same_style(hwnas: Run, arguments: list[str], told: str) -> None:
    child = hwnas(*arguments)
    assert child.returncode == 2
    assert child.stdout == ""
    first, last = child.stderr.splitlines()
    assert first.startswith("error: ")
    assert told in first
    assert last.startswith("hint: hwnas")


def test_nothing_asked_shows_the_help_and_fails(hwnas: Run) -> None:
    child = hwnas()
    assert child.returncode == 2
    assert child.stderr.startswith("Usage: hwnas")


def test_version(hwnas: Run) -> None:
    assert hwnas("--version").stdout.startswith("hwnas, version ")


def test_a_reader_that_leaves_early_is_no_error(hwnas: Run) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run(
        [sys.executable, "-m", "hwnas", "space", "sample", "nano", "-n", "2000", "--json"],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (child.returncode, child.stderr) == (141, "")


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_streams_are_no_error(closed: str) -> None:
    line = f'"$0" -m hwnas space list {closed}'
    child = subprocess.run(
        ["sh", "-c", line, sys.executable], capture_output=True, text=True, check=False
    )
    assert (child.returncode, child.stderr) == (0, "")


def test_control_c_ends_a_running_command() -> None:
    code = (
        "import sys, time\n"
        "from hwnas.cli import main, space\n"
        "import hwnas.spaces\n"
        "def slow(*args, **options):\n"
        "    print('started', flush=True); time.sleep(60)\n"
        "hwnas.spaces.space = slow\n"
        "sys.exit(main.main(['space', 'show', 'nano']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "started\n"
    time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted")


def test_results_are_plain_when_piped(hwnas: Run) -> None:
    child = hwnas("space", "list", "--json", "--quiet")
    json.loads(child.stdout)
    assert "\x1b" not in child.stdout
