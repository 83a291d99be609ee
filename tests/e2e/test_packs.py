"""Packs, from the workstation to the device, and where a model's time goes."""

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from hwnas.errors import FormatError, UnreliableError
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.explain import RUNTIME, explain
from hwnas.profiling.locks import device_lock
from hwnas.profiling.packs import (
    Model,
    PackProvider,
    build_model,
    check_pack,
    read_pack,
    stand_in,
    write_pack,
)
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Settings
from hwnas.testing.onnx_models import TOY_ARCHS as ARCHS
from hwnas.testing.onnx_models import conv_stack, write_conv_stack


@pytest.fixture
def pack_path(tmp_path):
    models = [Model(arch=one, onnx=conv_stack(width=one["genes"]["width"])) for one in ARCHS[:3]]
    write_pack(tmp_path / "toy.pack", models, about={"space": "toy"})
    return tmp_path / "toy.pack"


def test_a_pack_is_measured_like_its_models(pack_path, tmp_path, options):
    pack = read_pack(pack_path)
    check_pack(pack)
    assert pack.archs() == ARCHS[:3]
    assert pack.about == {"space": "toy"}
    for model, one in zip(pack.models, ARCHS, strict=False):
        assert build_model(pack, model) == stand_in(conv_stack(width=one["genes"]["width"]))
    path = tmp_path / "p.jsonl"
    profile(grid(pack.archs()), provide=PackProvider(pack), output=path, options=options)
    assert len(read_profile(path).measured()) == 3


def test_a_pack_is_small_and_reproducible(tmp_path):
    models = [Model(arch=ARCHS[0], onnx=conv_stack(width=128, depth=4))]
    write_pack(tmp_path / "a.pack", models)
    write_pack(tmp_path / "b.pack", models)
    assert (tmp_path / "a.pack").read_bytes() == (tmp_path / "b.pack").read_bytes()
    assert (tmp_path / "a.pack").stat().st_size < len(models[0].onnx) / 100


def test_a_precision_that_the_pack_lacks_is_explained(pack_path):
    provider = PackProvider(read_pack(pack_path))
    with pytest.raises(FormatError, match=r"no int8_static model .* fp32"):
        provider(ARCHS[0], Settings(precision="int8_static"))
    assert provider(ARCHS[0], Settings(precision="bf16"))


