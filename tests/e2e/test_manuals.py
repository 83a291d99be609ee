"""The commands of the manuals, executed in their order: each manual in a copy of one small run.

What the manuals take for granted (a run, profiles of devices, images) is prepared once; names that
only stand for something (a digest, RUN) are replaced, and what would take long is made short by
options that are added. That options and values are those of the commands, test_cli_readme.py says.
"""

import csv
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from hwnas.cli import run as run_verb
from hwnas.cli import search as search_verb
from hwnas.cli.main import main
from hwnas.errors import HwnasError
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.rundir import open_run, space_of
from hwnas.profiling import measure as protocol
from hwnas.profiling.locks import FOLDER_VARIABLE
from hwnas.profiling.machine import device as this_device
from hwnas.profiling.profiles import Profile, best_records, write_profile
from hwnas.profiling.records import Settings
from hwnas.search.api import ENGINES
from hwnas.search.evolution import Nsga2
from hwnas.spaces import Space
from hwnas.testing.documents import blocks, executable
from hwnas.testing.onnx_models import write_conv_stack
from hwnas.testing.profiles import made_up_profile
from hwnas.testing.searchable_runs import HERE, made_up_latency, searchable_run

pytestmark = pytest.mark.slow

DOCS = Path(__file__).resolve().parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"
MANUALS = ("devices", "export", "predictors", "report", "search", "subnets", "validate")
RUN = Path("runs/nano")
# Verbs whose other exit codes are verdicts, not mistakes: an untrained network misses its limits,
# is hurt by 8 bits, and a busy machine is measured badly.
VERDICTS = {
    "export": {0, 4},
    "profile": {0, 4},  # --active: few are not enough
    "validate": {0, 4, 5},
    "search": {0, 3, 5},
    "run": {0, 4, 5},
}
QUICK = ["--force", "--no-memory", "--max-seconds", "0.05"]
SMALL = [
    "schedule.epochs=3", "schedule.warmup_epochs=0.1", "evaluation.every_epochs=3",
    "evaluation.random_subnets=0", "evaluation.calibration_images=64", "data.workers=0",
    "deploy.models=12", "deploy.accuracies=12", "deploy.verify=1", "deploy.latency=60%",
]  # fmt: skip
SETS = [part for value in SMALL for part in ("--set", value)]
# Added at the end, where they count instead of what the manual has.
ADDED = {
    "train": SETS,
    "run": ["--force", *SETS],
    "profile": QUICK,
    "fit": ["--quick", "-n", "14"],
    "search": ["--force", "--workers", "1"],
    "export": ["--images", "20", "--no-speed"],
    "finetune": ["--epochs", "1"],
    "validate": ["--images", "20", "--max-seconds", "0.2"],
}  # fmt: skip
# Instead of the values of these options, for the verbs that measure.
FEWER = {"--few": "10", "--most": "12", "--wanted-error": "90%", "--threads": "1",
         "--precision": "fp32"}  # fmt: skip
ARCHITECTURES = {"profile": "1", "pack": "10"}  # a predictor needs ten


@dataclass(frozen=True, kw_only=True)
class Printed:
    code: int
    text: str


Type = Callable[[list[str]], Printed]


@pytest.fixture
def typed(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    own_lock: None,
    modelled_latencies: None,
) -> Type:
    """Return what executes a command in this process; searches are short, stages stay here."""
    monkeypatch.setitem(ENGINES, "nsga2", lambda: Nsga2(generations=3))
    monkeypatch.setattr(search_verb, "VERIFIED", 0)
    # On a busy machine measuring would wait for better times.
    monkeypatch.setattr(protocol, "Plan", partial(protocol.Plan, patience_s=0.1))
    monkeypatch.setattr(run_verb, "_estimated", lambda _, asked: (asked, {}))

    def launch(command: tuple[str, ...]) -> None:
        added = {"profile": QUICK, "fit": ["--quick", "--workers", "1"]}.get(command[0], [])
        code = main([*command, *(added if "--explain" not in command else [])])
        if code not in VERDICTS.get(command[0], {0}):
            raise HwnasError(f"{command} ended with {code}")

    monkeypatch.setattr(run_verb, "_launcher", lambda *_: launch)

    def type_it(words: list[str]) -> Printed:
        capfd.readouterr()
        program, *arguments = words
        if program == "hwnas":
            code = main(shortened(arguments))
        else:
            program = {"python": sys.executable}.get(program, program)
            code = subprocess.run([program, *arguments], check=False).returncode
        printed = capfd.readouterr()
        return Printed(code=code, text=printed.out + printed.err)

    return type_it


