"""Our networks in timm's registry, one model for every declared space that has networks.

    import hwnas.timm_models
    timm.create_model("hwnas_nasvit", arch="smallest", num_classes=10)
    timm.create_model("hwnas_nano", arch="runs/x/subnets/3f2a...", pretrained=True)
    timm.create_model("hwnas_nasvit", arch=..., features_only=True, out_indices=(1, 2, 3))

`arch` is the folder of an extracted subnet (whose weights `pretrained=True` loads, also with
another number of classes), a file with an architecture, its genes, "smallest" or "largest".
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hwnas.errors import UsageError, unknown_name
from hwnas.io.preprocessing import Preprocessing
from hwnas.nets import PlainNetwork, build_block
from hwnas.nets.network import fitted
from hwnas.nets.regularise import disturb
from hwnas.profiling.sampling import read_archs
from hwnas.spaces import Arch, Network, Space, space, space_names
from hwnas.spaces.blocks import Block
from hwnas.supernet.card import CARD_FILE, read_card
from hwnas.supernet.subnet import (
    ARCH_FILE,
    WEIGHTS_FILE,
    drop_absent_statistics,
    read_arch,
)
from hwnas.training.vision import import_timm

_models = import_timm("models")
_features = import_timm("models._features")
_Getter: Any = _features.FeatureGetterNet

__all__ = ["TimmNetwork", "default_cfgs"]  # a list: timm adds the models' names

Genes = Mapping[str, Any]
_PREFIX = "hwnas_"


class TimmNetwork(PlainNetwork):
    """A plain network with the attributes and methods that timm's models have.

    Its parameters have the names of a plain network, so weights of either fit the other. Maps of
    other sizes than the network's are scaled to its size before the first block.
    """

    def __init__(
        self,
        description: Network,
        *,
        num_classes: int,
        in_chans: int,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__(description, build_block)
        assert in_chans == description.channels
        self.in_chans = in_chans
        self.feature_info = _feature_info(description)
        self.num_features: int = self.feature_info[-1]["num_chs"]
        self.head_hidden_size: int = self._head.classify.in_features
        self.num_classes = description.classes
        self.drop_rate = drop_rate
        for index, block in enumerate(self.blocks.values()):
            share = index / len(self.blocks)
            disturb(block, dropout=drop_rate, drop_path=drop_path_rate * share)
        if num_classes != description.classes:
            self.reset_classifier(num_classes)

    @property
    def _head(self) -> Any:  # noqa: ANN401 - any block that has `embed` and `classify`
        return list(self.blocks.values())[-1]

    def get_classifier(self) -> nn.Module:
        """Return the last linear layer, or an identity."""
        layer: nn.Module = self._head.classify
        return layer

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """Replace the last linear layer; none for 0 classes. There is one kind of pooling."""
        if global_pool not in (None, "avg"):
            raise UsageError(f"global_pool is {global_pool!r}; accepted: avg")
        like = next(self.parameters())
        self.num_classes = num_classes
        self._head.classify = (
            nn.Linear(self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype)
            if num_classes
            else nn.Identity()
        )

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:  # noqa: ANN401 - as in nn.Module
        """Load weights, as in torch; those of a subnet that was not calibrated, too."""
        drop_absent_statistics(self, state_dict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)

    def forward_features(self, x: Tensor) -> Tensor:
        """Return the last map of images x."""
        x = fitted(x, self.description)
        for block in list(self.blocks.values())[:-1]:
            x = block(x)
        return x

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Return the logits of the last map, or with `pre_logits` what is classified."""
        head = self._head
        embedded: Tensor = head.drop(head.embed(x))
        logits: Tensor = embedded if pre_logits else head.classify(embedded)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images."""
        return self.forward_head(self.forward_features(images))

    def forward_intermediates(  # noqa: PLR0917 - timm's signature
        self,
        x: Tensor,
        indices: int | Sequence[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Return the last map of each stride that `indices` names, and the last of all."""
        if output_fmt != "NCHW":
            raise UsageError(f"output_fmt is {output_fmt!r}; accepted: NCHW")
        taken, _ = _features.feature_take_indices(len(self.feature_info), indices)
        wanted = {self.feature_info[index]["module"].removeprefix("blocks.") for index in taken}
        maps: list[Tensor] = []
        x = fitted(x, self.description)
        slots = [placed.slot for placed in self.description.blocks[:-1]]
        for slot in slots:
            if slot not in self.blocks or (stop_early and len(maps) == len(wanted)):
                break
            x = self.blocks[slot](x)
            if slot in wanted:
                maps.append(x)
        return maps if intermediates_only else (x, maps)

    def prune_intermediate_layers(
        self,
        indices: int | Sequence[int] = 1,
        prune_norm: bool = False,
        prune_head: bool = True,
    ) -> list[int]:
        """Remove the blocks after the last map that `indices` names; return these, from 0 on."""
        taken, last = _features.feature_take_indices(len(self.feature_info), indices)
        slots = [placed.slot for placed in self.description.blocks[:-1]]
        end = slots.index(self.feature_info[last]["module"].removeprefix("blocks."))
        for slot in slots[end + 1 :]:
            del self.blocks[slot]
        if prune_head:
            del self.blocks[self.description.blocks[-1].slot]
        return list(taken)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Refuse: blocks keep so little for the backward pass that it is not provided."""
        if enable:
            raise UsageError("gradient checkpointing is not supported by these networks")


class Maps(_Getter):  # type: ignore[misc] # timm is untyped
    """What `features_only=True` gives: a list of maps. Loads weights of the whole network, too."""

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:  # noqa: ANN401 - as in nn.Module
        """Load weights; those of blocks that were pruned are left out."""
        if not any(name.startswith("model.") for name in state_dict):
            kept = {".".join(name.split(".")[:2]) for name in self.model.state_dict()}
            state_dict = {
                f"model.{name}": value
                for name, value in state_dict.items()
                if ".".join(name.split(".")[:2]) in kept
            }
        drop_absent_statistics(self, state_dict)
        return super().load_state_dict(state_dict, strict=strict, assign=assign)


def _feature_info(description: Network) -> list[dict[str, Any]]:
    """Return, for each stride, the channels of its last map and the block that makes it."""
    info: dict[int, dict[str, Any]] = {}
    reduction = 1
    for placed in description.blocks[:-1]:
        reduction *= ceil(placed.side / placed.block.side_after(placed.side))
        info[reduction] = {
            "num_chs": _width(placed.block),
            "reduction": reduction,
            "module": f"blocks.{placed.slot}",
        }
    return list(info.values())


def _width(block: Block) -> int:
    for name in ("cout", "dim"):
        if hasattr(block, name):
            return int(getattr(block, name))
    raise LookupError(f"{type(block).__name__} does not say how many channels its map has")


# -- what `arch` may be -------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    space: Space
    arch: Arch
    folder: Path | None = None


def _resolve(name: str, arch: object, options: Mapping[str, Any]) -> _Wanted:
    if isinstance(arch, str | Path):
        return _resolve_text(name, arch, options)
    of = space(name, **options)
    if isinstance(arch, Arch):
        return _Wanted(space=of, arch=of.arch_from_json(arch.to_json()))
    if isinstance(arch, Mapping):
        found = of.arch_from_json(dict(arch)) if "schema" in arch else of.arch(arch)
        return _Wanted(space=of, arch=found)
    raise UsageError(
        f"arch is {arch!r}; accepted: a subnet's folder, a file, genes, 'smallest', 'largest'"
    )


def _resolve_text(name: str, arch: str | Path, options: Mapping[str, Any]) -> _Wanted:
    path = Path(arch)
    if (path / ARCH_FILE).is_file():
        of, found = read_arch(path)
        if of.name != name:
            raise UsageError(
                f"{path}: is of space {of.name!r}, expected {name!r}",
                f"timm.create_model({model_name(of.name)!r}, ...)",
            )
        return _Wanted(space=of, arch=found, folder=path)
    of = space(name, **options)
    if path.is_file():
        place, document = next(iter(read_archs(path).items()))
        return _Wanted(space=of, arch=of.arch_from_json(document, place))
    ends = {"smallest": of.smallest, "largest": of.largest}
    if str(arch) not in ends:
        raise unknown_name("architecture", str(arch), ends, hint="or a subnet's folder, or a file")
    return _Wanted(space=of, arch=ends[str(arch)]())


# -- timm's side --------------------------------------------------------------------------------


def model_name(of: str) -> str:
    """Return the name in timm's registry of the networks of a space."""
    return _PREFIX + of.replace("-", "_")


