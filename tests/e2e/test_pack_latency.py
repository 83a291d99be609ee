"""A packed model is the fully exported one but for its values: same operators, same latency.

Of architectures that were drawn, too, and in 8 bits. That another model is not taken for the same
is tried as well.
"""

import math
from functools import cache
from itertools import product

import numpy as np
import onnx
import pytest
import torch

import hwnas
from hwnas.export import to_onnx
from hwnas.export.quantise import quantise_dynamic, quantise_static
from hwnas.nets import build_network
from hwnas.pipeline.models import build_model
from hwnas.profiling.backends import backend
from hwnas.profiling.measure import Plan, measure
from hwnas.profiling.packs import stand_in
from hwnas.profiling.privilege import privileged
from hwnas.profiling.records import Settings

SAME = 0.02
LEAST_ROUNDS, MOST_ROUNDS, TURNS = 3, 80, 4
PLAN = Plan(min_runs=9, max_runs=9)
NASVIT, NANO = hwnas.space("nasvit"), hwnas.space("nano")
ARCHS = {
    "smallest": (NASVIT, NASVIT.smallest()),
    "drawn": (NASVIT, *NASVIT.sample(1, np.random.default_rng(2024), macs=(2.5e8, 4e8))),
    "nano": (NANO, *NANO.sample(1, np.random.default_rng(2024))),
}
MODELS = [
    ("smallest", "fp32"),
    *product(("drawn", "nano"), ("fp32", "int8_dynamic", "int8_static")),
]


def exported(space, arch, precision, path):
    """Write the file of a network with weights of its own, as they are after training."""
    torch.manual_seed(0)
    network = space.network(arch)
    linears = "convolution" if precision == "fp32" else "product"
    to_onnx(build_network(network).eval(), path, linears=linears)
    if precision == "int8_dynamic":
        path.write_bytes(quantise_dynamic(path.read_bytes()))
    if precision == "int8_static":
        shape = (4, network.channels, network.side, network.side)
        images = np.random.default_rng(1).random(shape, np.float32)
        path.write_bytes(quantise_static(path.read_bytes(), [images]))


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Return how to get a network's exported file, and what a device makes of it in a pack."""
    folder = tmp_path_factory.mktemp("models")

    @cache
    def made(name, precision):
        space, arch = ARCHS[name]
        full, packed = (folder / f"{name}.{precision}.{kind}.onnx" for kind in ("full", "packed"))
        exported(space, arch, precision, full)
        packed.write_bytes(stand_in(build_model(arch.to_json(), precision)))
        return full, packed

    return made


@pytest.mark.parametrize(("name", "precision"), MODELS)
def test_the_operators_are_the_same(pair, name, precision):
    full, packed = (onnx.load(path).graph for path in pair(name, precision))
    assert packed.node == full.node
    assert packed.input == full.input
    assert packed.output == full.output
    shapes = [
        {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
        for graph in (full, packed)
    ]
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize(
    ("name", "precision"), [("smallest", "fp32"), ("drawn", "fp32"), ("drawn", "int8_dynamic")]
)
def test_the_latency_is_within_two_percent(pair, name, precision):
    full, packed = pair(name, precision)
    how = Settings(precision=precision)
    assert ratio(full, packed, how, rounds=MOST_ROUNDS) == pytest.approx(1.0, abs=SAME)


def test_another_model_is_not_within_two_percent(pair):
    one, other = (pair(name, "fp32")[0] for name in ("smallest", "drawn"))
    assert ratio(one, other, Settings(), rounds=2 * LEAST_ROUNDS) > 1 + 2 * SAME


def ratio(one, other, how, *, rounds):
    """Return how many times longer the other model takes; stops when it seems to be the same."""
    # Memory is laid out anew in each session, and neighbours come and go: of many short turns,
    # taken one after the other, the best of each counts. On a busy machine that takes more of them.
    paths, best = (one, other), [math.inf, math.inf]
    for number in range(rounds):
        turn = (0, 1) if number % 2 else (1, 0)
        sessions = {which: backend("onnxruntime").open(paths[which], settings=how)
                    for which in turn}  # fmt: skip
        for which in turn * TURNS:
            best[which] = min(best[which], quickest(sessions[which]))
        for session in sessions.values():
            session.close()
        if number + 1 >= LEAST_ROUNDS and abs(best[1] / best[0] - 1.0) <= SAME:
            break
    return best[1] / best[0]


def quickest(session):
    with privileged() as held:
        clock = "thread_cpu" if held.privilege == "none" else "wall"
        latency = measure(session.run, clock=clock, rest_share=held.rest_share, plan=PLAN)
    return min(latency.samples_ms)
