"""A plain network: blocks in a row, for images of one size."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.errors import UsageError
from hwnas.spaces import Network
from hwnas.spaces.blocks import Block


def run_blocks(
    blocks: Iterable[nn.Module],
    images: Tensor,
    network: Network,
    *,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Return the logits of `images`, which are resized if they have another size."""
    x = fitted(images, network, memory_format=memory_format)
    for block in blocks:
        x = block(x)
    return x


def fitted(
    images: Tensor,
    network: Network,
    *,
    memory_format: torch.memory_format = torch.channels_last,
) -> Tensor:
    """Return the images at the size of the network, in the memory layout its blocks want."""
    if images.dim() != 4 or images.shape[1] != network.channels:
        raise UsageError(
            f"images have shape {tuple(images.shape)}; "
            f"accepted: (batch, {network.channels}, height, width)"
        )
    if images.shape[2:] != (network.side, network.side):
        images = F.interpolate(images, (network.side, network.side), mode="bicubic")
    images = images.contiguous(memory_format=memory_format)
    if memory_format == torch.channels_last and network.channels == 1:
        # One channel fits both layouts; convolutions go by the strides, and the whole network by
        # the first convolution. Images that were stacked from files have those of the other one.
        height, width = images.shape[2:]
        images = images.view(-1, height, width, 1).permute(0, 3, 1, 2)
    return images


class PlainNetwork(nn.Module):
    """The network of one architecture; `description` is what it was built from."""

    def __init__(self, description: Network, build_block: Callable[[Block], nn.Module]) -> None:
        super().__init__()
        self.description = description
        self.blocks = nn.ModuleDict(
            {placed.slot: build_block(placed.block) for placed in description.blocks}
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (batch, channels, height, width)."""
        return run_blocks(self.blocks.values(), images, self.description)
