"""`hwnas show` on every kind of file, changed files, strangers, and without torch and onnx."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from hwnas.cli.main import hwnas, main
from hwnas.cli.show import BY_SCHEMA
from hwnas.pipeline import extracting, families
from hwnas.pipeline.exporting import Wish, export
from hwnas.pipeline.fit import fit_rows, profile_rows
from hwnas.pipeline.fronts import (
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    write_front,
)
from hwnas.pipeline.rundir import open_run, space_of
from hwnas.profiling.packs import Model, write_pack
from hwnas.profiling.profiles import write_profile
from hwnas.profiling.records import Settings
from hwnas.profiling.sampling import arch_document
from hwnas.testing.onnx_models import conv_stack
from hwnas.testing.profiles import made_up_profile
from hwnas.testing.runs import small_run

KINDS = {
    "run": "run", "run/run.json": "run", "run/search/front.json": "front",
    "run/subnets/small": "subnet", "run/subnets/small/arch.json": "architecture",
    "run/artifacts/small": "artifact", "run/artifacts/small/manifest.json": "artifact",
    "run/artifacts/small/model.onnx": "model", "run/artifacts/family": "family",
    "run/artifacts/small/ort/ort_settings.json": "ort-settings",
    "run/profiles/cpu.jsonl": "profile", "run/predictors/latency": "predictor",
    "foreign.onnx": "model",
}  # fmt: skip


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has everything."""
    folder = tmp_path_factory.mktemp("things")
    run = open_run(small_run(folder / "run"))
    of = space_of(run)
    subnet = run.folder / "subnets" / "small"
    extracting.extract(run, extracting.select(run, arch="smallest"), out=subnet)
    wish = Wish(targets=("ort",), measured=False, images=20)
    export(subnet, wish=wish)
    arch = of.smallest()
    choice = Choice(
        digest=arch.digest, genes=dict(arch), costs={},
        predicted={"latency": Estimate(mean=1.0, low=0.5, high=2.0)},
    )  # fmt: skip
    answer = Answer(budget="latency 5ms", recommended=0, knee=0, reason="the best", feasible=1)
    write_front(run, Front(
        space=run.space, options=run.options, choices=(choice,), answers=(answer,), created="now"
    ))  # fmt: skip
    families.export_family(run, wish=Wish(measured=False, images=20))
    archs = of.sample(30, np.random.default_rng(0))
    latencies = [float(macs) / 1e6 for macs in of.cost(archs).macs]
    profile = made_up_profile(
        "cpu", list(zip(archs, latencies, strict=True)), settings=Settings(), space=of
    )
    path = run.folder / "profiles" / "cpu.jsonl"
    path.parent.mkdir(exist_ok=True)
    write_profile(path, profile)
    (rows,) = profile_rows([path], of)
    fit_rows(rows, of, folder=run.folder / "predictors" / "latency", quick=True)
    (folder / "foreign.onnx").write_bytes(conv_stack())
    return folder


def shown(path: Path) -> tuple[dict, str]:
    told = CliRunner().invoke(hwnas, ["show", str(path), "--json"])
    assert told.exit_code == 0, told.output
    text = CliRunner().invoke(hwnas, ["show", str(path)])
    assert text.exit_code == 0, text.output
    return json.loads(told.stdout), text.stdout


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_everything_says_what_it_is(things: Path, name: str, kind: str) -> None:
    document, text = shown(things / name)
    assert document["kind"] == kind
    assert kind in text


def test_a_model_tells_how_to_feed_it(things: Path) -> None:
    document, text = shown(things / "run" / "artifacts" / "small" / "model.onnx")
    assert document["metadata"]["classes"] == list("0123456789")
    assert document["manifest"] == "as it says"
    for part in ("float32 NCHW, batch any", "crop 28, scaled to 24", "10: 0, 1,", "ONNX 17"):
        assert part in text
    foreign, text = shown(things / "foreign.onnx")
    assert "metadata" not in foreign
    assert "none of hwnas" in text


def test_a_run_lists_what_it_has(things: Path) -> None:
    document, _ = shown(things / "run")
    assert "subnets/small/card.json" in document["subnets"]
    assert "artifacts/small/manifest.json" in document["artifacts"]
    assert document["front"] == ["search/front.json"]


