"""What the stages of `hwnas run` are started with, and what becomes of an interrupt."""

import signal
import sys

import click
import pytest

from hwnas.cli.output import Output
from hwnas.cli.run import _environment as environment_of
from hwnas.cli.run import _launcher, _Overall, _waited
from hwnas.errors import EXIT_INTERRUPTED
from hwnas.profiling import pages


@pytest.fixture(params=[None, "the kernel has none"])
def problem(request, monkeypatch):
    monkeypatch.setattr(pages, "huge_pages_problem", lambda: request.param)
    monkeypatch.delenv(pages.VARIABLE, raising=False)
    return request.param


def test_training_has_huge_pages_where_they_can_be_had(problem):
    expected = {} if problem else {pages.VARIABLE: pages.TUNABLE}
    assert environment_of(("train", "nano-fashion")) == expected


@pytest.mark.parametrize("verb", ["profile", "validate", "search"])
def test_what_is_measured_gets_what_the_system_gives(verb):
    assert environment_of((verb, "--run", "r")) == {}


def test_a_stage_does_not_take_the_files_beside_it_for_modules(tmp_path, monkeypatch, capfd):
    (tmp_path / "random.py").write_text("raise SystemExit('not the standard module')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    output = Output(as_json=False, quiet=False)
    _launcher(output, _Overall(output, {}, []))(("space", "list"))
    assert "nano" in capfd.readouterr().err


class Interrupted:
    """A child that is waited for when Ctrl-C comes, and ends so."""

    def __init__(self, code: int) -> None:
        self.code = code
        self.signals: list[int] = []

    def wait(self, timeout: float | None = None) -> int:
        if not self.signals:
            raise KeyboardInterrupt
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


@pytest.mark.parametrize("code", [EXIT_INTERRUPTED, -signal.SIGINT])
def test_an_interrupt_is_told_by_the_stage_alone(code: int) -> None:
    child = Interrupted(code)
    with pytest.raises(click.exceptions.Exit) as caught:
        _waited(child)  # type: ignore[arg-type]
    assert caught.value.exit_code == EXIT_INTERRUPTED
    assert child.signals == [signal.SIGINT]


def test_a_stage_that_ends_otherwise_leaves_the_telling_to_the_run() -> None:
    with pytest.raises(KeyboardInterrupt):
        _waited(Interrupted(-signal.SIGKILL))  # type: ignore[arg-type]
