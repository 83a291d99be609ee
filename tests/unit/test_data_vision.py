"""Importing timm beside a torch that lacks torchvision's operators, with stand-ins for both."""

import builtins
import importlib
import sys
from types import ModuleType

import pytest

from hwnas.errors import MissingPackageError
from hwnas.training import vision


def test_a_missing_package_is_named(monkeypatch):
    real = importlib.import_module

    def without_timm(name, *rest):
        if name.startswith("timm"):
            raise ModuleNotFoundError("No module named 'timm'", name="timm")
        return real(name, *rest)

    monkeypatch.setattr(vision.importlib, "import_module", without_timm)
    with pytest.raises(MissingPackageError, match="timm") as caught:
        vision.import_timm()
    assert "pip install" in caught.value.hint


def test_operators_are_declared_only_after_the_real_import_failed(monkeypatch):
    calls = []
    broken = True

    def imported(name):
        calls.append(name)
        if name == "torchvision" and broken:
            sys.modules["torchvision.half"] = ModuleType("torchvision.half")
            raise RuntimeError("operator torchvision::nms does not exist")
        return ModuleType(name)

    def declare():
        nonlocal broken
        broken = False
        calls.append("declare")

    monkeypatch.setattr(vision.importlib, "import_module", imported)
    monkeypatch.setattr(vision, "_declare_operators", declare)
    monkeypatch.setattr(vision, "_forget_torchvision", lambda: sys.modules.pop("torchvision.half"))
    vision.import_timm()
    assert calls == ["torchvision", "declare", "torchvision", "timm.data"]
    calls.clear()
    vision.import_timm("models")
    assert calls == ["torchvision", "timm.models"]
    assert "torchvision.half" not in sys.modules


def test_other_failures_of_torchvision_are_not_hidden(monkeypatch):
    def imported(name):
        raise RuntimeError("another reason")

    monkeypatch.setattr(vision.importlib, "import_module", imported)
    with pytest.raises(RuntimeError, match="another reason"):
        vision.import_timm()


def test_half_imported_modules_are_forgotten(monkeypatch):
    kept = {name: module for name, module in sys.modules.items() if not name.startswith("torchv")}
    kept.update(
        {"torchvision": builtins, "torchvision._meta": builtins, "torchvisionary": builtins}
    )
    monkeypatch.setattr(vision.sys, "modules", kept)
    vision._forget_torchvision()
    assert "torchvision" not in kept
    assert "torchvision._meta" not in kept
    assert "torchvisionary" in kept
