"""A made-up run that holds everything: what tests of reports take for a finished one.

Its networks are described and costed, not trained; accuracies and latencies follow formulas with
noise. All files are written by the library's own writers.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.export.artifact import Manifest, ModelEntry, write_manifest
from hwnas.export.metadata import PLANES
from hwnas.io import Journal, write_atomic
from hwnas.io.preprocessing import Preprocessing
from hwnas.pipeline.accuracies import FILE as ACCURACIES_FILE
from hwnas.pipeline.accuracies import SCHEMA as ACCURACIES_SCHEMA
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.explanations import Explained, write_explanation
from hwnas.pipeline.fit import accuracy_rows, fit_rows, profile_rows
from hwnas.pipeline.fronts import (
    Answer,
    Choice,
    Estimate,
    Front,
    Verified,
    add_verified,
    write_front,
)
from hwnas.pipeline.predictors import ACCURACY, LATENCY, SpacePredictor
from hwnas.pipeline.rundir import Run, complete_run, create_run
from hwnas.profiling.explain import Explanation, Row
from hwnas.profiling.profiles import write_profile
from hwnas.profiling.records import Settings
from hwnas.search.evolution import spread as drawn
from hwnas.spaces import Arch, Space, space
from hwnas.testing.profiles import made_up_profile

STEP = 1082
DEVICE = "Toy board"
_SETTINGS = {"backend": "onnxruntime", "precision": "fp32", "threads": 1, "batch": 1}
_RECIPE = """[data]
name = "fashion-mnist"
heldout = 8000.0

