"""Exported files compute what the plain torch network computes, for any architecture."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hwnas
from hwnas.export import to_onnx
from hwnas.nets import PlainNetwork, build_network
from hwnas.nets.norms import BatchNorm

BATCHES = (1, 2, 5)
LIMIT = 1e-4


def randomised(network: PlainNetwork, seed: int) -> PlainNetwork:
    """Give every tensor values that a wrong fold would show in the output."""
    rng = torch.Generator().manual_seed(seed)

    def normal(like: torch.Tensor, scale: float) -> torch.Tensor:
        return torch.randn(like.shape, generator=rng) * scale

    def positive(like: torch.Tensor) -> torch.Tensor:
        return torch.rand(like.shape, generator=rng) + 0.5

    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if "scale_" in name:
                tensor.copy_(positive(tensor) * tensor.shape[-1] / 8)
            elif "positions" in name:
                tensor.copy_(normal(tensor, 1.0))
            elif tensor.dim() > 1:
                tensor.copy_(normal(tensor, float(np.prod(tensor.shape[1:])) ** -0.5))
            elif "norm" in name and name.endswith("weight"):
                tensor.copy_(positive(tensor))
            else:
                tensor.copy_(normal(tensor, 0.3))
        for module in network.modules():
            if isinstance(module, BatchNorm):
                module.running_mean.copy_(normal(module.running_mean, 0.3))
                module.running_var.copy_(positive(module.running_var))
    return network.eval()


def open_session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def relative_differences(network: PlainNetwork, path: Path, batches=BATCHES) -> list[float]:
    session = open_session(path)
    description = network.description
    side, channels = description.side, description.channels
    differences = []
    for batch in batches:
        images = torch.randn(batch, channels, side, side, generator=torch.manual_seed(batch))
        with torch.inference_mode():
            expected = network(images).numpy()
        (found,) = session.run(None, {"images": images.numpy()})
        assert found.shape == expected.shape == (batch, description.classes)
        differences.append(float(np.abs(found - expected).max() / np.abs(expected).max()))
    return differences


CASES = [
    ("nasvit", {}, "smallest"),
    ("nasvit", {"scaling": "none", "classes": 7}, 1),
    ("nasvit", {"scaling": "single", "channels": 1}, 2),
    ("nasvit-paper", {}, "smallest"),  # four windows
    ("nasvit-paper", {"classes": 7}, 3),
    ("alphanet", {}, "smallest"),
    ("alphanet", {"classes": 7, "channels": 1}, 4),
    ("nano", {}, "smallest"),
    ("nano", {}, "largest"),
    ("nano", {"channels": 1, "classes": 2}, 5),
]


@pytest.mark.parametrize(("name", "options", "which"), CASES)
def test_every_space_is_exported_exactly(name, options, which, tmp_path):
    space = hwnas.space(name, **options)
    if isinstance(which, str):
        arch = getattr(space, which)()
    else:
        arch = space.sample(1, np.random.default_rng(which))[0]
    network = randomised(build_network(space.network(arch)), seed=7)
    path = to_onnx(network, tmp_path / "model.onnx")
    assert max(relative_differences(network, path)) < LIMIT
    check_file(path, space.network(arch))


def check_file(path: Path, description) -> None:
    """The written file is plain ONNX without anything superfluous."""
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(model, full_check=True)
    graph = model.graph
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]
    assert {node.domain for node in graph.node} == {""}
    assert not graph.value_info
    assert all(not tensor.external_data for tensor in graph.initializer)
    read = {name for node in graph.node for name in node.input}
    assert {tensor.name for tensor in graph.initializer} <= read
    written = {name for node in graph.node for name in node.output}
    assert written - read == {"logits"}
    slots = {placed.slot for placed in description.blocks}
    assert {node.name.split("/")[0] for node in graph.node} == slots
    assert len({node.name for node in graph.node}) == len(graph.node)
    dims = [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (graph.input[0], graph.output[0])
    ]
    side = description.side
    assert dims == [
        ["batch", description.channels, side, side],
        ["batch", description.classes],
    ]
    assert [value.name for value in (*graph.input, *graph.output)] == ["images", "logits"]


@pytest.mark.parametrize("name", ["nano", "nasvit", "nasvit-paper"])
def test_linears_as_products_are_the_same_network(name, tmp_path):
    space = hwnas.space(name, classes=7)
    description = space.network(space.smallest())
    network = randomised(build_network(description), seed=3)
    path = to_onnx(network, tmp_path / "model.onnx", linears="product")
    assert max(relative_differences(network, path)) < LIMIT
    check_file(path, description)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 2**32 - 1), scaling=st.sampled_from(["switchable", "single", "none"]))
def test_any_nano_architecture_is_exported_exactly(seed, scaling, tmp_path):
    space = hwnas.space("nano", scaling=scaling)
    arch = space.sample(1, np.random.default_rng(seed))[0]
    network = randomised(build_network(space.network(arch)), seed)
    path = to_onnx(network, tmp_path / "model.onnx")
    assert max(relative_differences(network, path)) < LIMIT


def test_a_wrong_weight_would_be_seen(tmp_path):
    space = hwnas.space("nano")
    network = randomised(build_network(space.network(space.smallest())), seed=0)
    path = to_onnx(network, tmp_path / "model.onnx")
    with torch.no_grad():
        network.blocks["t3_1"].attention.after.bias[0] += 0.05
    assert max(relative_differences(network, path)) > LIMIT


def test_a_fixed_batch_is_stated_and_kept(tmp_path):
    space = hwnas.space("nano")
    network = randomised(build_network(space.network(space.smallest())), seed=0)
    path = to_onnx(network, tmp_path / "model.onnx", batch=2, opset=20)
    model = onnx.load(path)
    assert model.opset_import[0].version == 20
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2
    assert max(relative_differences(network, path, batches=(2,))) < LIMIT


def test_the_calibrated_subnet_of_a_supernet_is_exported(tmp_path):
    from hwnas.supernet import Supernet

    space = hwnas.space("nano")
    supernet = Supernet(space).eval()
    arch = space.sample(1, np.random.default_rng(0))[0]
    supernet.calibrate(arch, [torch.randn(8, 3, 32, 32, generator=torch.manual_seed(0))])
    network = supernet.extract(arch)
    path = to_onnx(network, tmp_path / "model.onnx", metadata={"arch": arch.digest})
    assert max(relative_differences(network, path)) < LIMIT
    assert {entry.key: entry.value for entry in onnx.load(path).metadata_props} == {
        "arch": arch.digest
    }