def shortened(arguments: list[str]) -> list[str]:
    """Return a command that does the same with less."""
    verb = arguments[0]
    if verb in ARCHITECTURES:
        fewer = {**FEWER, "-n": ARCHITECTURES[verb]}
        pairs = zip(["", *arguments], arguments, strict=False)
        arguments = [fewer.get(option, value) for option, value in pairs]
    if "--explain" in arguments or "--table" in arguments:
        return arguments
    added = ADDED.get(verb, [])
    return arguments + (added[:1] if "--profile" in arguments and verb == "fit" else added)


def write_images(folder: Path, *, classes: int, first: int, last: int) -> None:
    digits = load_digits()
    for label in range(classes):
        place = folder / str(label)
        place.mkdir(parents=True)
        chosen = digits.images[digits.target == label][first:last]
        for number, image in enumerate(chosen):
            Image.fromarray((image * 15).astype(np.uint8)).save(place / f"{number}.png")


def device(
    space: Space, name: str, *, factor: float, count: int, backend: str = "onnxruntime"
) -> Profile:
    archs = spread(space, count, seed=1)
    pairs = list(zip(archs, (made_up_latency(space, archs, Settings()) * factor).tolist(),
                     strict=True))  # fmt: skip
    return made_up_profile(name, pairs, space=space, backend=backend)


def write_profiles(space: Space) -> None:
    """Write the profiles that manuals speak of."""
    for name, factor in (("a", 1.0), ("b", 3.0), ("workstation", 1.0)):
        write_profile(
            Path("profiles") / f"{name}.jsonl", device(space, name, factor=factor, count=24)
        )
    for name in ("a", "b"):
        shutil.copy(Path("profiles") / f"{name}.jsonl", f"{name}.jsonl")
    write_profile(Path("toy.jsonl"), device(space, "toy", factor=2.0, count=24))
    board = device(space, "my board", factor=5.0, count=24)
    write_profile(Path("my-board.jsonl"), board)
    records = list(board.records.values())
    for name, some in (("monday", records[:12]), ("tuesday", records[8:])):
        write_profile(Path(f"{name}.jsonl"), replace(board, records=best_records(some)))


