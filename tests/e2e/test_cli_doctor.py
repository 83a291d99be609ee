"""`hwnas doctor`: what it says about this machine, and about packages that are not there."""

import json
from collections.abc import Callable
from importlib.metadata import version
from subprocess import CompletedProcess

import pytest

from hwnas.cli import doctor
from hwnas.cli.verbs import EXTRA_OF

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def document(hwnas: Run) -> dict[str, object]:
    child = hwnas("doctor", "--json")
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_versions_are_those_installed(document: dict[str, object]) -> None:
    packages = {package["name"]: package for package in document["packages"]}
    for name in ("numpy", "torch", "scikit-learn", "onnxruntime"):
        assert packages[name] == {"name": name, "version": version(name), "works": True}


def test_the_machine_is_described(document: dict[str, object]) -> None:
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_mb"] > 100
    assert machine["cpu"]
    assert machine["quiet"] == (not machine["reasons"])
    assert document["torch"]["threads"] >= 1
    assert "CPUExecutionProvider" in document["onnxruntime_providers"]


def test_text_holds_the_same(document: dict[str, object]) -> None:
    text = doctor._text(document)
    assert f"torch         {version('torch')}" in text
    assert document["machine"]["cpu"] in text
    assert "\x1b" not in text


def test_absent_packages_have_the_command_that_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRA_OF, "no_such_module", "openvino")
    package = doctor._package("no-such-distribution", "no_such_module")
    assert not package["works"]
    assert doctor._state(package) == "get it: pip install 'hwnas[openvino]'"


def test_every_package_can_be_got() -> None:
    assert set(doctor._EXTRAS.values()) <= set(EXTRA_OF)
    assert EXTRA_OF.keys() & set(doctor._BASE.values()) == set()


def test_broken_packages_are_told_from_absent_ones() -> None:
    package = doctor._package("numpy", "numpy_without_its_library")
    assert package["version"] == version("numpy")
    assert doctor._state(package).startswith("broken: No module named")


def test_nothing_is_said_of_torch_where_it_is_not() -> None:
    packages = [{"name": "torch", "version": None, "works": False, "get": "pip"}]
    assert doctor._torch(packages) is None
    assert doctor._providers(packages) == []
