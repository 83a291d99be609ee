"""Write the stored sample of the predictor format: only when the format gets a new version.

    python tests/golden/predictor/write.py

Give the new sample a folder of its own (v2, ...); old samples stay and must load for ever.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hwnas.io import write_tensors
from hwnas.predictors import Predictor
from hwnas.predictors.card import SCHEMA
from hwnas.predictors.stack import Runner

HERE = Path(__file__).parent


def main() -> None:
    rng = np.random.default_rng(5)
    genes = rng.integers(0, 3, (64, 6)).astype(float)
    costs = np.stack([genes @ np.arange(1.0, 7.0), (genes**2).sum(axis=1)], axis=1)
    y = (4.0 + costs[:, 0] + np.sin(genes[:, 0] * costs[:, 1])) * (1 + 0.02 * rng.normal(size=64))
    fitted = Predictor.fit(genes[:48], costs[:48], y[:48], target="latency_ms")
    errors = replace(fitted.stack.errors, power=np.array([0.5]))  # so that every part is heard
    stack = replace(fitted.stack, weights=np.full(len(fitted.stack.names), 0.2), errors=errors)
    predictor = replace(fitted, stack=stack, _runner=Runner(stack))
    predictor.save(HERE / f"v{SCHEMA.version}")
    mean, low, high = predictor.predict(genes[48:], costs[48:])
    rows = {"genes": genes[48:], "costs": costs[48:], "mean": mean, "low": low, "high": high}
    rows["share"] = predictor.prob_at_most(genes[48:], costs[48:], 40.0)
    write_tensors(HERE / f"v{SCHEMA.version}-predictions.safetensors", rows)


if __name__ == "__main__":
    main()