def write_tables() -> None:
    rng = np.random.default_rng(0)
    for name, rows in (("train", 30), ("test", 10)):
        genes = rng.integers(0, 3, size=(rows, 4))
        costs = genes.sum(axis=1) + 1.0
        with Path(f"{name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["gene:a", "gene:b", "gene:c", "gene:d", "cost:macs", "lat"])
            for row, cost in zip(genes.tolist(), costs.tolist(), strict=True):
                table.writerow([*row, cost, 2.0 + cost * 3.0])


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with all that manuals take for granted; `digest` names the subnet."""
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv(FOLDER_VARIABLE, str(folder / "locks"))
        patch.setitem(ENGINES, "nsga2", lambda: Nsga2(generations=3))
        several = [Settings(), Settings(threads=2)]
        searchable_run(RUN, {HERE: several, "server": several[:1], "pi5": several[:1]})
        space = space_of(open_run(RUN))
        write_profiles(space)
        openvino = device(space, HERE, factor=1.2, count=24, backend="openvino")
        header = replace(openvino.header, device=this_device(name=HERE))
        write_profile(RUN / "profiles" / "openvino.jsonl", replace(openvino, header=header))
        write_tables()
        write_images(Path("images/test"), classes=10, first=100, last=104)
        write_conv_stack(Path("their.onnx"), size=224)
        run = ["--run", str(RUN)]
        assert main(["search", *run, "--latency", "25ms", "--verify", "0", "--quiet"]) == 0
        assert main(["extract", *run, "--quiet"]) == 0
        (subnet,) = (RUN / "subnets").iterdir()
        assert main(["export", str(subnet), "--no-speed", "--images", "20", "--quiet"]) == 0
        (folder / "digest").write_text(subnet.name)
    return folder


def stands_for(folder: Path) -> dict[str, str]:
    """Return what the names in manuals stand for here."""
    digest = (folder / "digest").read_text()
    return {
        r"\b(0123456789ab|3f2a81b0c9d4)\b": digest,
        r"\b3f2a81\b": digest[:6],
        r"\bRUN\b": str(RUN),
        r"\bnasvit\b": "nano",
    }


@pytest.mark.parametrize("manual", MANUALS)
def test_the_commands_of_a_manual_work(
    typed: Type, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, manual: str
) -> None:
    here = tmp_path / "here"
    shutil.copytree(prepared, here)
    monkeypatch.chdir(here)
    names = stands_for(here)
    if manual == "search":
        monkeypatch.setattr(search_verb, "VERIFIED", 1)
    commands = list(executable(DOCS / f"{manual}.md"))
    assert commands
    for command in commands:
        words = list(command)
        newest = max(RUN.glob("artifacts/*/manifest.json"), key=lambda path: path.stat().st_mtime)
        for pattern, meant in {**names, r"\bDIGEST\b": newest.parent.name}.items():
            words = [re.sub(pattern, meant, word) for word in words]
        check(typed, words)


def check(typed: Type, words: list[str]) -> str:
    """Return what a command prints, which has to end as it should."""
    done = typed(words)
    if done.code not in VERDICTS.get(words[1], {0}):
        pytest.fail(f"{words} ended with {done.code}:\n{done.text}")  # all of it, not shortened
    return done.text


def test_the_tutorial_goes_from_images_to_a_validated_model(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(search_verb, "VERIFIED", 1)
    write_images(Path("images/train"), classes=3, first=0, last=40)
    write_images(Path("images/test"), classes=3, first=100, last=120)
    printed = ""
    for command in executable(TUTORIAL):
        words = list(command)
        found = sorted(Path("runs").glob("*/artifacts/family/*/model.onnx"))
        if found:
            words = [word.replace("DIGEST", found[0].parent.name) for word in words]
        words = [word.replace("IMAGE", "images/train/0/0.png") for word in words]
        printed += check(typed, words)
    known = {" ".join(line.split()) for line in printed.splitlines()}
    said = [line for block in blocks(TUTORIAL) if block.language == "text"
            for line in block.body.splitlines()]  # fmt: skip
    # Lines with figures differ from training to training; headings must be those that are printed.
    headings = [" ".join(line.split()) for line in said if line and not re.search(r"\d", line)]
    assert headings
    assert [line for line in headings if line != "..." and line not in known] == []
    reports = list(Path("runs").glob("*/report.html"))
    assert reports
    assert list(Path("runs").glob("*/artifacts/**/model.onnx"))


def test_a_command_that_does_not_work_is_noticed(typed: Type, tmp_path: Path) -> None:
    assert typed(["hwnas", "search", "--run", str(tmp_path)]).code == 2
    with pytest.raises(pytest.fail.Exception, match="no such option"):
        check(typed, ["hwnas", "validate", "model.onnx", "--no-such-option"])
    with pytest.raises(pytest.fail.Exception):
        check(typed, ["cp", str(tmp_path / "absent"), str(tmp_path / "copy")])
    assert 2 not in VERDICTS["search"]


def test_the_manuals_are_those_that_have_commands() -> None:
    having = {path.stem for path in DOCS.glob("*.md") if list(executable(path))}
    assert having - {"cli", "results", "spaces"} == {*MANUALS, TUTORIAL.stem}
