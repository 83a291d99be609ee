"""Write the stored samples of the predictor formats: only when a format gets a new version.

    python tests/golden/predictor/write.py direct|transferred

Give the new sample a folder of its own (v2, ...); old samples stay and must load for ever.
"""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from hwnas.io import write_tensors
from hwnas.pipeline.predictors import TRANSFERRED_SCHEMA, Direct, Indirect, of_space, said_by
from hwnas.predictors import Predictor, transfer
from hwnas.predictors.card import SCHEMA
from hwnas.predictors.features import features
from hwnas.predictors.stack import Runner
from hwnas.spaces import Space

HERE = Path(__file__).parent
SPACE = Space("golden", genes={f"e{i}": (0, 1, 2) for i in range(4)})


def main() -> None:
    {"direct": write_direct, "transferred": write_transferred}[sys.argv[1]]()


def write_direct() -> None:
    rng = np.random.default_rng(5)
    genes = rng.integers(0, 3, (64, 6)).astype(float)
    costs = np.stack([genes @ np.arange(1.0, 7.0), (genes**2).sum(axis=1)], axis=1)
    y = (4.0 + costs[:, 0] + np.sin(genes[:, 0] * costs[:, 1])) * (1 + 0.02 * rng.normal(size=64))
    fitted = Predictor.fit(genes[:48], costs[:48], y[:48], target="latency_ms")
    assert fitted.stack.errors.deviation[0] > 0.0  # so that every part is heard
    stack = replace(fitted.stack, weights=np.full(len(fitted.stack.names), 0.2))
    predictor = replace(fitted, stack=stack, _runner=Runner(stack))
    folder = HERE / f"v{SCHEMA.version}-known"  # v1 itself has no known rows
    predictor.save(folder)
    mean, low, high = predictor.predict(genes[48:], costs[48:])
    rows = {"genes": genes[48:], "costs": costs[48:], "mean": mean, "low": low, "high": high}
    rows["share"] = predictor.prob_at_most(genes[48:], costs[48:], 40.0)
    write_tensors(HERE / f"{folder.name}-predictions.safetensors", rows)


def write_transferred() -> None:
    rng = np.random.default_rng(6)
    codes = SPACE.sample_codes(40, rng)
    clean = 3.0 + codes @ np.array([4.0, 2.0, 1.0, 0.5]) + codes[:, 0] * codes[:, 1]
    sources = tuple(_source(codes[:20], clean[:20] ** power, name) for power, name in
                    ((1.0, "old one"), (0.7, "old two")))  # fmt: skip
    y = 0.5 * clean[20:32] ** 1.1 * (1 + 0.02 * rng.normal(size=12))
    new = Indirect(
        space=SPACE,
        transferred=transfer(said_by(sources, codes[20:32]), y),
        sources=sources,
        target="latency_ms",
        rows=len(y),
        about={**of_space(SPACE), "device": "new", "from": "old one, old two"},
    )
    folder = HERE / f"transferred-v{TRANSFERRED_SCHEMA.version}"
    new.save(folder)
    mean, low, high = new(codes)
    rows = {"codes": codes, "mean": mean, "low": low, "high": high}
    rows["share"] = new.prob_at_most(codes, 5.0)
    write_tensors(HERE / f"{folder.name}-predictions.safetensors", rows)


def _source(codes: np.ndarray, y: np.ndarray, name: str) -> Direct:
    there = features(SPACE, codes)
    predictor = Predictor.fit(
        there.genes, there.costs, y, gene_names=there.gene_names, target="latency_ms",
        about={**of_space(SPACE), "device": name},
    )  # fmt: skip
    return Direct(space=SPACE, predictor=predictor)


if __name__ == "__main__":
    main()
