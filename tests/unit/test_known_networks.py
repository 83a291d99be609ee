"""Networks of timm by name: what they cost, which are chosen, what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from hwnas.errors import HwnasError, UsageError
from hwnas.export.foreign import foreign_bytes, in_precision
from hwnas.io import onnxwire
from hwnas.nets import build_network
from hwnas.pipeline.known_networks import (
    Images,
    build,
    candidates_for,
    count_macs,
    folder_name,
    known,
    usual,
)
from hwnas.spaces import space
from hwnas.supernet import calibrate
from hwnas.supernet.lone import LoneNetwork

SMALL = Images(classes=10, channels=1, side=28)
VIT = "vit_tiny_patch16_224:patch_size=4:embed_dim=64:depth=2:num_heads=4"


@pytest.mark.parametrize("end", ["smallest", "largest"])
def test_macs_are_those_that_spaces_count(end: str) -> None:
    nano = space("nano", channels=1)
    arch = getattr(nano, end)()
    network = build_network(nano.network(arch))
    assert count_macs(network, SMALL) == nano.cost([arch]).macs[0]
    assert network.training


def test_macs_of_a_transformer_include_its_attention() -> None:
    tokens, dim = 7 * 7 + 1, 64
    block = tokens * (4 + 2 * 4) * dim**2 + 2 * tokens**2 * dim
    assert known(VIT, SMALL).macs == 49 * 16 * dim + 2 * block + dim * 10


def test_equal_seeds_build_equal_networks() -> None:
    first, second = (build("test_resnet", SMALL, seed=3).state_dict() for _ in range(2))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    other = build("test_resnet", SMALL, seed=4).state_dict()
    assert not torch.equal(first["conv1.0.weight"], other["conv1.0.weight"])


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("resnet10tt", r"unknown network 'resnet10tt'; did you mean resnet10t"),
        ("resnet10t:depth", r"'depth' in 'resnet10t:depth'; accepted: NAME:ARGUMENT=VALUE"),
        ("resnet10t:num_classes=7", r"num_classes in .* follows from the data"),
        ("resnet10t:no_such=1", r"resnet10t:no_such=1 does not take 1 channels of 28 pixels"),
        ("convnext_atto", r"convnext_atto does not take 1 channels of 28 pixels: Calculated"),
    ],
)
def test_what_does_not_fit_is_refused(entry: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        build(entry, SMALL, seed=0)
    assert caught.value.hint


def test_names_of_folders_are_different_and_safe() -> None:
    entries = ["resnet10t", VIT, "a:b=[1, 2]", "a:b=[1,2]", "a:b=(1, 2]", "hf-hub/x", "hf-hub-x"]
    names = [folder_name(entry) for entry in entries]
    assert len(set(names)) == len(entries)
    assert not any(set(name) & set("/ :[]()") for name in names)
    assert names[0] == "resnet10t"


def test_the_usual_ones_cost_about_as_much_as_the_space() -> None:
    found = usual(SMALL, (0.8e6, 6.6e6))
    macs = [one.macs for one in found]
    assert len(found) == len({one.entry for one in found}) == 5
    assert macs == sorted(macs)
    assert 0.4e6 <= macs[0] < 2e6
    assert 4e6 < macs[-1] <= 13.2e6
    assert found == usual(SMALL, (0.8e6, 6.6e6))
    kinds = candidates_for(28)
    assert all(any(one.entry in entries for one in found) for entries in kinds.values())


def test_sizes_decide_which_are_well_known() -> None:
    small, middling, large = (
        {entry for entries in candidates_for(side).values() for entry in entries}
        for side in (28, 96, 224)
    )
    assert middling < small
    assert middling < large
    assert "deit_tiny_patch16_224" in large - small
    assert "test_resnet" in small - large


def test_candidates_that_do_not_fit_are_told_and_left_out() -> None:
    notes: list[str] = []
    found = usual(
        SMALL, (1e6, 4e6), candidates={"any": ["convnext_atto", "test_resnet", "resnet18"]},
        note=notes.append,
    )  # fmt: skip
    assert [one.entry for one in found] == ["test_resnet"]
    assert len(notes) == 1
    assert "convnext_atto" in notes[0]
    with pytest.raises(HwnasError, match="no network that is known here costs") as caught:
        usual(SMALL, (1.0, 2.0), candidates={"any": ["test_resnet"]})
    assert "hwnas landmarks --run RUN" in caught.value.hint


def test_any_batch_norms_are_calibrated_and_keep_their_momenta() -> None:
    network = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=0.03, affine=False), nn.Flatten(),
        nn.Linear(3 * 4, 2), nn.BatchNorm1d(2, momentum=0.2),
    )  # fmt: skip
    batches = [torch.randn(8, 1, 4, 4), torch.randn(8, 1, 4, 4)]
    network.train()
    calibrate(network, batches)
    first = network[0](torch.cat(batches))
    assert torch.allclose(network[1].running_mean, first.mean((0, 2, 3)), atol=1e-6)
    assert (network[1].momentum, network[4].momentum) == (0.03, 0.2)
    assert all(part.training for part in network.modules())


def test_a_lone_network_is_a_supernet_of_one() -> None:
    network = build("test_resnet", SMALL, seed=0)
    lone = LoneNetwork(network, name="test_resnet", options={"classes": 10, "channels": 1})
    assert lone.space.count() == 1
    images, arch = torch.randn(4, 1, 28, 28), lone.space.largest()
    copied = lone.extract(arch)
    lone.eval()
    assert torch.equal(lone(images, arch), network(images))
    assert torch.allclose(copied.eval()(images), network(images), atol=1e-5)
    for parameter in lone.parameters():
        parameter.data.zero_()
    assert copied(images).abs().max() > 0


def test_eight_bits_where_there_are_products() -> None:
    def calibration() -> list[np.ndarray]:
        return [np.zeros((1, 1, 28, 28), np.float32)]

    wanted = {"test_resnet": "fp32", VIT: "int8_dynamic"}
    for entry, precision in wanted.items():
        model = foreign_bytes(build(entry, SMALL, seed=0), shape=SMALL.shape, batch=1)
        assert not onnxwire.external_files(model)
        made, got = in_precision(model, "int8_dynamic", calibration=calibration)
        assert got == precision
        assert (made == model) == (precision == "fp32")
        assert in_precision(model, "fp32", calibration=calibration) == (model, "fp32")


def test_what_torch_cannot_write_is_told() -> None:
    class Choosing(nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.mean((2, 3)) if float(images.sum()) > 0 else images.amax((2, 3))

    with pytest.raises(HwnasError, match="torch cannot write Choosing as ONNX"):
        foreign_bytes(Choosing(), shape=SMALL.shape, batch=1)
