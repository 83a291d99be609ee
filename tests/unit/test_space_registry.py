"""Spaces of others: registered by a program, found in packages, refused where files would lie."""

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from hwnas.errors import HwnasError, UsageError
from hwnas.nets import build_network
from hwnas.profiling.sampling import arch_document, space_of
from hwnas.spaces import Part, Placed, Space, is_known, register, registry, space, space_names
from hwnas.spaces.blocks import Classifier, Stem
from hwnas.supernet import load_subnet, save_subnet


def declared(name: str = "mine", **options: Any) -> Space:
    def blocks(genes) -> tuple[Placed, ...]:
        stem = Stem(cin=options["channels"], cout=genes["width"])
        head = Classifier(cin=stem.cout, mid=8, features=8, classes=options["classes"])
        return (Placed("stem", stem, 8), Placed("head", head, 4))

    parts = (Part("all", ("width",), blocks),)
    return Space(name, genes={"width": (4, 8)}, parts=parts, side=8, options=options)


def mine(*, classes: int = 10, channels: int = 3) -> Space:
    return declared(classes=classes, channels=channels)


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def install(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    point = EntryPoint(name, value, registry.ENTRY_POINTS)
    monkeypatch.setattr(registry, "_installed", lambda: {name: point})


def test_a_registered_space_is_built_again_from_its_files(tmp_path: Path) -> None:
    of = mine(classes=3)
    save_subnet(build_network(of.network(of.largest())), of, of.largest(), tmp_path)
    with pytest.raises(UsageError, match="unknown space 'mine'") as caught:
        load_subnet(tmp_path)
    assert "docs/spaces.md" in caught.value.hint
    assert register(mine) is mine
    assert load_subnet(tmp_path).description == of.network(of.largest())
    assert space_names()[-1] == "mine"
    again = space_of(arch_document(of, of.smallest()))
    assert again.options == {"classes": 3, "channels": 3}
    with pytest.raises(UsageError, match="unknown option of space mine 'scaling'"):
        space("mine", scaling="none")


def test_a_function_that_was_changed_is_registered_anew() -> None:
    register(mine)
    register(lambda *, classes=4, channels=3: declared(classes=classes, channels=channels))
    assert space("mine").options["classes"] == 4


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda classes=1, channels=1: None, "takes 'classes=1'; accepted: options by keyword"),
        (lambda *, classes, channels=1: None, "takes 'classes'; accepted: options by keyword"),
        (lambda: declared(classes=10, channels=3), "states the options .* takes {}"),
        (lambda *, classes=10, channels=3: declared(classes=10, channels=3), "with the values"),
        (lambda *, classes=10, channels=3, more=1: declared(classes=classes, channels=channels),
         "'more': 1}; accepted: the same"),
        (lambda *, classes=10, channels=3: declared("nano", classes=classes, channels=channels),
         "there is a space 'nano' already"),
        (lambda: Space("table", genes={"a": (1, 2)}), "describes no networks"),
    ],
)  # fmt: skip
def test_declarations_that_files_could_not_be_read_with_are_refused(declare, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        register(declare)
    assert space_names() == [name for name in space_names() if name in registry.SPACES]


def test_spaces_of_packages_are_imported_when_they_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, imported: list[str]
) -> None:
    install(monkeypatch, "mine", f"{__name__}:mine")
    assert is_known("mine")
    assert space_names()[-1] == "mine"
    assert imported == []
    assert space("mine", classes=5).options["classes"] == 5
    assert space("mine").name == "mine"
    assert imported == ["mine"]


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the entry points that were imported."""
    found: list[str] = []

    def load(point: EntryPoint) -> Any:
        found.append(point.name)
        return mine

    monkeypatch.setattr(EntryPoint, "load", load)
    return found


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("gone", "no_such_module:gone", "space 'gone' of an installed package cannot be imported"),
        ("gone", "hwnas.spaces:gone", "cannot be imported .*gone"),
        ("yours", "hwnas.spaces:declared_for_test", "declares a space of another name"),
    ],
)
def test_packages_that_do_not_fit_are_explained(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setattr("hwnas.spaces.declared_for_test", mine, raising=False)
    install(monkeypatch, name, value)
    with pytest.raises(HwnasError, match=message):
        space(name)


def test_a_package_cannot_replace_a_space_of_ours(
    monkeypatch: pytest.MonkeyPatch, imported: list[str]
) -> None:
    install(monkeypatch, "nano", "anything:nano")
    assert len(space("nano").genes) > 1
    assert imported == []
    assert space_names().count("nano") == 1
