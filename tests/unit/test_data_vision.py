"""Importing timm beside a torch that lacks torchvision's operators, with stand-ins for both."""

import subprocess
import sys
from types import ModuleType

import pytest

from hwnas.errors import MissingPackageError
from hwnas.training import vision


def test_a_missing_package_is_named(monkeypatch):
    def without_timm(name):
        if name.startswith("timm"):
            raise ModuleNotFoundError("No module named 'timm'", name="timm")
        return ModuleType(name)

    monkeypatch.setattr(vision, "import_module", without_timm)
    with pytest.raises(MissingPackageError, match="timm") as caught:
        vision.import_timm()
    assert "pip install" in caught.value.hint


def test_a_package_that_a_package_misses_is_a_bug_of_theirs(monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'deeper'", name="deeper")

    monkeypatch.setattr(vision, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="deeper"):
        vision.import_timm()


def test_operators_are_declared_only_after_the_real_import_failed(monkeypatch):
    calls = []

    def imported(name):
        calls.append(name)
        if name == "torchvision" and "declare" not in calls:
            raise RuntimeError("operator torchvision::nms does not exist")
        return ModuleType(name)

    monkeypatch.setattr(vision, "import_module", imported)
    monkeypatch.setattr(vision, "_declare_operators", lambda: calls.append("declare"))
    monkeypatch.setattr(vision, "_forget", lambda package, modules: calls.append("forget"))
    vision.import_timm()
    assert calls == ["torchvision", "forget", "declare", "torchvision", "timm.data"]
    calls[:] = ["declare"]
    vision.import_timm("models")
    assert calls == ["declare", "torchvision", "timm.models"]


def test_other_failures_of_torchvision_are_not_hidden(monkeypatch):
    def imported(name):
        raise RuntimeError("another reason")

    monkeypatch.setattr(vision, "import_module", imported)
    with pytest.raises(RuntimeError, match="another reason"):
        vision.import_timm()


def test_half_imported_modules_are_forgotten():
    modules = dict.fromkeys(("torchvision", "torchvision._meta", "torchvisionary"), ModuleType("x"))
    vision._forget("torchvision", modules)
    assert list(modules) == ["torchvisionary"]


def test_reading_data_settings_loads_neither_torch_nor_timm():
    code = (
        "import sys, hwnas.training.data, hwnas.training.augment as augment\n"
        "augment.Augmentation(name='deit')\n"
        "sys.exit(bool({'torch', 'timm', 'torchvision', 'sklearn'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
