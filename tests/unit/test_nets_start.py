"""What networks compute before they have learned anything, alone and in a supernet."""

import pytest
import torch

from hwnas.nets.mbconv import MBConv
from hwnas.nets.network import fitted
from hwnas.spaces import blocks, space
from hwnas.supernet import Supernet


@pytest.mark.parametrize(("cin", "cout"), [(8, 16), (16, 8), (16, 16)])
def test_an_mbconv_starts_as_its_input_with_channels_cut_off_or_added(cin: int, cout: int) -> None:
    description = blocks.MBConv(
        cin=cin, cout=cout, mid=4 * cin, kernel=3, stride=1, expands=True, squeezes=False
    )
    x = torch.randn(4, cin, 6, 6)
    expected = torch.zeros(4, cout, 6, 6)
    passed = min(cin, cout)
    expected[:, :passed] = x[:, :passed]
    assert torch.equal(MBConv(description)(x), expected)


def shortcuts(name: str) -> dict[str, torch.Tensor]:
    return {
        key: tensor.detach()[:, :, 0, 0]
        for key, tensor in Supernet(space(name)).named_parameters()
        if key.endswith("shortcut.weight")
    }


def test_subnets_with_and_without_a_shortcut_convolution_start_with_the_same_channels() -> None:
    weights = shortcuts("nano")
    # 8 to 16 and 16 to 8 channels: no single block has all of the shared tensor.
    assert weights["blocks.mb1_0.shortcut.weight"].shape == (16, 16)
    for key, tensor in weights.items():
        assert torch.equal(tensor, torch.eye(*tensor.shape)), key


@pytest.mark.parametrize("name", ["nasvit", "nasvit-paper", "alphanet"])
def test_spaces_of_papers_start_shortcuts_at_random_as_their_code_does(name: str) -> None:
    weights = shortcuts(name)
    assert weights
    for key, tensor in weights.items():
        assert tensor.std() > 0, key
        assert not torch.equal(tensor, torch.eye(*tensor.shape)), key
        assert abs(float(tensor.diagonal().mean())) < 0.5, key


@pytest.mark.parametrize("side", [24, 30])
@pytest.mark.parametrize("channels", [1, 3])
def test_maps_have_the_layout_of_the_network_whatever_the_images_have(
    channels: int, side: int
) -> None:
    """Grey images stacked from files are in both layouts at once, until strides are looked at."""
    of = space("nano", channels=channels)
    description = of.network(of.smallest())
    images = torch.stack([torch.rand(channels, side, side) for _ in range(4)])
    given = fitted(images, description)
    if side == description.side:
        assert torch.equal(given, images)
    stem = Supernet(of).extract(of.smallest()).blocks["stem"]
    assert stem(given).stride()[1] == 1
