"""`hwnas extract` through the command line, on a small trained run and on imported weights."""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from hwnas.cli.main import hwnas, main
from hwnas.errors import FormatError, GateError
from hwnas.pipeline import extracting, sealing
from hwnas.pipeline.accuracies import Work, measure_archs
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.fronts import (
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    write_front,
)
from hwnas.pipeline.rundir import (
    Run,
    create_run,
    latest_step,
    open_run,
    save_supernet,
    space_of,
)
from hwnas.spaces import space
from hwnas.supernet import load_subnet, read_card
from hwnas.supernet.card import CARD_SCHEMA, card_from
from hwnas.testing import randomised_supernet
from hwnas.testing.runs import imported_run, small_run
from hwnas.training.data import load_data


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs") / "run")


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Run:
    """A copy, so that tests in any order find no subnets."""
    shutil.copytree(trained, tmp_path / "run")
    return open_run(tmp_path / "run")


def extract(*arguments: str) -> dict:
    """Run the verb in this process and return its JSON result."""
    done = CliRunner().invoke(hwnas, ["extract", *arguments, "--json", "--quiet"])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return json.loads(done.stdout)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["extract", *arguments])
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    return code, errors


def test_a_subnet_is_what_ran_in_the_supernet(run: Run) -> None:
    told = extract("--run", str(run.folder), "--arch", "smallest")
    folder = Path(told["subnet"])
    arch = space_of(run).smallest()
    assert folder == run.folder / "subnets" / arch.digest[:12]
    assert sorted(path.name for path in folder.iterdir()) == [
        "arch.json", "card.json", "config.toml", "weights.safetensors",
    ]  # fmt: skip
    card = read_card(folder)
    assert card.digest == arch.digest
    assert card.proof.equal_bits
    assert card.proof.difference == 0
    assert (card.proof.part, card.proof.images) == ("heldout", 32)
    assert card.calibration.how == "training images"
    assert card.calibration.images == 256
    assert card.classes == tuple("0123456789")
    assert card.supernet["step"] == 10
    recorded = measure_archs(run, [arch], work=Work(workers=1))[arch]
    assert card.accuracy is not None
    assert (card.accuracy.value, card.accuracy.images) == (recorded.accuracy, recorded.images)
    assert card.accuracy.value > 0.2, "the tiny run learns something, or this shows nothing"


def test_three_lines_of_python_give_the_answers_of_the_evaluation(run: Run) -> None:
    folder = extract("--run", str(run.folder), "--arch", "largest")["subnet"]
    network, card = load_subnet(folder), read_card(Path(folder))
    assert isinstance(network, torch.nn.Module)
    assert card.preprocessing is not None
    data = load_data(read_recipe(str(run.folder / "config.toml")).data)
    right = 0
    for index, label in enumerate(data.heldout.labels):
        image = card.preprocessing.apply(data.heldout.images.read(index))
        right += int(network(torch.from_numpy(image)[None]).argmax()) == label
    assert card.accuracy is not None
    assert right / len(data.heldout) == pytest.approx(card.accuracy.value, abs=0.011)


def test_extracting_again_writes_nothing_and_gives_the_same_weights(run: Run) -> None:
    first = extract("--run", str(run.folder), "--arch", "smallest")
    stamp = (Path(first["subnet"]) / "card.json").stat().st_mtime_ns
    again = extract("--run", str(run.folder), "--arch", "smallest")
    assert (first["is_new"], again["is_new"]) == (True, False)
    assert (Path(first["subnet"]) / "card.json").stat().st_mtime_ns == stamp
    elsewhere = extract(
        "--run", str(run.folder), "--arch", "smallest", "--out", str(run.folder / "elsewhere")
    )
    assert elsewhere["files"] == first["files"]


def test_a_changed_byte_is_noticed_and_extracting_repairs_it(run: Run) -> None:
    folder = Path(extract("--run", str(run.folder), "--arch", "smallest")["subnet"])
    weights = folder / "weights.safetensors"
    before = weights.read_bytes()
    weights.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(GateError, match="has changed since its card was written"):
        read_card(folder)
    assert extract("--run", str(run.folder), "--arch", "smallest")["is_new"]
    assert weights.read_bytes() == before
    weights.unlink()
    with pytest.raises(FormatError, match="no such file"):
        read_card(folder)


def test_the_proof_fails_when_other_weights_are_written(run: Run, monkeypatch) -> None:
    honest = sealing.save_subnet

    def damaging(network, of, arch, folder):
        with torch.no_grad():
            network.blocks["head"].classify.weight[3, 5] += 0.01
        honest(network, of, arch, folder)

    monkeypatch.setattr(sealing, "save_subnet", damaging)
    with pytest.raises(GateError, match="differs from the one in the supernet"):
        extracting.extract(run, extracting.select(run, arch="smallest"))
    assert not list(run.folder.glob("subnets/*")), "nothing half may be left"


