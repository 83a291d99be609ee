"""Predictors stored by earlier versions load and answer what they answered then."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from hwnas.errors import FormatError
from hwnas.io import read_tensors
from hwnas.pipeline.predictors import TRANSFERRED_SCHEMA, load_predictor
from hwnas.predictors import Predictor
from hwnas.predictors.card import SCHEMA
from hwnas.spaces import Space

SAMPLES = Path(__file__).parent / "predictor"
SPACE = Space("golden", genes={f"e{i}": (0, 1, 2) for i in range(4)})


@pytest.mark.parametrize("name", ["v1", "v1-known"])
def test_stored_sample(name):
    predictor = Predictor.load(SAMPLES / name)
    rows, _ = read_tensors(SAMPLES / f"{name}-predictions.safetensors")
    found = predictor.predict(rows["genes"], rows["costs"])
    for name, values in found._asdict().items():
        np.testing.assert_allclose(values, rows[name], rtol=1e-4)
    share = predictor.prob_at_most(rows["genes"], rows["costs"], 40.0)
    np.testing.assert_allclose(share, rows["share"], atol=1e-3)
    assert predictor.in_range(rows["genes"], rows["costs"]).any()
    assert predictor.card.target == "latency_ms"
    assert predictor.card.rows == 48


@pytest.mark.parametrize(("name", "scale"), [("v1", "power"), ("v1-known", "deviation")])
def test_every_member_of_the_sample_speaks(name, scale):
    assert name.startswith(f"v{SCHEMA.version}")
    stack = Predictor.load(SAMPLES / name).stack
    assert set(stack.names) == {"linear", "logarithmic", "distances", "extra", "repair"}
    assert (stack.weights > 0.0).all()
    assert getattr(stack.errors, scale)[0] > 0.0


@pytest.mark.parametrize("version", range(1, TRANSFERRED_SCHEMA.version + 1))
def test_stored_sample_of_a_transfer(version):
    folder = SAMPLES / f"transferred-v{version}"
    predictor = load_predictor(folder, SPACE)
    rows, _ = read_tensors(SAMPLES / f"{folder.name}-predictions.safetensors")
    for name, values in predictor(rows["codes"])._asdict().items():
        np.testing.assert_allclose(values, rows[name], rtol=1e-4)
    share = predictor.prob_at_most(rows["codes"], 5.0)
    assert 0.0 < share.mean() < 1.0
    np.testing.assert_allclose(share, rows["share"], atol=1e-3)
    assert (predictor.target, predictor.rows) == ("latency_ms", 12)
    assert predictor.about["from"] == "old one, old two"
    assert predictor.in_range(rows["codes"]).any()


@pytest.mark.parametrize("sample", ["v1", "transferred-v1"])
def test_newer_versions_are_refused(sample, tmp_path):
    folder = tmp_path / sample
    shutil.copytree(SAMPLES / sample, folder)
    card = json.loads((folder / "card.json").read_text())
    (folder / "card.json").write_text(json.dumps({**card, "version": card["version"] + 1}))
    with pytest.raises(FormatError, match="version 2") as caught:
        load_predictor(folder, SPACE)
    assert caught.value.hint


def test_a_damaged_transfer_is_refused(tmp_path):
    folder = tmp_path / "sample"
    shutil.copytree(SAMPLES / "transferred-v1", folder)
    shutil.rmtree(folder / "sources" / "1")
    with pytest.raises(FormatError, match=r"sources.1.card\.json"):
        load_predictor(folder, SPACE)
