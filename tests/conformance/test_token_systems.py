"""Small copies of systems on tokens, declared with descriptions and modules and nothing else.

Each has what sets its system apart. ViT-ResNAS (Liao et al., 2021): a class token, reductions
between stages, layers that can be absent. ViTAS (Su et al., 2021): a patch size with a stem,
queries and keys of its own; identities anywhere; cyclic sharing.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hwnas.nets import build
from hwnas.nets.norms import BatchNormSiLU
from hwnas.spaces import SPACES, Part, Placed, Requires, Space
from hwnas.spaces.blocks import Operation
from hwnas.testing import SPACE_CHECKS, SUPERNET_CHECKS, randomised_supernet

SIDE, HEAD_DIM = 16, 4


def _linear(cin: int, cout: int, places: int = 1) -> Operation:
    return Operation("linear", cin * cout * places, (cin + 1) * cout, cout * places)


def _conv(cin: int, cout: int, kernel: int, places: int, *, bias: int = 1) -> Operation:
    weights = cin * cout * kernel**2
    return Operation("conv", weights * places, weights + bias * cout, cout * places)


def _norm(channels: int) -> Operation:
    return Operation("norm", 0, 2 * channels, 0)


def _attention(pairs: int, value: int) -> Operation:
    return Operation("attention", 2 * pairs * value, 0, pairs + value)


def _table(entries: int) -> Operation:
    return Operation("table", 0, entries, 0)


@dataclass(frozen=True, kw_only=True)
class Stem:
    """A convolution, then patches as tokens; `norm` is the only batch norm of the network."""

    cin: int
    dim: int
    patch: int

    def side_after(self, side: int) -> int:
        return side // self.patch

    def operations(self, side: int) -> Iterator[Operation]:
        tokens = self.side_after(side) ** 2
        yield _conv(self.cin, 4, 3, side**2, bias=0)
        yield _norm(4)
        yield _conv(4, self.dim, self.patch, tokens)
        yield _table((tokens + 2) * self.dim)


class StemModule(nn.Module):
    AXES = {
        "conv.weight": ("-", "-", "-", "-"),
        "norm.*": ("-",),
        "patches.weight": ("dim", "-", "-", "-"),
        "patches.bias": ("dim",),
        "token": ("-", "dim"),
        "positions": ("-", "dim"),
    }

    def __init__(self, block: Stem) -> None:
        super().__init__()
        self.conv = nn.Conv2d(block.cin, 4, 3, padding=1, bias=False)
        self.norm = BatchNormSiLU(4)
        self.patches = nn.Conv2d(4, block.dim, block.patch, block.patch)
        self.token = nn.Parameter(0.02 * torch.randn(1, block.dim))
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // block.patch) ** 2 + 1, block.dim))

    def forward(self, images: Tensor) -> Tensor:
        patches = self.patches(self.norm(self.conv(images))).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), 1, -1)
        return torch.cat([token, patches], 1) + self.positions


@dataclass(frozen=True, kw_only=True)
class Layer:
    """Attention and MLP; queries and keys are row `patch_row` of `patch_rows`."""

    dim: int
    heads: int
    hidden: int
    patch_row: int = 0
    patch_rows: int = 1

    @property
    def value(self) -> int:
        return self.heads * HEAD_DIM

    def side_after(self, side: int) -> int:
        return side

    def operations(self, side: int) -> Iterator[Operation]:
        tokens = side**2 + 1
        for cin, cout in ((self.dim, self.value),) * 3 + ((self.value, self.dim),):
            yield _linear(cin, cout, tokens)
        yield _attention(tokens**2, self.value)
        yield _linear(self.dim, self.hidden, tokens)
        yield _linear(self.hidden, self.dim, tokens)
        yield _norm(self.dim)
        yield _norm(self.dim)


class LayerModule(nn.Module):
    AXES = {
        "norm?.*": ("dim",),
        "[qk]_weight": ("patch_row", "value", "dim"),
        "[qk]_bias": ("patch_row", "value"),
        "v.weight": ("value", "dim"),
        "v.bias": ("value",),
        "project.weight": ("dim", "value"),
        "project.bias": ("dim",),
        "first.weight": ("hidden", "dim"),
        "first.bias": ("hidden",),
        "second.weight": ("dim", "hidden"),
        "second.bias": ("dim",),
    }

    def __init__(self, block: Layer) -> None:
        super().__init__()
        dim, value = block.dim, block.value
        self.heads = block.heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.q_weight, self.k_weight = (nn.Parameter(torch.randn(1, value, dim)) for _ in "qk")
        self.q_bias, self.k_bias = (nn.Parameter(torch.zeros(1, value)) for _ in "qk")
        self.v, self.project = nn.Linear(dim, value), nn.Linear(value, dim)
        self.first, self.second = nn.Linear(dim, block.hidden), nn.Linear(block.hidden, dim)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        q, k = F.linear(y, self.q_weight[0], self.q_bias[0]), F.linear(
            y, self.k_weight[0], self.k_bias[0]
        )  # fmt: skip
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in (q, k, self.v(y))
        )
        scores = (q @ k.transpose(2, 3) * HEAD_DIM**-0.5).softmax(-1)
        x = x + self.project((scores @ v).transpose(1, 2).flatten(2))
        return x + self.second(F.gelu(self.first(self.norm2(x))))


@dataclass(frozen=True, kw_only=True)
class Reduction:
    """Half as many patches each way, wider: a residual with a pooled and zero-padded shortcut."""

    cin: int
    cout: int
    side: int

    def side_after(self, side: int) -> int:
        return side // 2

    def operations(self, side: int) -> Iterator[Operation]:
        yield _norm(self.cin)
        yield _conv(self.cin, self.cout, 3, (side // 2) ** 2)
        yield _linear(self.cin, self.cout)
        yield _table((side // 2) ** 2 * self.cout)


class ReductionModule(nn.Module):
    AXES = {
        "norm.*": ("cin",),
        "conv.weight": ("cout", "cin", "-", "-"),
        "conv.bias": ("cout",),
        "token.weight": ("cout", "cin"),
        "token.bias": ("cout",),
        "positions": ("-", "cout"),
    }

    def __init__(self, block: Reduction) -> None:
        super().__init__()
        self.side, self.added = block.side, block.cout - block.cin
        self.norm = nn.LayerNorm(block.cin)
        self.conv = nn.Conv2d(block.cin, block.cout, 3, 2, 1)
        self.token = nn.Linear(block.cin, block.cout)
        self.positions = nn.Parameter(0.02 * torch.randn((block.side // 2) ** 2, block.cout))

    def forward(self, x: Tensor) -> Tensor:
        token, patches = self.norm(x).split([1, self.side**2], 1)
        y = self.conv(self._map(patches)).flatten(2).transpose(1, 2) + self.positions
        pooled = F.avg_pool2d(self._map(x[:, 1:]), 2).flatten(2).transpose(1, 2)
        shortcut = F.pad(torch.cat([x[:, :1], pooled], 1), (0, self.added))
        return torch.cat([self.token(token), y], 1) + shortcut

    def _map(self, patches: Tensor) -> Tensor:
        return patches.transpose(1, 2).unflatten(2, (self.side, self.side))


@dataclass(frozen=True, kw_only=True)
class Head:
    """Classifies the class token."""

    dim: int
    classes: int

    def side_after(self, side: int) -> int:
        return 1

    def operations(self, side: int) -> Iterator[Operation]:
        yield _norm(self.dim)
        yield _linear(self.dim, self.classes)


class HeadModule(nn.Module):
    AXES = {"norm.*": ("dim",), "classify.weight": ("-", "dim"), "classify.bias": ("-",)}

    def __init__(self, block: Head) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(block.dim)
        self.classify = nn.Linear(block.dim, block.classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.norm(x[:, 0]))


def vit_resnas(*, classes: int = 5, channels: int = 3) -> Space:
    genes = {"d1": (8, 16), "d2": (16, 24)}
    requires = {}
    parts = [
        Part("stem", ("d1",),
             lambda g: (Placed("stem", Stem(cin=channels, dim=g["d1"], patch=4), SIDE),)),
    ]  # fmt: skip
    for stage, side in (("1", 4), ("2", 2)):
        if stage == "2":
            parts.append(Part("reduce", ("d1", "d2"), lambda g: (
                Placed("reduce", Reduction(cin=g["d1"], cout=g["d2"], side=4), 4),
            )))  # fmt: skip
        for layer in "ab":
            name = f"l{stage}{layer}"
            genes |= {f"{name}.there": (0, 1), f"{name}.heads": (1, 2), f"{name}.hidden": (8, 16)}
            requires |= {
                f"{name}.{of}": Requires(f"{name}.there", (1,)) for of in ("heads", "hidden")
            }

            def blocks(g, name=name, dim=f"d{stage}", side=side) -> tuple[Placed, ...]:
                if not g[f"{name}.there"]:
                    return ()
                block = Layer(dim=g[dim], heads=g[f"{name}.heads"], hidden=g[f"{name}.hidden"])
                return (Placed(name, block, side),)

            own = tuple(gene for gene in genes if gene.startswith(name))
            parts.append(Part(f"stage{stage}", (f"d{stage}", *own), blocks))
    parts.append(
        Part("head", ("d2",), lambda g: (Placed("head", Head(dim=g["d2"], classes=classes), 2),))
    )
    return Space("mini-vit-resnas", genes=genes, requires=requires, parts=tuple(parts), side=SIDE,
                 options={"classes": classes, "channels": channels})  # fmt: skip


def vitas(*, classes: int = 5, channels: int = 3) -> Space:
    patches = (8, 4)  # larger patches are cheaper
    genes = {"patch": patches, "dim": (8, 12, 20)}

    def stem(g) -> tuple[Placed, ...]:
        block = Stem(cin=channels, dim=g["dim"], patch=g["patch"])
        return (Placed(f"stem_{g['patch']}", block, SIDE),)

    parts = [Part("stem", ("patch", "dim"), stem)]
    requires = {}
    for name in ("layer0", "layer1", "layer2"):
        genes |= {f"{name}.kind": ("identity", "attention"), f"{name}.heads": (1, 3, 5)}
        genes[f"{name}.hidden"] = (12, 30)
        requires |= {
            f"{name}.{of}": Requires(f"{name}.kind", ("attention",)) for of in ("heads", "hidden")
        }

        def blocks(g, name=name) -> tuple[Placed, ...]:
            if g[f"{name}.kind"] == "identity":
                return ()
            block = Layer(
                dim=g["dim"], heads=g[f"{name}.heads"], hidden=g[f"{name}.hidden"],
                patch_row=patches.index(g["patch"]), patch_rows=len(patches),
            )  # fmt: skip
            return (Placed(name, block, SIDE // g["patch"]),)

        own = tuple(gene for gene in genes if gene.startswith(name))
        parts.append(Part(name, ("patch", "dim", *own), blocks))

    def head(g) -> tuple[Placed, ...]:
        return (Placed("head", Head(dim=g["dim"], classes=classes), SIDE // g["patch"]),)

    parts.append(Part("head", ("patch", "dim"), head))
    return Space("mini-vitas", genes=genes, requires=requires, parts=tuple(parts), side=SIDE,
                 picks={"patch_row": "private", "dim": "cyclic", "value": "cyclic",
                        "hidden": "cyclic"},
                 options={"classes": classes, "channels": channels})  # fmt: skip


MODULES = {Stem: StemModule, Layer: LayerModule, Reduction: ReductionModule, Head: HeadModule}
SYSTEMS = {"mini-vit-resnas": vit_resnas, "mini-vitas": vitas}


@pytest.fixture(autouse=True)
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "MODULES", {**build.MODULES, **MODULES})
    for name, system in SYSTEMS.items():
        monkeypatch.setitem(SPACES, name, system)


@pytest.mark.parametrize("check", SPACE_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SYSTEMS)
def test_space(name: str, check) -> None:
    check(SYSTEMS[name]())


@pytest.mark.parametrize("check", SUPERNET_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("name", SYSTEMS)
def test_supernet(name: str, check) -> None:
    check(randomised_supernet(SYSTEMS[name]()))