[schedule]
epochs = 2
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How much a made-up run holds. `evaluated`: predictors are cross-validated, which is slow."""

    measured: int = 24
    drawn: int = 600
    steps: int = STEP
    evaluated: bool = False
    seed: int = 0


def made_up_run(folder: Path, sizes: Sizes = Sizes()) -> Run:
    """Return a complete run of the space nano in `folder`."""
    of = space("nano", channels=1)
    run = create_run(folder, of=of, origin={"recipe": "0" * 64, "start": ""})
    write_atomic(folder / "config.toml", _RECIPE)
    write_atomic(folder / "supernet" / "LATEST", f"step-{STEP}.safetensors\n")
    write_events(folder / "events.jsonl", steps=sizes.steps, seed=sizes.seed)
    archs = spread(of, sizes.measured, seed=sizes.seed)
    _write_accuracies(run, of, archs, sizes)
    values = latencies(of, archs, seed=sizes.seed).tolist()
    profile = made_up_profile(DEVICE, list(zip(archs, values, strict=True)), space=of)
    write_profile(folder / "profiles" / "toy-board.jsonl", profile)
    predictors = _fitted(run, of, quick=not sizes.evaluated)
    front = made_up_front(of, predictors, sizes)
    write_front(run, front)
    add_verified(run, made_up_verified(of, front, seed=sizes.seed))
    write_landmarks(folder / "search" / "landmarks.jsonl")
    recommended = front.choices[front.answers[0].recommended or 0]
    write_explanation(folder, made_up_explanation(of, recommended))
    write_artifact(folder / "artifacts" / recommended.digest[:12], of, recommended)
    return complete_run(run)


def accuracies(of: Space, archs: list[Arch], *, seed: int) -> NDArray[np.float64]:
    """Return made-up accuracies: more computation helps less and less."""
    macs = of.cost(archs).macs / 1e6
    noise = np.random.default_rng(seed).normal(0.0, 0.0025, len(archs))
    depth = np.array([sum(int(v) for k, v in a.items() if k.endswith("depth")) for a in archs])
    share = 0.905 - 0.075 * np.power(np.maximum(macs, 0.1), -0.55) + 0.0012 * (depth - 8)
    return np.asarray(np.clip(share + noise, 0.0, 1.0))


def latencies(of: Space, archs: list[Arch], *, seed: int) -> NDArray[np.float64]:
    """Return made-up latencies in ms: computation, memory, and a fixed cost per layer."""
    costs = of.cost(archs)
    clean = 0.15 * costs.macs / 1e6 + np.sqrt(costs.activations) / 900 + 0.045 * costs.layers
    return np.asarray(clean * np.exp(np.random.default_rng(seed).normal(0, 0.012, len(clean))))


def write_events(path: Path, *, steps: int, seed: int) -> None:
    """Write the journal of a training of so many steps."""
    rng = np.random.default_rng(seed)
    roles = {"largest": 0.22, "random": 0.33, "smallest": 0.34}
    with Journal(path) as journal:
        for step in range(0, steps, 10):
            losses = {
                role: float(end + (2.3 - end) * np.exp(-step / 160) + rng.normal(0, 0.035))
                for role, end in roles.items()
            }
            event = {"kind": "step", "step": step, "epoch": int(2 * step / steps),
                     "learning_rate": 0.0025, "losses": losses, "updated": True}  # fmt: skip
            if step % 50 == 0:
                event["conflict_ratio"] = float(0.06 + 0.1 * rng.random())
            journal.append(event)
        for share in (0.5, 1.0):
            accuracy = {"smallest": 0.858, "largest": 0.885, "random 0": 0.846, "random 1": 0.854}
            journal.append(
                {"kind": "evaluation", "step": round(share * steps), "epoch": round(2 * share) - 1,
                 "accuracy": {name: a - 0.05 * (1 - share) for name, a in accuracy.items()}}
            )  # fmt: skip
        journal.append({"kind": "speed", "step": steps, "images_per_second": 1234.5})


def made_up_front(of: Space, predictors: dict[str, SpacePredictor], sizes: Sizes) -> Front:
    """Return the best of many random architectures by the predictors, with two answers."""
    codes = np.unique(drawn(of, sizes.drawn, np.random.default_rng(sizes.seed)), axis=0)
    accuracy, latency = predictors[ACCURACY](codes), predictors[LATENCY](codes)
    order = np.lexsort((-accuracy.mean, latency.mean))
    best = -np.inf
    rows = []
    for row in order.tolist():
        if accuracy.mean[row] > best:
            best = float(accuracy.mean[row])
            rows.append(row)
    costs = of.cost(codes)
    choices = tuple(
        Choice(
            digest=arch.digest,
            genes=dict(arch),
            predicted={
                name: Estimate(
                    mean=float(found.mean[row]),
                    low=float(found.low[row]),
                    high=float(found.high[row]),
                )
                for name, found in (("accuracy", accuracy), ("latency", latency))
            },
            costs={
                "macs": float(costs.macs[row]),
                "params": float(costs.params[row]),
                "size": 4.0 * float(costs.params[row]),
            },
            settings=_SETTINGS,
        )
        for row, arch in zip(rows, of.decode(codes[rows]), strict=True)
    )
    return Front(
        space=of.name,
        options=dict(of.options),
        choices=choices,
        answers=tuple(_answer(choices, share) for share in (0.35, 0.7)),
        provenance={"engine": "nsga2", "seed": sizes.seed, "evaluations": 25600},
        created="2026-01-02T03:04:05+00:00",
    )


def made_up_verified(of: Space, front: Front, *, seed: int) -> list[Verified]:
    """Return measurements of the recommended choices of a front and of their neighbours."""
    found = []
    for answer in front.answers:
        for index in answer.listed:
            choice = front.choices[index]
            arch = of.arch(choice.genes)
            measured = {
                "accuracy": float(accuracies(of, [arch], seed=seed + index)[0]),
                "latency": float(latencies(of, [arch], seed=seed + index)[0]),
            }
            limit = float(answer.budget.removeprefix("latency ").removesuffix("ms"))
            found.append(
                Verified(
                    digest=choice.digest, budget=answer.budget, predicted=choice.predicted,
                    measured=measured, settings=choice.settings,
                    met=measured["latency"] <= limit, device=DEVICE, grade="A", step=STEP,
                )
            )  # fmt: skip
    return found


def write_landmarks(path: Path) -> None:
    """Write two hand-made networks."""
    with Journal(path) as journal:
        journal.append({"name": "ResNet-8", "kind": "hand-made", "accuracy": 0.872,
                        "latency": 1.9, "macs": 12.5e6})  # fmt: skip
        journal.append({"name": "MobileNetV3, 28 px", "kind": "hand-made", "accuracy": 0.861,
                        "latency": 1.35, "macs": 4.1e6})  # fmt: skip


def made_up_explanation(of: Space, choice: Choice) -> Explained:
    """Return a made-up explanation of a choice, whose blocks are those of its network."""
    arch = of.arch(choice.genes)
    blocks = [placed.slot for placed in of.network(arch).blocks]
    weights = np.random.default_rng(0).uniform(0.2, 1.0, len(blocks))
    total = choice.predicted["latency"].mean
    times = total * weights / weights.sum()
    rows = [
        Row(
            block=block, ms=ms, share=ms / total,
            operators={"Conv": 0.6 * ms, "MatMul": 0.25 * ms, "Softmax": 0.1 * ms,
                       "Reshape": 0.05 * ms},
        )
        for block, ms in zip(blocks, times.tolist(), strict=True)
    ]  # fmt: skip
    return Explained(
        arch=arch.to_json(),
        macs=int(choice.costs["macs"]),
        device=DEVICE,
        backend="onnxruntime",
        settings=Settings(),
        found=Explanation(
            total_ms=total,
            timers_ms=0.1,
            rows=tuple(sorted(rows, key=lambda row: -row.ms)),
        ),
    )


def write_artifact(folder: Path, of: Space, choice: Choice) -> None:
    """Write the manifest of two exported precisions of a choice; the files hold no networks."""
    side = of.network(of.arch(choice.genes)).side
    write_atomic(folder / "model.onnx", b"fp32" * 100_000)
    write_atomic(folder / "model.int8_dynamic.onnx", b"int8" * 30_000)
    latency, accuracy = choice.predicted["latency"].mean, choice.predicted["accuracy"].mean
    models = tuple(
        ModelEntry(
            file=file, precision=precision, opset=17, batch=None, difference=1e-6, agreement=1.0,
            accuracy=accuracy - lost, images=500,
            latency={"median_ms": factor * latency, "p99_ms": 1.1 * factor * latency,
                     "threads": 1, "batch": 1, "grade": "A", "device": DEVICE},
        )
        for file, precision, lost, factor in (
            ("model.onnx", "fp32", 0.001, 1.01),
            ("model.int8_dynamic.onnx", "int8_dynamic", 0.006, 1.2),
        )
    )  # fmt: skip
    manifest = Manifest(
        arch=of.arch(choice.genes).to_json(),
        options=dict(of.options),
        digest=choice.digest,
        weights="0" * 64,
        supernet={"step": STEP},
        data={"name": "fashion-mnist"},
        preprocessing=Preprocessing(
            size=side, crop=28, resize=28, interpolation="bicubic", mean=(0.3,), std=(0.35,),
            channels="L",
        ),
        input=PLANES,
        classes=tuple(f"class {number}" for number in range(10)),
        models=models,
        recommended="model.onnx",
        promised={
            name: {"mean": e.mean, "low": e.low, "high": e.high}
            for name, e in choice.predicted.items()
        },
        measured={},
        versions={},
        created="2026-01-02T03:04:05+00:00",
    )  # fmt: skip
    write_manifest(folder, manifest)


def _answer(choices: tuple[Choice, ...], share: float) -> Answer:
    latency = [choice.predicted["latency"] for choice in choices]
    ends = sorted(estimate.high for estimate in latency)
    limit = round(ends[int(share * len(ends))] + 0.05, 1)
    feasible = [index for index, estimate in enumerate(latency) if estimate.high <= limit]
    best = feasible[-1]
    return Answer(
        budget=f"latency {limit:g}ms",
        recommended=best,
        knee=feasible[len(feasible) // 2],
        reason=f"the highest predicted accuracy of {len(feasible)} that keep the budget",
        feasible=len(feasible),
        listed=tuple(reversed(feasible[-3:])),
    )


def _fitted(run: Run, of: Space, *, quick: bool) -> dict[str, SpacePredictor]:
    groups = [accuracy_rows(run), *profile_rows([run.folder / "profiles" / "toy-board.jsonl"], of)]
    found = {}
    for rows in groups:
        folder = run.folder / "predictors" / rows.name
        found[rows.target] = fit_rows(rows, of, folder=folder, quick=quick).predictor
    return found


def _write_accuracies(run: Run, of: Space, archs: list[Arch], sizes: Sizes) -> None:
    with Journal(run.folder / ACCURACIES_FILE) as journal:
        journal.append(
            ACCURACIES_SCHEMA.stamp(
                {"space": of.name, "options": dict(of.options), "step": STEP, "part": "heldout"}
            )
        )
        for arch, accuracy in zip(archs, accuracies(of, archs, seed=sizes.seed), strict=True):
            journal.append(
                {"arch": arch.to_json(), "digest": arch.digest, "accuracy": float(accuracy),
                 "images": 8000, "seconds": 0.1}
            )  # fmt: skip
