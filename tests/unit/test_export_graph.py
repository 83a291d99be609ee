"""Graphs from descriptions alone: the same as exported ones, with weights that run normally."""

import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import hwnas
from hwnas.errors import HwnasError, UsageError
from hwnas.export import onnx_from_description, to_onnx
from hwnas.export.blocks import EMITTERS
from hwnas.export.graph import Graph, to_model_bytes
from hwnas.export.weights import position_bias
from hwnas.spaces import Network, Placed

NANO = hwnas.space("nano")


def nano() -> Network:
    return NANO.network(NANO.largest())


def graph_of(data: bytes) -> onnx.GraphProto:
    return onnx.load_model_from_string(data).graph


def test_the_graph_does_not_depend_on_where_weights_come_from(tmp_path):
    from hwnas.nets import build_network

    path = to_onnx(build_network(nano()), tmp_path / "model.onnx")
    exported, described = onnx.load(path).graph, graph_of(onnx_from_description(nano()))
    assert exported.node == described.node
    shapes = [
        [(tensor.name, tensor.dims) for tensor in graph.initializer]
        for graph in (exported, described)
    ]
    assert shapes[0] == shapes[1]


def test_generated_weights_hold_no_zeros_and_nothing_tiny():
    for tensor in graph_of(onnx_from_description(nano())).initializer:
        if tensor.name.startswith(("integers/", "zeros/")):
            continue
        values = np.abs(numpy_helper.to_array(tensor))
        assert values.min() > 1e-12
        assert values.max() < 100


def test_generated_models_depend_on_the_seed_alone():
    assert onnx_from_description(nano(), seed=1) == onnx_from_description(nano(), seed=1)
    assert onnx_from_description(nano(), seed=1) != onnx_from_description(nano(), seed=2)


def test_every_kind_of_block_has_an_emitter():
    from hwnas.nets.build import MODULES

    assert EMITTERS.keys() == MODULES.keys()


def test_an_unknown_kind_of_block_is_named():
    class Strange:
        pass

    network = Network(side=8, channels=3, classes=2, blocks=(Placed("a", Strange(), 8),))
    with pytest.raises(HwnasError, match="Strange"):
        onnx_from_description(network)


def test_windows_move_tokens_and_one_window_moves_none():
    counts = {}
    for windows in (1, 4):
        space = hwnas.space("nasvit-paper", classes=2)
        genes = {**space.smallest(), "t4.windows": windows}
        data = onnx_from_description(space.network(space.arch(genes)))
        nodes = [node for node in graph_of(data).node if node.name.startswith("t4_1/")]
        counts[windows] = Counter(node.op_type for node in nodes)["Transpose"]
    # Six for the norms, two that the runtime folds into products, the result; then one per map.
    assert counts == {1: 9, 4: 13}


def test_networks_without_statistics_are_refused(tmp_path):
    from hwnas.supernet import Supernet

    network = Supernet(NANO).extract(NANO.smallest())
    with pytest.raises(HwnasError, match="no batch-norm statistics") as caught:
        to_onnx(network, tmp_path / "model.onnx")
    assert "calibrate" in caught.value.hint
    assert not list(tmp_path.iterdir())


def test_weights_that_are_not_finite_are_refused(tmp_path):
    import torch

    from hwnas.nets import build_network

    network = build_network(NANO.network(NANO.smallest()))
    with torch.no_grad():
        network.blocks["head"].mix.weight[0, 0] = float("nan")
    with pytest.raises(HwnasError, match=r"blocks\.head\.mix\.weight"):
        to_onnx(network, tmp_path / "model.onnx")


def test_what_is_no_plain_network_is_refused(tmp_path):
    import torch

    with pytest.raises(UsageError, match="Linear"):
        to_onnx(torch.nn.Linear(1, 1), tmp_path / "model.onnx")


@pytest.mark.parametrize("opset", [16, 23])
def test_unknown_opsets_are_refused(opset):
    with pytest.raises(UsageError, match=r"17 to 22"):
        onnx_from_description(nano(), opset=opset)


def test_a_batch_of_nothing_is_refused():
    with pytest.raises(UsageError, match="batch size 0"):
        onnx_from_description(nano(), batch=0)


def test_constants_nobody_reads_are_our_mistake():
    graph = Graph()
    graph.ones(3)
    with pytest.raises(AssertionError, match="nobody reads"):
        to_model_bytes(graph, metadata={})


def test_position_bias_is_the_table_at_each_offset():
    side, heads = 3, 2
    table = np.arange(25 * heads, dtype=np.float32).reshape(5, 5, heads)
    bias = position_bias(table, np.eye(heads, dtype=np.float32), np.zeros(heads, np.float32), side)
    found = bias.reshape(heads, side, side, side, side)
    for row, column, other_row, other_column in np.ndindex(side, side, side, side):
        expected = table[row - other_row + 2, column - other_column + 2]
        assert (found[:, row, column, other_row, other_column] == expected).all()


def test_describing_a_model_needs_no_torch():
    script = (
        "import sys, hwnas, hwnas.export as e; s = hwnas.space('nano');"
        "e.onnx_from_description(s.network(s.smallest())); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
