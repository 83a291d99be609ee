"""A packed model is the fully exported one but for its values: same operators, same latency.

Of architectures that were drawn, too, and in 8 bits. That what takes a few percent more is seen
is tried as well.
"""

import time
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
from hwnas.profiling.packs import stand_in
from hwnas.profiling.records import Settings

pytestmark = pytest.mark.slow

SAME, LONGER = 0.02, 1.05
LEAST_SESSIONS, MOST_SESSIONS, WARM_UP, RUNS = 8, 60, 3, 40
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
    found = ratio(lambda: opened(full, how), lambda: opened(packed, how))
    assert found == pytest.approx(1, abs=SAME)


def test_a_few_percent_more_are_seen(pair):
    full, _ = pair("drawn", "fp32")
    found = ratio(lambda: opened(full, Settings()), lambda: Longer(opened(full, Settings())))
    assert found == pytest.approx(LONGER, abs=SAME)


class Longer:
    """A session whose runs take longer than those of the model by a fixed share."""

    def __init__(self, session):
        self.session, self.close = session, session.close
        self.more_ns = (LONGER - 1) * np.median([cpu_ns(session.run) for _ in range(RUNS)])

    def run(self):
        self.session.run()
        end = time.thread_time_ns() + self.more_ns
        while time.thread_time_ns() < end:
            pass


def opened(path, how):
    session = backend("onnxruntime").open(path, settings=how)
    for _ in range(WARM_UP):
        session.run()
    return session


def ratio(open_one, open_other):
    """Return how many times longer the runs of the other session take."""
    # Neighbours slow a machine down by a third within a second: what is compared are runs that
    # follow each other. And each session lays out its memory anew, which makes out a percent or
    # two: the middle of the middles of many sessions counts, of as many as it takes to know it.
    rng, found = np.random.default_rng(0), []
    while len(found) < MOST_SESSIONS:
        makers = [open_one, open_other]
        first = len(found) % 2
        sessions = {which: makers[which]() for which in (first, 1 - first)}
        quotients = []
        for _ in range(RUNS):
            took = {which: cpu_ns(sessions[which].run) for which in rng.permutation(2)}
            quotients.append(took[1] / took[0])
        for session in sessions.values():
            session.close()
        found.append(np.median(quotients))
        if len(found) >= LEAST_SESSIONS and standard_error(found) <= SAME / 4:
            break
    return np.median(found)


def cpu_ns(run):
    began = time.thread_time_ns()
    run()
    return time.thread_time_ns() - began


def standard_error(values):
    """Return that of the median, from the quartiles, which single strays do not move."""
    low, high = np.quantile(values, (0.25, 0.75))
    return 1.25 * (high - low) / 1.35 / len(values) ** 0.5
