"""NASViT's blocks as papers print them, for comparison: tokens, linears, heads moved to the end.

Same weights and same mathematics as `hwnas.nets`; this is the form in which the released code
computes, and so what `torch.onnx.export` gets to see without a toolkit.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.nets import PlainNetwork
from hwnas.nets.mbconv import MBConv, SqueezeExcite
from hwnas.nets.norms import EPS, JointNorm, TokenNorm
from hwnas.nets.transformer import MLP, TalkingHeads, Transformer


def textbook(network: PlainNetwork) -> PlainNetwork:
    """Return the same network with textbook modules."""
    network = deepcopy(network).eval()
    for slot, block in network.blocks.items():
        if isinstance(block, Transformer):
            network.blocks[slot] = TextbookTransformer(block)
        elif isinstance(block, MBConv) and block.squeeze is not None:
            block.squeeze = TextbookSqueeze(block.squeeze)
    return network


class TextbookSqueeze(nn.Module):
    def __init__(self, squeeze: SqueezeExcite) -> None:
        super().__init__()
        self.reduce, self.expand = squeeze.reduce, squeeze.expand

    def forward(self, x: Tensor) -> Tensor:
        means = x.mean(3, keepdim=True).mean(2, keepdim=True)
        return x * (F.relu6(self.expand(F.relu(self.reduce(means))) + 3) / 6)


def linear(pointwise: nn.Conv2d) -> nn.Linear:
    made = nn.Linear(pointwise.in_channels, pointwise.out_channels)
    made.weight = nn.Parameter(pointwise.weight.detach()[:, :, 0, 0])
    made.bias = pointwise.bias
    return made


def across_heads(talking: TalkingHeads) -> nn.Linear:
    made = nn.Linear(*talking.weight.shape)
    made.weight, made.bias = talking.weight, talking.bias
    return made


class TextbookMLP(nn.Module):
    def __init__(self, mlp: MLP) -> None:
        super().__init__()
        self.first, self.second = linear(mlp.first), linear(mlp.second)

    def forward(self, x_BNC: Tensor) -> Tensor:
        return self.second(F.silu(self.first(x_BNC)))


class TextbookNorm(nn.Module):
    def __init__(self, norm: JointNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.joint = norm.weight, norm.bias, not isinstance(norm, TokenNorm)

    def forward(self, x_BNC: Tensor) -> Tensor:
        shape = x_BNC.shape[1:] if self.joint else x_BNC.shape[2:]
        weight, bias = self.weight.expand(shape), self.bias.expand(shape)
        return F.layer_norm(x_BNC, shape, weight, bias, EPS)


class TextbookTransformer(nn.Module):
    def __init__(self, block: Transformer) -> None:
        super().__init__()
        self.norms = nn.ModuleList(map(TextbookNorm, (block.norm1, block.norm3, block.norm2)))
        self.mlps = nn.ModuleList(map(TextbookMLP, (block.mlp2, block.mlp1)))
        attention = block.attention
        assert attention.windows == 1, "the released code has no windows"
        self.heads, self.gain = attention.heads, block.gain
        self.q, self.k, self.v = map(linear, (attention.q, attention.k, attention.v))
        self.local, self.project = attention.local, linear(attention.project)
        self.before, self.after = map(across_heads, (attention.before, attention.after))
        self.scales = nn.ParameterList(
            torch.ones(1, 1) if scale is None else scale
            for scale in (block.scale_attention, block.scale_mlp, block.scale_mlp)
        )
        side = (attention.positions.shape[0] + 1) // 2
        rows = torch.cartesian_prod(torch.arange(side), torch.arange(side))
        offsets = rows[:, None] - rows[None] + side - 1
        self.register_buffer(
            "index", (offsets[..., 0] * (2 * side - 1) + offsets[..., 1]).flatten()
        )
        self.positions = nn.Parameter(attention.positions.detach().flatten(0, 1))

    def forward(self, x_BCSS: Tensor) -> Tensor:
        side = x_BCSS.shape[-1]
        x = x_BCSS.flatten(2).transpose(1, 2)
        x = x + self.scales[0] * self.gain * self.attention(self.norms[0](x), side)
        for norm, mlp, scale in zip(self.norms[1:], self.mlps, self.scales[1:], strict=True):
            x = x + scale * self.gain * mlp(norm(x))
        return x.transpose(1, 2).unflatten(2, (side, side))

    def attention(self, x: Tensor, side: int) -> Tensor:
        batch, tokens, _ = x.shape
        value = self.local(self.v(x).transpose(1, 2).unflatten(2, (side, side)))
        value = value.flatten(2).transpose(1, 2)
        q, k, v = (
            part.reshape(batch, tokens, self.heads, -1).permute(0, 2, 1, 3)
            for part in (self.q(x), self.k(x), value)
        )
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
        positions = self.positions[self.index].view(tokens, tokens, self.heads)
        scores = scores + positions.permute(2, 0, 1).unsqueeze(0)
        scores = self.before(scores.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        shares = self.after(scores.softmax(-1).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        out = (shares @ v).transpose(1, 2).reshape(batch, tokens, -1)
        return self.project(F.silu(out))