def _configuration(description: Network, preprocessing: Preprocessing | None) -> dict[str, Any]:
    """Return what timm calls the pretrained configuration: how images enter, where the ends are."""
    first, last = description.blocks[0].slot, description.blocks[-1].slot
    side, channels = description.side, description.channels
    configuration: dict[str, Any] = {
        "input_size": (channels, side, side),
        "num_classes": description.classes,
        "first_conv": f"blocks.{first}.conv",
        "classifier": f"blocks.{last}.classify",
        "crop_pct": 0.875,
        "interpolation": "bicubic",
    }
    if preprocessing is not None:
        configuration |= {
            "mean": preprocessing.mean,
            "std": preprocessing.std,
            "crop_pct": preprocessing.crop / preprocessing.resize,
            "interpolation": preprocessing.interpolation,
        }
    return configuration


def _entrypoint(of: str) -> Callable[..., nn.Module]:
    def create(
        pretrained: bool = False,
        *,
        pretrained_cfg: Mapping[str, Any] | str | None = None,
        pretrained_cfg_overlay: Mapping[str, Any] | None = None,
        cache_dir: str | Path | None = None,
        arch: Arch | Genes | str | Path = "smallest",
        num_classes: int | None = None,
        in_chans: int | None = None,
        options: Mapping[str, Any] | None = None,
        drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        features_only: bool = False,
        out_indices: Sequence[int] | None = None,
    ) -> nn.Module:
        given = {**(options or {}), "classes": num_classes or None, "channels": in_chans}
        wanted = _resolve(of, arch, {key: v for key, v in given.items() if v is not None})
        _check_options(wanted, options or {})
        if in_chans is not None and in_chans != wanted.space.options["channels"]:
            fitting = {**wanted.space.options, "channels": in_chans}
            wanted = _Wanted(space=space(of, **fitting), arch=wanted.arch, folder=wanted.folder)
        description = wanted.space.network(wanted.arch)
        own = pretrained_cfg if isinstance(pretrained_cfg, Mapping) else _own(wanted)
        if pretrained and not (own.get("file") or own.get("url")):
            raise UsageError(
                f"{model_name(of)}: no weights are published with this architecture",
                "arch=FOLDER of an extracted subnet has some; or checkpoint_path=FILE",
            )
        maps = range(len(_feature_info(description))) if out_indices is None else out_indices
        model: nn.Module = _models.build_model_with_cfg(
            TimmNetwork,
            model_name(of),
            pretrained,
            pretrained_cfg=dict(own),
            pretrained_cfg_overlay=pretrained_cfg_overlay,
            feature_cfg={"feature_cls": Maps, "out_indices": tuple(maps)},
            cache_dir=cache_dir,
            description=description,
            num_classes=description.classes if num_classes is None else num_classes,
            in_chans=description.channels,
            drop_rate=drop_rate,
            drop_path_rate=drop_path_rate,
            features_only=features_only,
        )
        return model

    create.__name__ = create.__qualname__ = model_name(of)
    create.__doc__ = f"Return a network of the space {of}."
    return create