def test_a_killed_extract_leaves_nothing_that_looks_like_a_subnet(run: Run) -> None:
    command = [sys.executable, "-m", "hwnas", "extract", "--run", str(run.folder),
               "--arch", "largest"]  # fmt: skip
    killed = 0
    for _attempt in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(run.folder.glob("subnets/.*/weights*")):
            time.sleep(0.002)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            killed += process.wait() != 0
        for folder in run.folder.glob("subnets/*"):
            if not folder.name.startswith("."):
                assert read_card(folder)
                shutil.rmtree(folder)
    assert killed
    assert extract("--run", str(run.folder), "--arch", "largest")["is_new"]


@pytest.mark.parametrize(
    ("arguments", "code", "message", "hint"),
    [
        (("--arch", "no-such"), 2, "unknown architecture 'no-such'; accepted: a file", "space"),
        (("--arch", "fffffff"), 2, "no architecture known to", "--arch FILE"),
        ((), 1, "nothing has been searched yet", "hwnas search --run"),
        (("--pick", "knee"), 1, "nothing has been searched yet", "hwnas search --run"),
        (("--latency", "25ms"), 1, "nothing has been searched yet", "hwnas search --run"),
        (("--arch", "largest", "--pick", "knee"), 2, "an architecture is named", "leave out one"),
        (("--arch", "largest", "--recipe", "nonsense"), 2, "unknown recipe 'nonsense'", ""),
        (
            ("--arch", "largest", "--recipe", "nano-fashion"),
            2,
            "the networks have 3 classes, the data of the recipe",
            "--recipe",
        ),
    ],
)
def test_mistakes_are_explained(run: Run, capsys, arguments, code, message: str, hint: str) -> None:
    if "nano-fashion" in arguments:  # another number of classes than the data
        other = space("nano", classes=3, channels=1)
        shutil.rmtree(run.folder)
        run = create_run(run.folder, of=other, origin={})
        save_supernet(run, randomised_supernet(other), step=0)
        arguments = (*arguments[:-1], _recipe_of_digits(run.folder.parent))
    got, errors = refused(capsys, "--run", str(run.folder), *arguments)
    assert got == code
    assert message in errors
    assert hint in errors


def test_a_folder_without_a_run_is_named(tmp_path: Path, capsys) -> None:
    code, errors = refused(capsys, "--run", str(tmp_path / "nothing"), "--arch", "largest")
    assert code == 2
    assert "nothing: no such folder" in errors


def test_a_foreign_folder_is_not_overwritten(run: Run, tmp_path: Path, capsys) -> None:
    other = tmp_path / "mine"
    other.mkdir()
    (other / "thesis.txt").write_text("do not delete")
    code, errors = refused(
        capsys, "--run", str(run.folder), "--arch", "largest", "--out", str(other)
    )
    assert code == 2
    assert "exists and is no subnet of ours" in errors
    assert (other / "thesis.txt").exists()


# -- what a search answered


@pytest.fixture
def front(run: Run) -> Front:
    of = space_of(run)
    archs = sorted(of.sample(4, np.random.default_rng(3)), key=lambda a: of.cost([a]).macs[0])
    choices = tuple(
        Choice(
            digest=arch.digest,
            genes=dict(arch),
            predicted={
                "accuracy": Estimate(mean=0.8, low=0.7, high=0.9),
                "latency": Estimate(mean=5.0 + place, low=4.0, high=9.0),
            },
            costs={"macs": float(of.cost([arch]).macs[0])},
        )
        for place, arch in enumerate(archs)
    )
    answers = (
        Answer(budget="latency 25ms", recommended=2, knee=1, reason="", feasible=4,
               listed=(2, 3, 1, 0)),
        Answer(budget="latency 5ms, size 40MB", recommended=0, knee=None, reason="one only",
               feasible=1, listed=(0,)),
        Answer(budget="latency:pi 60%", recommended=3, knee=0, reason="", feasible=2,
               listed=(3, 0)),
    )  # fmt: skip
    front = Front(
        space=run.space, options=run.options, choices=choices, answers=answers, created="now"
    )
    write_front(run, front)
    return front


@pytest.mark.parametrize(
    ("arguments", "choice"),
    [
        (("--latency", "25ms"), 2),
        (("--latency", "0.025s", "--pick", "knee"), 1),
        (("--latency", "25ms", "--pick", "2"), 3),
        (("--latency", "5ms"), 0),
        (("--latency", "60%"), 3),
        (("--latency", "pi=60%", "--pick", "knee"), 0),
    ],
)
def test_the_pick_of_a_search(run: Run, front: Front, arguments, choice: int) -> None:
    told = extract("--run", str(run.folder), *arguments)
    assert told["digest"] == front.choices[choice].digest
    assert told["promised"]["budget"].startswith("latency")
    assert told["promised"]["predicted"]["latency"]["mean"] == 5.0 + choice
    assert "verified" not in told["promised"]
    by_digest = extract("--run", str(run.folder), "--arch", told["digest"][:10])
    assert by_digest["digest"] == told["digest"]
    assert not by_digest["is_new"]


