"""What the stages of `hwnas run` are started with."""

import pytest

from hwnas.cli.run import _environment as environment_of
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