def _check_options(wanted: _Wanted, options: Mapping[str, Any]) -> None:
    """Raise UsageError where a subnet's space was declared with other options than asked for."""
    own = wanted.space.options
    if wanted.folder and any(own.get(name) != value for name, value in options.items()):
        raise UsageError(
            f"{wanted.folder}: has options {dict(own)}, not {dict(options)}",
            "leave out options=; num_classes= and in_chans= fit a subnet to other data",
        )


def _own(wanted: _Wanted) -> dict[str, Any]:
    """Return the configuration of a subnet, with its weights file if it lies in a folder."""
    description, folder = wanted.space.network(wanted.arch), wanted.folder
    card = read_card(folder) if folder and (folder / CARD_FILE).is_file() else None
    configuration = _configuration(description, card.preprocessing if card else None)
    if folder is None:
        return configuration
    source, _ = read_arch(folder)
    return {
        **configuration,
        "file": str(folder / WEIGHTS_FILE),
        "num_classes": source.options["classes"],
        "input_size": (source.options["channels"], description.side, description.side),
    }


default_cfgs = _models.generate_default_cfgs(
    {
        model_name(name): _configuration(space(name).network(space(name).smallest()), None)
        for name in space_names()
    }
)
for _name in space_names():
    _models.register_model(_entrypoint(_name))
