"""Predictors stored by earlier versions load and answer what they answered then."""

from pathlib import Path

import numpy as np
import pytest

from hwnas.io import read_tensors
from hwnas.predictors import Predictor
from hwnas.predictors.card import SCHEMA

SAMPLES = Path(__file__).parent / "predictor"


@pytest.mark.parametrize("version", range(1, SCHEMA.version + 1))
def test_stored_sample(version):
    predictor = Predictor.load(SAMPLES / f"v{version}")
    rows, _ = read_tensors(SAMPLES / f"v{version}-predictions.safetensors")
    found = predictor.predict(rows["genes"], rows["costs"])
    for name, values in found._asdict().items():
        np.testing.assert_allclose(values, rows[name], rtol=1e-4)
    share = predictor.prob_at_most(rows["genes"], rows["costs"], 40.0)
    np.testing.assert_allclose(share, rows["share"], atol=1e-3)
    assert predictor.card.target == "latency_ms"
    assert predictor.card.rows == 48


def test_every_member_of_the_sample_speaks():
    stack = Predictor.load(SAMPLES / "v1").stack
    assert set(stack.names) == {"linear", "logarithmic", "distances", "extra", "repair"}
    assert (stack.weights > 0.0).all()
    assert stack.errors.power[0] > 0.0
