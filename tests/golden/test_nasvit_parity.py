"""The imported supernet computes what the released code computes.

Goldens: logits of the reference implementation for weights and images made by `fill.py`.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hwnas.errors import FormatError, UsageError
from hwnas.interop import nasvit
from hwnas.sharing.shared import Shared
from hwnas.spaces.blocks import Stem
from hwnas.supernet import Supernet

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "nasvit" / "nasvit_golden.json").read_text())
STEM = Stem(cin=3, cout=24)
spec = importlib.util.spec_from_file_location("fill", HERE / "fill.py")
fill = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fill)


@cache
def state_dict() -> dict[str, torch.Tensor]:
    return {
        name: torch.from_numpy(fill.tensor(name, tuple(shape)))
        for name, shape in GOLDEN["supernet_tensors"].items()
    }


@cache
def imported() -> Supernet:
    return nasvit.supernet_from(state_dict())


@pytest.mark.parametrize("case", GOLDEN["cases"])
def test_subnets_reproduce_the_reference(case: str) -> None:
    config = GOLDEN["cases"][case]
    side = config["resolution"]
    images = torch.from_numpy(fill.normals(f"input:{case}", (2, 3, side, side)))
    arch = nasvit.arch_from(config)
    network = imported().extract(arch).eval()
    activations = []
    for block in network.blocks.values():
        block.register_forward_hook(lambda _module, _inputs, output: activations.append(output))
    with torch.no_grad():
        logits = network(images)
        assert torch.equal(logits, imported().eval()(images, arch))
    with np.load(HERE / "nasvit" / "nasvit_golden.npz") as arrays:
        expected, statistics = arrays[f"{case}.logits"], arrays[f"{case}.block_stats"]
    assert np.abs(logits.numpy() - expected).max() < 1e-5 * np.abs(expected).max()
    # One row per block but the classifier: the first mistake is seen where it is made.
    assert len(statistics) == len(activations) - 1
    for output, (mean, std, _, _) in zip(activations, statistics.tolist(), strict=False):
        assert output.mean().item() == pytest.approx(mean, abs=1e-4 * abs(std))
        assert output.std().item() == pytest.approx(std, rel=1e-4)


def test_calibration_replaces_imported_statistics() -> None:
    supernet = imported()
    arch = supernet.space.smallest()
    images = torch.randn(4, 3, 192, 192, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stored = supernet.extract(arch).eval()(images)
        supernet.calibrate(arch, [images])
        calibrated = supernet.extract(arch).eval()(images)
        assert torch.equal(calibrated, supernet(images, arch))
        supernet._forget_calibration()
        assert not torch.equal(stored, calibrated)
        assert torch.equal(stored, supernet.extract(arch).eval()(images))


def test_other_class_counts_are_read_from_the_file() -> None:
    tensors = dict(state_dict())
    tensors["classifier.linear.linear.weight"] = torch.zeros(7, 1984)
    tensors["classifier.linear.linear.bias"] = torch.zeros(7)
    assert nasvit.supernet_from(tensors).space.options["classes"] == 7


def test_missing_and_misshapen_tensors_are_named() -> None:
    name = "blocks.14.attn.q.linear.weight"
    tensors = {key: value for key, value in state_dict().items() if key != name}
    with pytest.raises(FormatError, match="no tensor 'blocks.14.attn.q.linear.weight'"):
        nasvit.supernet_from(tensors)
    with pytest.raises(FormatError, match=r"blocks.14.attn.q.linear.weight has shape \(3, 3\)"):
        nasvit.supernet_from({**tensors, name: torch.zeros(3, 3)})
    with pytest.raises(FormatError, match="not a NASViT supernet"):
        nasvit.supernet_from({"weight": torch.zeros(1)})


def stem_from(tensors: dict[str, torch.Tensor]) -> Shared:
    """Return the shared first block alone: making all of them takes seconds."""
    stem = Shared([STEM], {})
    nasvit._fill(stem, "stem", tensors)
    return stem.eval()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_files_of_other_precisions_give_networks_that_run(dtype: torch.dtype) -> None:
    stem = stem_from({name: full.to(dtype) for name, full in state_dict().items()})
    assert {tensor.dtype for tensor in stem.state_dict().values()} == {torch.float32}
    with torch.no_grad():
        assert stem.take(STEM)(torch.ones(1, 3, 8, 8)).isfinite().all()


def test_statistics_are_there_for_all_norms_or_for_none() -> None:
    name = "first_conv.bn.bn.running_var"
    tensors = {key: value for key, value in state_dict().items() if key != name}
    with pytest.raises(FormatError, match=f"no tensor '{name}'"):
        stem_from(tensors)
    bare = {key: value for key, value in tensors.items() if "running_" not in key}
    assert not list(stem_from(bare).buffers())


@pytest.mark.parametrize(
    ("name", "value"),
    [("first_conv.bn.bn.weight", float("nan")), ("first_conv.bn.bn.running_mean", 1e300)],
)
def test_entries_that_are_no_finite_numbers_are_named(name: str, value: float) -> None:
    damaged = state_dict()[name].double()
    damaged[0] = value
    with pytest.raises(FormatError, match=f"^{name} has entries that are no finite numbers"):
        stem_from({**state_dict(), name: damaged})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"resolution": 200}, "resolution = 200"),
        ({"depth": [1, 3, 3, 3, 3, 3]}, "a list of 7 numbers"),
        ({"kernel_size": [3, 3, 5, 3, 3, 3, 3]}, "kernel_size of mb3 is 5; accepted: 3"),
        ({"width": None}, "width is None"),
    ],
)
def test_configurations_outside_the_space_are_explained(change, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        nasvit.arch_from({**GOLDEN["cases"]["smallest"], **change})