def test_a_front_tells_its_answers(things: Path) -> None:
    _, text = shown(things / "run" / "search" / "front.json")
    assert "latency 5ms" in text
    assert "latency 1 ms (0.5 to 2)" in text


def test_landmarks_are_listed_whoever_wrote_them(tmp_path: Path) -> None:
    path = tmp_path / "landmarks.jsonl"
    by_hand = '{"name": "ResNet-8", "kind": "hand-made", "accuracy": 0.872, "latency": 1.9}\n'
    for first in ("", '{"schema": "hwnas/landmarks", "version": 1}\n'):
        path.write_text(first + by_hand)
        document, text = shown(path)
        assert document["kind"] == "landmarks"
        assert document["landmarks"][0]["accuracy"] == 0.872
        assert "ResNet-8    87.20%  1.900 ms" in text


def test_what_was_verified_is_told_beside_what_was_promised(things: Path, tmp_path: Path) -> None:
    run = open_run(shutil.copytree(things / "run", tmp_path / "run"))
    promised = {"latency": Estimate(mean=1.0, low=0.5, high=2.0)}
    entry = Verified(
        digest="0" * 64, budget="latency 5ms", predicted=promised, settings=None, met=True,
        measured={"latency": 1.25, "size": 9.0}, device="here", grade="A", step=1,
    )  # fmt: skip
    add_verified(run, [entry])
    document, text = shown(run.folder / "search" / "verified.jsonl")
    assert document["verified"][0]["measured"]["latency"] == 1.25
    assert "latency 1 ms / 1.25 ms" in text


def test_a_pack_is_counted(things: Path, tmp_path: Path) -> None:
    of = space_of(open_run(things / "run"))
    model = Model(arch=arch_document(of, of.smallest()), precision="fp32", onnx=conv_stack())
    write_pack(tmp_path / "few.pack", [model])
    document, _ = shown(tmp_path / "few.pack")
    assert (document["kind"], document["models"]) == ("pack", 1)


def test_changed_files_are_told_and_end_with_code_4(
    things: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(things / "run" / "artifacts", tmp_path / "artifacts")
    for model in (tmp_path / "artifacts").rglob("model.onnx"):
        content = bytearray(model.read_bytes())
        content[len(content) // 2] ^= 1
        model.write_bytes(content)
    for name in ("small", "family", "small/model.onnx"):
        assert main(["show", str(tmp_path / "artifacts" / name)]) == 4, name
        captured = capsys.readouterr()
        assert "changed" in captured.out
        assert "was changed" in captured.err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none", None, "no such file or folder"),
        ("folder/", None, "nothing of hwnas is in this folder"),
        ("x.json", b"{", "damaged"),
        ("x.json", b"[1]", "no schema in it"),
        ("x.json", b'{"schema": "other"}', "is a 'other'"),
        ("x.bin", b"\xff\xfe\x00", "damaged"),
        ("x.onnx", b"garbage", "not an ONNX file"),
        ("manifest.json", b'{"schema": "hwnas/artifact", "version": 9}', "version 9"),
        ("run.json", b'{"schema": "hwnas/run", "version": 1}', "status is None"),
        ("card.json", b'{"schema": "hwnas/subnet-card", "version": 1}', "incomplete"),
        ("p.jsonl", b'{"schema": "hwnas/profile", "version": 1}\n', "device"),
        ("v.json", b'{"schema": "hwnas/verdict", "version": 1}', "incomplete"),
        ("a.jsonl", b'{"schema": "hwnas/accuracies", "version": 9}\n', "version 9"),
        ("a.jsonl", b'{"schema": "hwnas/verified", "version": "1"}\n', "version is '1'"),
        ("deep.json", b"[" * 100_000, "damaged"),
    ],
)
def test_strangers_and_damaged_files_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    if name.endswith("/"):
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    assert main(["show", str(path)]) in (1, 2)
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


def test_neither_torch_nor_onnx_is_needed(things: Path) -> None:
    script = (
        "import sys\n"
        "for name in ('torch', 'onnx', 'timm', 'sklearn', 'openvino'): sys.modules[name] = None\n"
        "from hwnas.cli.main import main\n"
        f"for name in {list(KINDS)}:\n"
        f"    assert main(['show', {str(things)!r} + '/' + name]) == 0, name\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_schema_that_is_shown_is_one_of_ours() -> None:
    assert all(name.startswith("hwnas") for name in BY_SCHEMA)