def rewrite(path, change):
    """Rewrite a pack entry by entry; `change` returns the new content or None to drop it."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            if (new := change(name, content)) is not None:
                archive.writestr(name, new)


def in_manifest(change):
    def edit_entry(name, content):
        if name != "manifest.json":
            return content
        document = json.loads(content)
        change(document)
        return json.dumps(document)

    return edit_entry


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (in_manifest(lambda d: d.update(version=7)), "version 7"),
        (in_manifest(lambda d: d.update(schema="x")), "is a 'x'"),
        (in_manifest(lambda d: d.update(models=[])), "no models"),
        (in_manifest(lambda d: d["models"][0].pop("graph")), "other fields"),
        (in_manifest(lambda d: d["models"][0].update(arch=3)), "wrong type"),
        (in_manifest(lambda d: d.update(about=["x"])), "expected an object"),
        (lambda name, content: b"[" * 100_000 if "json" in name else content, "not JSON"),
        (in_manifest(lambda d: d["models"][0].update(sha256="0" * 64)), "expected 000000000000"),
        (lambda name, content: content if "json" in name else content + b" ", "SHA-256 differs"),
        (lambda name, content: content if "json" in name else None, "there is no"),
        (lambda name, content: None if "json" in name else content, "there is no"),
    ],
)
def test_damaged_foreign_and_newer_packs_are_refused(pack_path, change, words):
    rewrite(pack_path, change)
    with pytest.raises(FormatError, match=words):
        check_pack(read_pack(pack_path))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda spec: spec.update(shape=[10**12]), "too many"),
        (lambda spec: spec.update(shape=["a"]), "cannot be read"),
        (lambda spec: spec.update(shape=[-4]), "cannot be read"),
        (lambda spec: spec.update(shape=3), "cannot be read"),
        (lambda spec: spec.update(scale="wide"), "cannot be read"),
        (lambda spec: spec.update(name=None), "cannot be read"),
        (lambda spec: spec.update(rule="ones"), "unknown rule"),
        (lambda spec: spec.update(more=1), "cannot be read"),
        (lambda spec: spec.update(dtype=99), "is rebuilt as"),
    ],
)
def test_recipes_of_a_forger_are_refused(pack_path, change, words):
    model = read_pack(pack_path).models[0]
    with zipfile.ZipFile(pack_path, "a") as archive:
        recipe = json.loads(archive.read(model.weights))
        change(recipe[0])
        content = json.dumps(recipe).encode()
        name = hashlib.sha256(content).hexdigest()
        archive.writestr(name, content)
    rewrite(pack_path, in_manifest(lambda d: d["models"][0].update(weights=name)))
    with pytest.raises(FormatError, match=words):
        check_pack(read_pack(pack_path))


def test_a_pack_that_is_replaced_meanwhile_is_explained(pack_path):
    provider = PackProvider(read_pack(pack_path))
    pack_path.write_bytes(pack_path.read_bytes()[:300])
    with pytest.raises(FormatError, match="cut off"):
        provider(ARCHS[0], Settings())
    pack_path.unlink()
    with pytest.raises(FormatError, match="no such file"):
        provider(ARCHS[0], Settings())


def test_a_pack_cut_anywhere_is_refused(pack_path):
    content = pack_path.read_bytes()
    for length in range(0, len(content), 97):
        pack_path.write_bytes(content[:length])
        with pytest.raises(FormatError):
            check_pack(read_pack(pack_path))


def test_options_make_other_models_of_one_architecture(tmp_path):
    few, many = ({**ARCHS[0], "options": {"classes": classes}} for classes in (2, 300))
    models = [Model(arch=few, onnx=conv_stack(width=8)), Model(arch=many, onnx=conv_stack(width=9))]
    write_pack(tmp_path / "o.pack", models)
    provider = PackProvider(read_pack(tmp_path / "o.pack"))
    assert read_pack(tmp_path / "o.pack").archs() == [few, many]
    assert provider(few, Settings()) == stand_in(models[0].onnx)
    assert provider(many, Settings()) == stand_in(models[1].onnx)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no", b"hello"])
def test_files_that_are_no_packs_are_refused(tmp_path, content):
    (tmp_path / "x.pack").write_bytes(content)
    with pytest.raises(FormatError, match="not a pack"):
        read_pack(tmp_path / "x.pack")
    with pytest.raises(FormatError, match="no such file"):
        read_pack(tmp_path / "none.pack")


def test_a_flipped_bit_anywhere_in_a_pack_is_noticed(pack_path):
    content = bytearray(pack_path.read_bytes())
    pack = read_pack(pack_path)
    with zipfile.ZipFile(pack_path) as archive:
        entry = archive.getinfo(pack.models[0].graph)
    content[entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2] ^= 0x10
    pack_path.write_bytes(bytes(content))
    with pytest.raises(FormatError, match="damaged"):
        check_pack(read_pack(pack_path))


def test_explaining_names_the_blocks(tmp_path):
    path = write_conv_stack(tmp_path / "m.onnx", width=64, depth=3, size=20)
    found = explain(path, runs=5, lock_folder=tmp_path)
    blocks = [row.block for row in found.rows]
    assert (
        {"block0", "block1", "block2", "head"}
        <= set(blocks)
        <= {*("block0", "block1", "block2", "head", RUNTIME)}
    )
    assert sum(row.share for row in found.rows) == pytest.approx(1.0)
    assert sum(row.ms for row in found.rows) == pytest.approx(found.total_ms)
    assert [row.ms for row in found.rows] == sorted((row.ms for row in found.rows), reverse=True)
    # The second and third convolution have 64 input channels, the first has 3.
    assert set(blocks[:2]) == {"block1", "block2"}
    assert not list(Path.cwd().glob("onnxruntime_profile*"))


def test_explaining_keeps_away_from_a_profiler(tmp_path):
    path = write_conv_stack(tmp_path / "m.onnx", width=4)
    with (
        device_lock(folder=tmp_path),
        pytest.raises(UnreliableError, match=rf"another profiler .* {os.getpid()}"),
    ):
        explain(path, lock_folder=tmp_path)


def test_measuring_packs_needs_neither_torch_nor_onnx(pack_path, tmp_path):
    script = f"""
import sys
for name in ("torch", "onnx", "click", "rich", "pandas", "sklearn"):
    sys.modules[name] = None
from pathlib import Path
from hwnas.profiling import driver, explain, profiles
from hwnas.profiling.packs import PackProvider, read_pack
pack = read_pack(Path({str(pack_path)!r}))
path = Path({str(tmp_path / "p.jsonl")!r})
options = driver.Options(force=True, memory=False, lock_folder=Path({str(tmp_path)!r}))
driver.profile(driver.grid(pack.archs()), provide=PackProvider(pack), output=path, options=options)
assert len(profiles.read_profile(path).measured()) == 3
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-W", "error", "-c", script], env=environment, check=True)
