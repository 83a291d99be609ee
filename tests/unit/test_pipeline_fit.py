"""What predictors are fitted on, and where they are kept."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import hwnas
from hwnas.cli.main import main
from hwnas.errors import HwnasError
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.deployments import deployments
from hwnas.pipeline.fit import profile_rows
from hwnas.pipeline.predictors import predictors_of
from hwnas.pipeline.rundir import create_run
from hwnas.predictors import CurvePoint, Evaluation, Prediction, score
from hwnas.profiling.profiles import best_records, write_profile
from hwnas.testing.profiles import made_up_profile

NANO = hwnas.space("nano")
PI = "latency-pi-5-onnxruntime-t1-b1-fp32"


def profile(path: Path, device: str, fingerprint: str, n: int = 12, *, poor: int = 0) -> Path:
    """Write the profile of a device whose latencies follow from the MACs; the first are `poor`."""
    archs = spread(NANO, n, seed=0)
    values = (0.2 + NANO.cost(archs).macs / 3e6).tolist()
    found = made_up_profile(device, list(zip(archs, values, strict=True)))
    header = found.header
    named = replace(header, device=replace(header.device, fingerprint=fingerprint))
    records = list(found.records.values())
    graded = [*(replace(record, grade="D") for record in records[:poor]), *records[poor:]]
    write_profile(path, replace(found, header=named, records=best_records(graded)))
    return path


@pytest.mark.parametrize(("first", "second"), [("Pi 5", "pi-5"), ("Pi 5" * 20, "Pi 5" * 21)],
                         ids=["spelling", "length"])  # fmt: skip
def test_devices_whose_names_are_one_as_names_of_folders_are_kept_apart(tmp_path, first, second):
    paths = [profile(tmp_path / "a.jsonl", first, "a" * 16),
             profile(tmp_path / "b.jsonl", second, "b" * 16)]  # fmt: skip
    one, other = profile_rows(paths, NANO)
    assert one.name.endswith("-aaaaaa-onnxruntime-t1-b1-fp32")
    assert other.name == one.name.replace("aaaaaa", "bbbbbb")
    (alone,) = profile_rows(paths[:1], NANO)
    assert alone.name == one.name.replace("-aaaaaa", "")


@pytest.mark.parametrize(("poor", "fitted", "transferred"), [(5, 10, 10), (6, 15, 9), (11, 15, 15)])
def test_poor_measurements_are_left_out_where_enough_others_remain(
    tmp_path, capsys, poor, fitted, transferred
):
    new = profile(tmp_path / "new.jsonl", "new", "a" * 16, n=15, poor=poor)
    (rows,) = profile_rows([new], NANO)
    assert len(rows.values) == fitted
    old = profile(tmp_path / "old.jsonl", "old", "b" * 16)
    assert main(["fit", "--profile", str(new), "--from", str(old), "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictors"]
    assert found["rows"] == transferred
    told = f"{poor} measurements of grade D are left out"
    assert (told in found["remarks"]) == (transferred < 15)


def test_what_more_samples_would_buy_is_told_of_one_size(tmp_path, capsys, monkeypatch):
    def evaluation(genes, costs, truth, **_):
        held_out = Prediction(truth * 1.05, truth * 0.9, truth * 1.1)
        return Evaluation(
            scores=score(truth, *held_out), curve=(CurvePoint(rows=16, mape=5.0),), floor=0.0,
            factor=20.0, power=0.5, fit_cpu_s=0.0, held_out=held_out,
        )  # fmt: skip

    monkeypatch.setattr("hwnas.pipeline.fit.evaluate", evaluation)
    path = profile(tmp_path / "a.jsonl", "board", "a" * 16, n=20)
    assert main(["fit", "--profile", str(path)]) == 0
    text = capsys.readouterr().out
    assert "5.00 % with 16; as it falls, about 4.47 % with 20 and 3.16 % with 40" in text
    assert "20 more samples would buy about 1.31 points of error\n" in text


def test_a_quick_transfer_is_not_evaluated(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hwnas.pipeline.fit._left_out", lambda *_: pytest.fail("evaluated"))
    new = profile(tmp_path / "new.jsonl", "new", "a" * 16)
    old = profile(tmp_path / "old.jsonl", "old", "b" * 16)
    asked = ["fit", "--profile", str(new), "--from", str(old), "--quick", "-n", "0", "--json"]
    assert main(asked) == 0
    (found,) = json.loads(capsys.readouterr().out)["predictors"]
    assert found["scores"] is None


@pytest.fixture
def run(tmp_path):
    """Return a run with a profile of a device that is called Pi 5, and a predictor of it."""
    found = create_run(tmp_path / "run", of=NANO, origin={})
    profile(found.folder / "profiles" / "a.jsonl", "Pi 5", "a" * 16)
    assert main(["fit", "--run", str(found.folder), "-n", "0", "--quick"]) == 0
    assert list(predictors_of(found)) == [PI]
    return found


def refit(run, capsys, *options):
    capsys.readouterr()
    assert main(["fit", "--run", str(run.folder), "-n", "0", "--quick", *options]) == 0
    return capsys.readouterr().err


def test_what_is_fitted_takes_the_place_of_what_had_another_name(run, capsys):
    profile(run.folder / "profiles" / "a.jsonl", "Pi 5", "a" * 16, n=20)
    profile(run.folder / "profiles" / "b.jsonl", "Pi 5", "b" * 16)
    assert f"{PI} is removed" in refit(run, capsys)
    found = deployments(predictors_of(run))
    rows = {one.device: one.predictors["latency_ms"].rows for one in found}
    assert rows == {"Pi 5-aaaaaa": 20, "Pi 5-bbbbbb": 12}
    assert len(list((run.folder / "predictors").iterdir())) == 2
    assert "removed" not in refit(run, capsys)


def test_predictors_that_cannot_be_fitted_again_stay_and_are_told_of(run, capsys):
    other = profile(run.folder.parent / "b.jsonl", "board", "b" * 16)
    assert "stays" not in refit(run, capsys, "--profile", str(other))
    assert "latency-board-onnxruntime-t1-b1-fp32 stays as it was fitted" in refit(run, capsys)
    assert len(deployments(predictors_of(run))) == 2
    assert "stays" not in refit(run, capsys, "--out", str(run.folder.parent / "elsewhere"))


def test_two_predictors_for_one_purpose_are_refused(run):
    folder = run.folder / "predictors"
    shutil.copytree(folder / PI, folder / f".{PI}.old")  # of a fit that was killed
    assert len(deployments(predictors_of(run))) == 1
    shutil.copytree(folder / PI, folder / "copy")
    with pytest.raises(HwnasError, match=f"copy and {PI} predict the latency_ms of one device"):
        deployments(predictors_of(run))
