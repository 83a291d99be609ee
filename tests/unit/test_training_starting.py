"""Starting from other weights: other channels, other classes, another space."""

import pytest
import torch

import hwnas
from hwnas.supernet import Supernet
from hwnas.testing.supernets import randomised_supernet
from hwnas.training.starting import start_from


def grey() -> torch.Tensor:
    return torch.randn(4, 1, 24, 24, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("channels", [1, 3])
def test_grey_and_colour_images_of_grey_give_the_same(channels: int) -> None:
    """Three equal colours are a grey image, so the same subnet says the same of both."""
    source = randomised_supernet(hwnas.space("nano", channels=4 - channels)).eval()
    supernet = Supernet(hwnas.space("nano", channels=channels)).eval()
    carried = start_from(supernet, source)
    ours, theirs = supernet.space.smallest(), source.space.smallest()
    with torch.no_grad():
        got = supernet(grey().expand(-1, channels, -1, -1), ours)
        wanted = source(grey().expand(-1, 4 - channels, -1, -1), theirs)
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert not carried.fresh
    assert not carried.partly
    says = [line for line in carried.remarks if "channel" in line]
    assert says == [
        "images have 1 channel instead of 3: the first convolution is summed over them"
        if channels == 1
        else "images have 3 channels instead of 1: the first convolution is spread over them"
    ]


def test_the_same_channels_are_not_mentioned() -> None:
    space = hwnas.space("nano", channels=1)
    carried = start_from(Supernet(space), randomised_supernet(space))
    assert carried.channels is None
    assert not any("channel" in line for line in carried.remarks)


def test_tables_of_another_length_are_carried_over_in_part() -> None:
    source = randomised_supernet(hwnas.space("nano", classes=7, scaling="single"))
    supernet = Supernet(hwnas.space("nano", classes=10))
    carried = start_from(supernet, source)
    assert carried.classifier_is_new
    assert carried.fresh == ("blocks.head.classify.weight", "blocks.head.classify.bias")
    assert all("scale_" in name for name in carried.partly)
    assert "in part: blocks.t3_1.scale_attention" in " ".join(carried.remarks)
    table = supernet.get_parameter("blocks.t3_1.scale_mlp")
    assert torch.equal(table[:1], source.get_parameter("blocks.t3_1.scale_mlp"))
    torch.testing.assert_close(table[1:], torch.full_like(table[1:], 0.02))