def test_what_the_search_measured_is_told(run: Run, front: Front) -> None:
    choice = front.choices[2]
    entries = [
        Verified(
            digest=choice.digest, budget="latency 25ms", predicted=choice.predicted,
            measured={"latency": latency, "accuracy": 0.9}, settings=choice.settings, met=True,
            device="here", grade=grade, step=latest_step(run),
        )
        for latency, grade in ((8.0, "B"), (7.5, "A"), (99.0, "D"))
    ]  # fmt: skip
    add_verified(run, entries)
    promised = extract("--run", str(run.folder), "--latency", "25ms")["promised"]
    assert promised["verified"] == {"latency": 7.5, "accuracy": 0.9}
    other = extract("--run", str(run.folder), "--latency", "5ms")["promised"]
    assert "verified" not in other


@pytest.mark.parametrize(
    ("arguments", "message", "hint"),
    [
        (("--latency", "26ms"), "no answer for latency 26ms; there is one for: latency 25ms, "
         "latency 5ms, size 40MB, latency:pi 60%", "--latency 26ms"),
        ((), "has 3 answers", "--latency"),
        (("--latency", "box=60%"), "no answer for latency box=60%", "--latency box=60%"),
        (("--latency", "5ms,25ms"), "names 2 budgets; accepted: one", "--latency 5ms"),
        (("--latency", "fast"), "'fast' is not a", ""),
        (("--latency", "25ms", "--pick", "5"), "the search lists 1 to 4", ""),
        (("--latency", "25ms", "--pick", "0"), "the search lists 1 to 4", ""),
        (("--latency", "25ms", "--pick", "best"), "accepted: recommended, knee", ""),
        (("--latency", "5ms", "--pick", "knee"), "nothing knee for latency 5ms", "--pick N"),
    ],
)  # fmt: skip
def test_wishes_that_no_search_answered(
    run: Run, front: Front, capsys, arguments, message: str, hint: str
) -> None:
    code, errors = refused(capsys, "--run", str(run.folder), *arguments)
    assert code == 2
    assert message in errors
    assert hint in errors


# -- runs without data


def test_weights_without_statistics_need_images(tmp_path: Path, capsys) -> None:
    run = imported_run(tmp_path / "imported", statistics=False)
    code, errors = refused(capsys, "--run", str(run.folder), "--arch", "smallest")
    assert code == 2
    assert "have no statistics" in errors
    assert "--recipe" in errors
    assert not list(run.folder.glob("subnets/*"))
    told = extract(
        "--run", str(run.folder), "--arch", "smallest", "--recipe", _recipe_of_digits(tmp_path)
    )
    assert told["calibration"] == {"how": "training images", "images": 128}
    assert told["accuracy"]["images"] == 50


def test_the_statistics_of_imported_weights_are_kept_and_that_is_said(tmp_path: Path) -> None:
    run = imported_run(tmp_path / "imported")
    arch = space_of(run).smallest()
    done = CliRunner().invoke(hwnas, ["extract", "--run", str(run.folder), "--arch", "smallest"])
    assert "accuracy: not measured, for want of data" in done.stdout
    assert "statistics stored in the supernet, not calibrated" in done.stdout
    assert "32 images of noise (no data at hand)" in done.stdout
    card = read_card(run.folder / "subnets" / arch.digest[:12])
    assert card.proof.equal_bits
    assert (card.data, card.preprocessing, card.classes, card.accuracy) == (None,) * 4
    told = extract(
        "--run", str(run.folder), "--arch", "smallest", "--recipe", _recipe_of_digits(tmp_path)
    )
    assert told["is_new"]
    assert told["calibration"]["how"] == "training images"


def _recipe_of_digits(folder: Path) -> str:
    path = folder / "digits.toml"
    path.write_text(
        '[data]\nname = "digits"\nimage_size = 28\nheldout = 50\n'
        "[evaluation]\ncalibration_images = 128\nbatch_size = 64\n"
    )
    return str(path)


# -- the documentation


def test_the_python_of_the_documentation_runs(run: Run, root: Path, tmp_path: Path) -> None:
    subnet = extract("--run", str(run.folder), "--arch", "smallest")["subnet"]
    text = (root / "docs" / "subnets.md").read_text()
    codes = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(codes) == 3
    given = {"subnet": subnet, "folder": run.folder, "image": np.zeros((28, 28), np.uint8),
             "torch": torch}  # fmt: skip
    for code in codes:
        exec(compile(code, "docs/subnets.md", "exec"), dict(given))


def test_the_first_version_of_the_card_is_read(root: Path) -> None:
    """A stored sample: what later versions write must not make it unreadable."""
    document = json.loads((root / "tests" / "golden" / "subnet" / "card-1.json").read_text())
    card = card_from(CARD_SCHEMA.check(document, "sample"), "sample")
    assert card.to_json() == {
        name: value for name, value in document.items() if name not in ("schema", "version")
    }
    for name in ("proof", "files", "digest"):
        with pytest.raises(FormatError, match="incomplete card"):
            card_from({key: v for key, v in document.items() if key != name}, "sample")
