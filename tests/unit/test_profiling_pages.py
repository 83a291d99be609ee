"""Huge pages: where they can be had, and what a process has to be started with."""

import platform
import sys

import pytest

from hwnas.errors import HwnasError
from hwnas.profiling import pages
from hwnas.profiling.pages import check_pages, huge_pages_problem, page_environment
from hwnas.profiling.records import PAGES, one_of_pages


@pytest.fixture
def linux(monkeypatch, tmp_path):
    """A Linux with a new C library; returns the kernel's file."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    monkeypatch.setattr(pages, "_KERNEL", tmp_path / "enabled")
    return tmp_path / "enabled"


def test_the_environment_asks_for_them_and_keeps_what_else_is_set():
    assert page_environment("default", others="a=1") == {}
    assert page_environment("huge") == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    both = page_environment("huge", others="a=1")
    assert both == {"GLIBC_TUNABLES": "a=1:glibc.malloc.hugetlb=1"}


@pytest.mark.parametrize("content", ["[always] madvise never", "always [madvise] never"])
def test_a_kernel_that_gives_them_on_request_is_accepted(linux, content):
    linux.write_text(content)
    assert huge_pages_problem(linux) is None


def test_a_kernel_without_them_is_named(linux):
    assert "missing" in huge_pages_problem(linux)
    linux.write_text("always madvise [never]")
    assert "'never'; accepted: always, madvise" in huge_pages_problem(linux)


@pytest.mark.parametrize("library", [("glibc", "2.31"), ("", ""), ("musl", "1.2")])
def test_another_c_library_is_named(linux, monkeypatch, library):
    linux.write_text("[always] madvise never")
    monkeypatch.setattr(platform, "libc_ver", lambda: library)
    assert "accepted: glibc 2.35 or newer" in huge_pages_problem(linux)


def test_another_system_has_no_setting_for_them(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "no setting" in huge_pages_problem()
    check_pages("default")
    with pytest.raises(HwnasError, match="no huge pages on this device") as caught:
        check_pages("huge")
    assert caught.value.hint == "measure with --pages default"


def test_kinds_of_pages_are_called_by_name():
    assert [one_of_pages(name) for name in PAGES] == ["default", "huge"]
    with pytest.raises(HwnasError, match="hug"):
        one_of_pages("hug")
