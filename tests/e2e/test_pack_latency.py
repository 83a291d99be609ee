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
from scipy.stats import binom

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

pytestmark = pytest.mark.slow

SAME = 0.02
LEAST_ROUNDS, MOST_ROUNDS, TURNS = 8, 16, 3
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
    low, high = ratio(full, packed, Settings(precision=precision))
    assert low <= 1 + SAME, f"{low:.4f}..{high:.4f}"
    assert high >= 1 - SAME, f"{low:.4f}..{high:.4f}"


def test_another_model_is_not_within_two_percent(pair):
    one, other = (pair(name, "fp32")[0] for name in ("smallest", "drawn"))
    low, _ = ratio(one, other, Settings())
    assert low > 1 + 2 * SAME


def ratio(one, other, how):
    """Return an interval for how many times longer the other model takes."""
    # Memory is laid out anew in each session, and neighbours come and go: what is compared are
    # turns taken one after the other in a round, and what counts is the middle of many rounds.
    paths, found = (one, other), []
    while len(found) < MOST_ROUNDS:
        sessions = [backend("onnxruntime").open(path, settings=how) for path in paths]
        turn = (0, 1) if len(found) % 2 else (1, 0)
        best = [math.inf, math.inf]
        for which in turn * TURNS:
            best[which] = min(best[which], quickest(sessions[which]))
        for session in sessions:
            session.close()
        found.append(best[1] / best[0])
        if len(found) >= LEAST_ROUNDS and is_settled(*middle(found)):
            break
    return middle(found)


def middle(values):
    """Return an interval that holds the median with a probability of 99 % or more."""
    ordered, number = sorted(values), len(values)
    first = max(rank for rank in range(number) if 2 * binom.cdf(rank, number, 0.5) <= 0.01)
    return ordered[first], ordered[-1 - first]


def is_settled(low, high):
    """Return whether more rounds would not change the answer; looking often finds much by luck."""
    return (low >= 1 - SAME and high <= 1 + SAME) or low > 1 + 5 * SAME or high < 1 - 5 * SAME


def quickest(session):
    with privileged() as held:
        clock = "thread_cpu" if held.privilege == "none" else "wall"
        latency = measure(session.run, clock=clock, rest_share=held.rest_share, plan=PLAN)
    return min(latency.samples_ms)
