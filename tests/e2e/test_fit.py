"""`hwnas fit`: on a run, on profiles, on few measurements of a new device, on tables; mistakes."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import hwnas
from hwnas.cli.main import main
from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import read_journal
from hwnas.pipeline.accuracies import evaluator, measure_archs, read_accuracies, spread
from hwnas.pipeline.choose import few
from hwnas.pipeline.config import read_recipe
from hwnas.pipeline.fit import fit_rows, profile_rows, sources_from
from hwnas.pipeline.predictors import accuracy_predictor, latency_predictor, load_predictor
from hwnas.pipeline.rundir import load_supernet, open_run, save_supernet
from hwnas.profiling.profiles import best_records, merge_profiles, read_profile, write_profile
from hwnas.profiling.records import Settings
from hwnas.testing.profiles import made_up_profile
from hwnas.training.data import load_data
from hwnas.training.measure import accuracies

NANO = hwnas.space("nano", channels=1)
SMALL = [
    "--set", "data.name=digits", "--set", "data.heldout=100", "--set", "schedule.epochs=1",
    "--set", "schedule.warmup_epochs=0", "--set", "optimiser.batch_size=128",
    "--set", "evaluation.calibration_images=128", "--set", "evaluation.batch_size=128",
    "--set", "process.threads=1",
]  # fmt: skip


def latency(archs, *, speed: float = 1.0, per_layer: float = 0.2, seed: int = 0) -> np.ndarray:
    costs = NANO.cost(list(archs))
    clean = costs.macs / 1e6 / speed + np.sqrt(costs.activations) / 50 + per_layer * costs.layers
    return clean * np.exp(np.random.default_rng(seed).normal(0, 0.01, len(clean)))


def profile(path: Path, device: str, n: int, *, seed: int = 0, settings=None, **how) -> Path:
    archs = spread(NANO, n, seed=seed)
    values = zip(archs, latency(archs, seed=seed, **how).tolist(), strict=True)
    found = made_up_profile(device, list(values), settings=settings or Settings(), space=NANO)
    write_profile(path, found)
    return path


def fitted(capsys, *arguments: object) -> dict:
    code = main(["fit", *map(str, arguments), "--json", "--quiet"])
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return json.loads(captured.out)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    command = [sys.executable, "-m", "hwnas", "train", "nano-fashion", "--run", str(folder)]
    done = subprocess.run([*command, *SMALL], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def measured(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with 12 accuracies, the profile of one device, and predictors of both."""
    folder = tmp_path_factory.mktemp("runs") / "measured"
    shutil.copytree(trained, folder)
    profile(folder / "profiles" / "toy.jsonl", "Toy (TM) board", 24)
    done = subprocess.run(
        [sys.executable, "-m", "hwnas", "fit", "--run", str(folder), "-n", "12"],
        capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "measuring the accuracies of 12 subnets" in done.stderr
    assert "12/12 subnets" in done.stderr
    assert "accuracy: 12 rows" in done.stdout
    assert "latency-toy-board-onnxruntime-t1-b1-fp32: 24 rows" in done.stdout
    for line in ("within 5 %", "Spearman", "Kendall", "90 % intervals hold", "20 more samples"):
        assert done.stdout.count(line) == 2, line
    return folder


def test_accuracies_are_those_of_calibrated_subnets_on_the_heldout_part(measured: Path) -> None:
    run = open_run(measured)
    known = read_accuracies(run)
    assert {entry.arch for entry in known} == set(spread(NANO, 12, seed=0))
    recipe = read_recipe(str(measured / "config.toml"))
    archs = [entry.arch for entry in known[:4]]
    expected = accuracies(
        load_supernet(run), archs, load_data(recipe.data), recipe, device=torch.device("cpu")
    )
    assert [entry.accuracy for entry in known[:4]] == pytest.approx(list(expected), abs=0.011)
    assert {entry.images for entry in known} == {100}


def test_images_that_do_not_fit_into_memory_are_read_again(measured: Path, monkeypatch) -> None:
    monkeypatch.setattr("hwnas.pipeline.accuracies._KEPT_BYTES", 0)
    recipe = str(measured / "config.toml")
    work = evaluator(0, folder=measured, recipe=recipe, threads=None, gpus=0)
    for entry in read_accuracies(open_run(measured))[:2]:
        assert work(entry.arch).accuracy == pytest.approx(entry.accuracy, abs=0.011)


def test_what_is_measured_is_not_measured_again(measured: Path, tmp_path: Path, capsys) -> None:
    before = (measured / "accuracies.jsonl").read_bytes()
    found = fitted(capsys, "--run", measured, "-n", 12, "--quick", "--out", tmp_path)
    assert (measured / "accuracies.jsonl").read_bytes() == before
    assert [p["rows"] for p in found["predictors"]] == [12, 24]
    assert found["predictors"][0]["scores"] is None
    known = spread(NANO, 3, seed=0)
    assert list(measure_archs(open_run(measured), known)) == known


def test_search_gets_values_and_intervals_for_codes(measured: Path) -> None:
    run = open_run(measured)
    codes = NANO.sample_codes(300, np.random.default_rng(5), macs=(0, 1e12))
    truth = latency(NANO.decode(codes))
    predictor = latency_predictor(run)
    mean, low, high = predictor(codes)
    assert np.mean(np.abs(mean / truth - 1)) < 0.1
    assert np.mean((low <= truth) & (truth <= high)) > 0.6
    assert (predictor.prob_at_most(codes, high) > 0.8).all()
    assert predictor.in_range(codes).mean() > 0.3
    assert predictor.about["device"] == "Toy (TM) board"
    accuracy = accuracy_predictor(run)
    mean, low, high = accuracy(codes)
    assert ((low >= 0) & (low <= mean) & (mean <= high) & (high <= 1)).all()
    evaluation = json.loads((measured / "predictors" / "accuracy" / "evaluation.json").read_text())
    assert evaluation["scores"]["rows"] == 12


def test_the_predictor_that_is_meant_must_be_clear(measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(measured, folder)
    name = folder / "predictors" / "latency-toy-board-onnxruntime-t1-b1-fp32"
    two = Settings(threads=2)
    path = profile(tmp_path / "two.jsonl", "Toy (TM) board", 12, settings=two)
    (rows,) = profile_rows([path], NANO)
    fit_rows(rows, NANO, folder=name.parent / rows.name, quick=True)
    run = open_run(folder)
    with pytest.raises(UsageError, match="several latency_ms predictors fit"):
        latency_predictor(run, device="Toy (TM) board")
    assert latency_predictor(run, settings=two).rows == 12
    with pytest.raises(UsageError, match="no latency_ms predictor for device other"):
        latency_predictor(run, device="other")
    with pytest.raises(HwnasError, match="has no energy_mj predictor"):
        latency_predictor(run, target="energy_mj")
    with pytest.raises(FormatError, match="is of space options"):
        load_predictor(name, hwnas.space("nano", channels=1, classes=3))


def test_killed_and_resumed_measures_each_subnet_once(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    journal = folder / "accuracies.jsonl"
    command = [sys.executable, "-m", "hwnas", "fit", "--run", str(folder), "-n", "16",
               "--workers", "2", "--quick"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not journal.exists() or journal.read_bytes().count(b"\n") < 4:
        assert process.poll() is None
        time.sleep(0.02)
    workers = psutil.Process(process.pid).children()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert workers
    assert not psutil.wait_procs(workers, timeout=60)[1]  # nobody is left behind
    before = journal.read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    after = journal.read_bytes()
    assert after.startswith(before[: before.rfind(b"\n") + 1])
    digests = [record["digest"] for record in read_journal(journal)[1:]]
    assert len(digests) == len(set(digests)) == 16
    assert set(digests) == {arch.digest for arch in spread(NANO, 16, seed=0)}


def test_accuracies_of_an_earlier_supernet_are_set_aside(measured: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(measured, folder)
    run = open_run(folder)
    save_supernet(run, load_supernet(run), step=1000)
    assert read_accuracies(run) == []
    with pytest.raises(HwnasError, match=r"was fitted after \d+ steps of training"):
        accuracy_predictor(run)
    found = measure_archs(run, spread(NANO, 2, seed=0))
    assert len(found) == len(read_accuracies(run)) == 2
    assert len(list(folder.glob("accuracies-step-*.jsonl"))) == 1


def test_profiles_without_a_run(tmp_path: Path, capsys) -> None:
    path = profile(tmp_path / "toy.jsonl", "toy", 20)
    found = fitted(capsys, "--profile", path, "--space", "nano", "--channels", 1,
                   "--out", tmp_path / "kept")  # fmt: skip
    (entry,) = found["predictors"]
    assert entry["scores"]["mape"] < 10
    assert entry["scores"]["rows"] == 20
    assert entry["curve"][-1]["rows"] == 16
    assert entry["gain_of_20_more"] >= 0
    loaded = load_predictor(tmp_path / "kept" / entry["name"], NANO)
    assert loaded.rows == 20
    found = fitted(capsys, "--profile", path, "--quick")  # the space is in the profile
    assert found["predictors"][0]["folder"] is None


def test_a_profile_of_several_spaces(tmp_path: Path, capsys) -> None:
    path = profile(tmp_path / "toy.jsonl", "toy", 20)
    other = hwnas.space("nasvit")
    archs = other.sample(12, np.random.default_rng(0))
    pairs = [(arch, 5.0 + number) for number, arch in enumerate(archs)]
    rest = profile(tmp_path / "rest.jsonl", "toy", 4)
    write_profile(rest, made_up_profile("toy", pairs))
    write_profile(path, merge_profiles(read_profile(path), read_profile(rest)))
    for space, rows in (("nano", 20), ("nasvit", 12)):
        found = fitted(capsys, "--profile", path, "--space", space, "--quick")
        assert [entry["rows"] for entry in found["predictors"]] == [rows]
    line = refused(capsys, "--profile", path)
    assert "of space 'nasvit' and space 'nano' with {\"channels\":1}; accepted: one space" in line


def test_networks_in_two_forms_are_told_of(tmp_path: Path) -> None:
    paths = [profile(tmp_path / "toy.jsonl", "toy", 20), tmp_path / "new.jsonl"]
    old = read_profile(paths[0])
    for path, graph, factor in zip(paths, ("old", "new"), (1.0, 10.0), strict=True):
        records = [
            replace(
                record, graph=graph, measured_at=factor,
                latency=replace(
                    record.latency, samples_ms=[factor], median_ms=factor, p90_ms=factor,
                    p99_ms=factor,
                ),
            )
            for record in list(old.records.values())[: 20 if graph == "old" else 15]
        ]  # fmt: skip
        write_profile(path, replace(old, records=best_records(records)))
    (rows,) = profile_rows(paths[::-1], NANO)
    assert sorted(rows.values) == [1.0] * 5 + [10.0] * 15
    assert rows.remarks[0].startswith("15 networks were measured in two forms")
    assert profile_rows(paths[:1], NANO)[0].remarks == ()


def test_few_measurements_of_a_new_device(tmp_path: Path, capsys) -> None:
    old = [
        profile(tmp_path / "a.jsonl", "a", 30, seed=1, speed=2.0),
        profile(tmp_path / "b.jsonl", "b", 30, seed=2, per_layer=1.0),
    ]
    chosen = few(NANO, sources_from(old, NANO), 12)
    values = latency(chosen, speed=0.3, per_layer=0.5)
    new = tmp_path / "new.jsonl"
    pairs = list(zip(chosen, values.tolist(), strict=True))
    write_profile(new, made_up_profile("new", pairs, space=NANO))
    found = fitted(capsys, "--from", f"{old[0]},{old[1]}", "--profile", new,
                   "--space", "nano", "--channels", 1, "--out", tmp_path / "kept")  # fmt: skip
    (entry,) = found["predictors"]
    assert entry["rows"] == entry["scores"]["rows"] == 12
    assert entry["about"]["from"] == "a onnxruntime fp32, b onnxruntime fp32"
    predictor = load_predictor(tmp_path / "kept" / entry["name"], NANO)
    others = NANO.sample_codes(200, np.random.default_rng(3), macs=(0, 1e12))
    truth = latency(NANO.decode(others), speed=0.3, per_layer=0.5)
    mean, low, high = predictor(others)
    assert np.mean(np.abs(mean / truth - 1)) < 0.15
    assert ((low < mean) & (mean < high)).all()
    assert predictor.prob_at_most(others, mean * 2).min() > 0.9
    assert predictor.in_range(others).mean() > 0.2
    predictor.save(tmp_path / "again")
    assert np.array_equal(load_predictor(tmp_path / "again", NANO)(others).high, high)


def table(path: Path, rows: int, *, seed: int = 0, spoil=lambda row, line: line) -> Path:
    rng = np.random.default_rng(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["gene:a", "gene:b", "cost:macs", "lat", "same"])
        for row in range(rows):
            a, b = rng.integers(0, 4, 2).tolist()
            line = [a, b, (1 + a) * (2 + b), (1 + a) * (2 + b) * 3 + b + rng.normal() / 20, 5]
            writer.writerow(spoil(row, line))
    return path


def test_tables(tmp_path: Path, capsys) -> None:
    train, test = table(tmp_path / "train.csv", 40), table(tmp_path / "test.csv", 30, seed=1)
    found = fitted(capsys, "--table", train, "--test", test, "--target", "lat")
    assert set(found) == {
        "mape", "within_5", "within_10", "spearman", "kendall", "coverage_90", "width_90",
        "fit_cpu_s", "rows",
    }  # fmt: skip
    assert found["rows"] == 40
    assert found["mape"] < 10
    assert main(["fit", "--table", str(train), "--test", str(test), "--target", "lat"]) == 0
    assert f"lat: fitted on 40 rows of {train}" in capsys.readouterr().out


def refused(capsys, *arguments: object) -> str:
    code = main(["fit", *map(str, arguments)])
    errors = capsys.readouterr().err
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code in (1, 2), errors
    assert len(lines) == 1
    assert "Traceback" not in errors
    return lines[0]


@pytest.mark.parametrize(
    ("spoil", "rows", "target", "message"),
    [
        (lambda row, line: [*line[:2], "nan", *line[3:]] if row == 3 else line, 20, "lat",
         "row 4, column 'cost:macs': nan is not a finite number"),
        (lambda row, line: ["wide", *line[1:]] if row == 0 else line, 20, "lat",
         "row 1, column 'gene:a': 'wide' is not a number"),
        (lambda row, line: line, 20, "same", "'same' is 5 in every row"),
        (lambda row, line: line, 5, "lat", "5 rows, at least 10 are needed"),
        (lambda row, line: line, 20, "latency", "unknown target 'latency'; did you mean lat?"),
    ],
    ids=["nan", "text", "constant", "few", "unknown"],
)  # fmt: skip
def test_mistakes_in_tables(tmp_path: Path, capsys, spoil, rows, target, message) -> None:
    train = table(tmp_path / "train.csv", rows, spoil=spoil)
    test = table(tmp_path / "test.csv", 20)
    line = refused(capsys, "--table", train, "--test", test, "--target", target)
    assert message in line


def test_mistakes_in_requests(tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)  # no run is there
    path = profile(tmp_path / "toy.jsonl", "toy", 6)
    whole = profile(tmp_path / "whole.jsonl", "whole", 12)
    for arguments, message in (
        ([], "nothing to fit on"),
        (["--table", "no.csv"], "--test is missing"),
        (["--table", "no.csv", "--test", "x.csv", "--target", "y"], "no.csv: no such file"),
        (["--table", "x.csv", "--run", "x", "-n", 7, "--quick", "--target", "z"],
         "--quick, --run, -n would have no effect: --table goes with --test and --target only"),
        (["--profile", whole, "-n", 20], "-n would have no effect: no accuracies are measured"),
        (["--profile", path, "--from", whole, "--workers", 2], "--workers would have no effect"),
        (["--run", tmp_path], "not a run folder"),
        (["--profile", tmp_path / "no.jsonl", "--space", "nano"], "no.jsonl: no such file"),
        (
            ["--profile", path, "--space", "nasvit"],
            "a profile of space 'nano' with {\"channels\":1}, expected space 'nasvit'",
        ),
        (["--profile", path, "--space", "nano", "--channels", 3], "expected space 'nano'"),
        (["--profile", path, "--space", "nono"], "unknown space 'nono'"),
        (["--profile", path], "t1-b1-fp32: 6 rows, at least 10 are needed"),
        (["--profile", path, "--target", "lat"], "unknown target of a profile 'lat'"),
        (["--profile", path, "--target", "energy_mj"], "nothing measured to fit energy_mj on"),
        (["--from", path], "--from needs the profile of the new device"),
        (["--from", path, "--profile", path], "too little to transfer from"),
        (["--from", whole, "--profile", whole], "nothing to transfer from"),
    ):  # fmt: skip
        assert message in refused(capsys, *arguments)


def test_mistakes_in_runs(trained: Path, tmp_path: Path, capsys) -> None:
    without = tmp_path / "without"
    shutil.copytree(trained, without)
    shutil.rmtree(without / "supernet")
    assert "has no supernet yet" in refused(capsys, "--run", without)
    others = tmp_path / "others"
    shutil.copytree(trained, others)
    config = others / "config.toml"
    config.write_text(config.read_text().replace("heldout = 100", "heldout = 99"))
    line = refused(capsys, "--run", others, "-n", 2)
    assert "digits are not those that this training began with" in line
    bare = tmp_path / "bare"
    shutil.copytree(trained, bare)
    os.remove(bare / "config.toml")
    assert "has no config.toml" in refused(capsys, "--run", bare)
    assert "no profile is there" in refused(capsys, "--run", bare, "-n", 0)
    (bare / "profiles").mkdir()
    other = hwnas.space("nasvit")
    pairs = [(arch, 1.0) for arch in other.sample(2, np.random.default_rng(0))]
    write_profile(bare / "profiles" / "x.jsonl", made_up_profile("x", pairs))
    line = refused(capsys, "--run", bare, "-n", 0)
    assert "x.jsonl: a profile of space 'nasvit', expected space 'nano' with" in line
