"""`hwnas import nasvit FILE --out RUN`, from a file in the released layout to a loaded supernet."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch

from hwnas.errors import FormatError, UsageError
from hwnas.interop import nasvit as reference
from hwnas.io import digest_file
from hwnas.pipeline.rundir import RUN_FILE, load_supernet, open_run
from hwnas.spaces import space
from hwnas.supernet import Supernet

Run = Callable[..., CompletedProcess[str]]
CLASSES = 7


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with the names of the release and random weights."""
    generator = torch.Generator().manual_seed(0)
    supernet = Supernet(space("nasvit", classes=CLASSES))
    tensors = {}
    for slot, shared in supernet.blocks.items():
        for name, parameter in shared.named_parameters():
            values = parameter.detach() + 0.01 * torch.randn(parameter.shape, generator=generator)
            if name == "attention.positions":  # stored as one table of offsets
                values = values.reshape(-1, values.shape[-1])
            tensors[reference._reference_name(slot, name)] = values
        for norm in reference._norms(shared):
            size = shared.get_parameter(f"{norm}.weight").shape
            for statistic, start in (("running_mean", 0.0), ("running_var", 1.0)):
                values = start + torch.rand(size, generator=generator)
                tensors[reference._reference_name(slot, f"{norm}.{statistic}")] = values
    path = tmp_path_factory.mktemp("released") / "released.pth"
    torch.save({"model": {f"module.{name}": value for name, value in tensors.items()}}, path)
    return path


@pytest.fixture(scope="module")
def imported(hwnas: Run, released: Path) -> Path:
    """Return the run folder that the command made of it."""
    out = released.parent / "run"
    child = hwnas("import", "nasvit", str(released), "--out", str(out), "--json", "--quiet")
    assert (child.returncode, child.stderr) == (0, "")
    document = json.loads(child.stdout)
    assert document["sha256"] == digest_file(released)
    assert (document["space"], document["classes"]) == ("nasvit", CLASSES)
    return out


def test_the_run_folder_says_what_it_is(imported: Path, released: Path) -> None:
    document = json.loads((imported / RUN_FILE).read_text())
    assert (document["schema"], document["version"]) == ("hwnas/run", 1)
    assert document["status"] == "complete"
    assert document["options"] == dict(space("nasvit", classes=CLASSES).options)
    assert document["origin"] == {
        "importer": "nasvit",
        "file": released.name,
        "sha256": digest_file(released),
    }
    assert {"python", "torch", "numpy"} <= set(document["versions"])
    assert str(imported) not in json.dumps(document)
    names = sorted(str(path.relative_to(imported)) for path in imported.rglob("*"))
    assert names == ["run.json", "supernet", "supernet/LATEST", "supernet/step-0.safetensors"]
    assert (imported / "supernet/LATEST").read_text() == "step-0.safetensors\n"


def test_the_loaded_supernet_is_the_imported_one(imported: Path, released: Path) -> None:
    expected, loaded = reference.read(released), load_supernet(open_run(imported))
    before, after = expected.state_dict(), loaded.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    arch = expected.space.smallest()
    images = torch.rand(1, 3, 192, 192)
    with torch.inference_mode():
        assert torch.equal(expected.extract(arch)(images), loaded.extract(arch)(images))


def test_the_same_command_again_changes_nothing(hwnas: Run, imported: Path, released: Path) -> None:
    before = {path: digest_file(path) for path in imported.rglob("*") if path.is_file()}
    child = hwnas("import", "nasvit", str(released), "--out", str(imported))
    assert child.returncode == 0
    assert child.stderr == f"read {released}; writing {imported}\n"
    assert child.stdout.startswith(f"{imported}: supernet of space nasvit, {CLASSES} classes")
    assert {path: digest_file(path) for path in imported.rglob("*") if path.is_file()} == before


def test_another_file_is_not_written_over_a_run(
    hwnas: Run, imported: Path, released: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.pth"
    content = torch.load(released)
    content["model"]["module.classifier.linear.linear.bias"] += 1
    torch.save(content, other)
    child = hwnas("import", "nasvit", str(other), "--out", str(imported))
    assert child.returncode == 2
    assert f"{imported}: holds another run" in child.stderr


def test_a_folder_of_someone_else_is_left_alone(hwnas: Run, released: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("mine")
    child = hwnas("import", "nasvit", str(released), "--out", str(tmp_path))
    assert child.returncode == 2
    assert "neither empty nor a run folder" in child.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


class _Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch exploded",)


def _truncated(released: Path) -> bytes:
    return released.read_bytes()[:100_000]


def _foreign(released: Path) -> bytes:
    return b"\x89PNG" + bytes(1000)


def _bomb(released: Path) -> bytes:
    return pickle.dumps({"model": _Bomb()})


@pytest.mark.parametrize("damage", [_truncated, _foreign, _bomb])
def test_damaged_files(
    hwnas: Run, released: Path, tmp_path: Path, damage: Callable[[Path], bytes], root: Path
) -> None:
    path = tmp_path / "file.pth"
    path.write_bytes(damage(released))
    child = hwnas("import", "nasvit", str(path), "--out", str(tmp_path / "run"))
    assert child.returncode == 1
    assert child.stdout == ""
    error, hint = child.stderr.splitlines()
    assert error.startswith(f"error: {path}: not ")
    assert hint.startswith("hint: fetch the file again")
    assert not (tmp_path / "run").exists()
    assert not (root / "exploded").exists()


def test_an_absent_file(hwnas: Run, tmp_path: Path) -> None:
    child = hwnas("import", "nasvit", str(tmp_path / "no.pth"), "--out", str(tmp_path / "run"))
    assert child.returncode == 2
    assert child.stderr == f"error: {tmp_path / 'no.pth'}: no such file\n"


def test_runs_of_newer_versions_are_refused(imported: Path, tmp_path: Path) -> None:
    document = json.loads((imported / RUN_FILE).read_text())
    (tmp_path / RUN_FILE).write_text(json.dumps({**document, "version": 2}))
    with pytest.raises(FormatError, match="version 2 of hwnas/run"):
        open_run(tmp_path)


@pytest.mark.parametrize("key", ["status", "space", "options", "origin"])
def test_incomplete_run_files_are_named(imported: Path, tmp_path: Path, key: str) -> None:
    document = json.loads((imported / RUN_FILE).read_text())
    del document[key]
    (tmp_path / RUN_FILE).write_text(json.dumps(document))
    with pytest.raises(FormatError, match=f"{key} is None"):
        open_run(tmp_path)


def test_other_folders_are_no_runs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"not a run folder \(it has no run.json\)"):
        open_run(tmp_path)
