"""What blocks compute before they have learned anything, alone and in a supernet."""

import pytest
import torch

from hwnas.nets.mbconv import MBConv
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


@pytest.mark.parametrize("name", ["nano", "nasvit"])
def test_subnets_with_and_without_a_shortcut_convolution_start_with_the_same_channels(
    name: str,
) -> None:
    weights = {
        key: tensor
        for key, tensor in Supernet(space(name)).named_parameters()
        if key.endswith("shortcut.weight")
    }
    assert weights
    for key, tensor in weights.items():
        assert torch.equal(tensor.detach()[:, :, 0, 0], torch.eye(*tensor.shape[:2])), key


def test_the_union_of_shortcuts_of_different_shapes_starts_so_too() -> None:
    # 8 to 16 and 16 to 8 channels: no single block has all of the shared tensor.
    shortcut = Supernet(space("nano")).get_parameter("blocks.mb1_0.shortcut.weight")
    assert list(shortcut.shape) == [16, 16, 1, 1]
    assert torch.equal(shortcut.detach()[:, :, 0, 0], torch.eye(16))
