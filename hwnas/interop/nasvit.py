"""Import of the released NASViT checkpoint into a supernet of space `nasvit`.

The file's tensors already have the sizes of our shared tensors; only names differ, linears are
1x1 convolutions here, and the two leading axes of the scaling tables are one.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hwnas.errors import FormatError, UsageError
from hwnas.interop.checkpoint import read_checkpoint, state_dict_of
from hwnas.sharing.shared import STATISTICS, Shared
from hwnas.spaces import Arch, space
from hwnas.supernet import Supernet

# Stage -> the reference's first block of it, in its numbering, and its number of blocks.
_STAGES = {
    "mb1": (0, 2),
    "mb2": (2, 5),
    "mb3": (7, 6),
    "t4": (13, 6),
    "t5": (19, 9),
    "t6": (28, 8),
    "t7": (36, 6),
}
_WIDTH_GENES = ("stem", "mb1", "mb2", "mb3", "t4", "t5", "t6", "t7", "pool")
_FIXED = {("kernel", "mb3"): 3, ("kernel", "t4"): 3, ("kernel", "t5"): 3, ("kernel", "t6"): 3,
          ("kernel", "t7"): 3, ("expand", "mb1"): 1, ("expand", "t6"): 6,
          ("expand", "t7"): 6}  # fmt: skip
_HEADS = {
    "stem": {"conv": "first_conv.conv.conv", "norm": "first_conv.bn.bn"},
    "head": {
        "expand": "last_conv.final_expand_layer.conv.conv",
        "expand_norm": "last_conv.final_expand_layer.bn.bn",
        "mix": "last_conv.feature_mix_layer.conv.conv",
        "classify": "classifier.linear.linear",
    },
}
_MBCONV = {
    "expand": "mobile_inverted_conv.inverted_bottleneck.conv.conv",
    "expand_norm": "mobile_inverted_conv.inverted_bottleneck.bn.bn",
    "depth": "mobile_inverted_conv.depth_conv.conv.conv",
    "depth_norm": "mobile_inverted_conv.depth_conv.bn.bn",
    "squeeze.reduce": "mobile_inverted_conv.depth_conv.se.fc.reduce",
    "squeeze.expand": "mobile_inverted_conv.depth_conv.se.fc.expand",
    "project": "mobile_inverted_conv.point_linear.conv.conv",
    "project_norm": "mobile_inverted_conv.point_linear.bn.bn",
    "shortcut": "shortcut.conv.conv",
}
_TRANSFORMER = {
    "norm1": "norm1",
    "norm2": "norm2",
    "norm3": "norm3",
    "attention.q": "attn.q.linear",
    "attention.k": "attn.k.linear",
    "attention.v": "attn.v.linear",
    "attention.local": "attn.vconv",
    "attention.before": "attn.proj_l.linear",
    "attention.after": "attn.proj_w.linear",
    "attention.project": "attn.proj.linear",
    "mlp1.first": "mlp1.linear1.linear",
    "mlp1.second": "mlp1.linear2.linear",
    "mlp2.first": "mlp2.linear1.linear",
    "mlp2.second": "mlp2.linear2.linear",
}
_WHOLE = {
    "attention.positions": "attn.relative_position_bias_table",
    "scale_attention": "rescale_attn",
    "scale_mlp": "rescale_mlp",
}


def supernet_from(state_dict: Mapping[str, Tensor]) -> Supernet:
    """Return the supernet of the reference's state dict, with its running statistics.

    The number of classes is read from the classifier. Running statistics are there for all norms
    or for none. Tensors that the reference stores and never uses (frozen scales, tracking norms,
    shortcuts between equal widths) are ignored.
    """
    classifier = state_dict.get("classifier.linear.linear.weight")
    if classifier is None:
        raise FormatError(
            "not a NASViT supernet: it has no tensor 'classifier.linear.linear.weight'"
        )
    supernet = Supernet(space("nasvit", classes=len(classifier)))
    for slot, shared in supernet.blocks.items():
        assert isinstance(shared, Shared)
        _fill(shared, slot, state_dict)
    return supernet.eval()


def read(path: Path) -> Supernet:
    """Return the supernet of a released checkpoint file; nothing in the file is executed."""
    tensors = state_dict_of(read_checkpoint(path), ("model_ema", "model", "state_dict"))
    try:
        return supernet_from(tensors)
    except FormatError as error:
        raise FormatError(f"{path}: {error.message}", error.hint) from error


def arch_from(reference_config: Mapping[str, Any]) -> Arch:
    """Return the architecture of a reference configuration.

    Keys: resolution, width (9: stem, mb1-3, T4-7, pool), depth, kernel_size and expand_ratio (7).
    """
    of = space("nasvit")
    genes: dict[str, Any] = {"resolution": _number(reference_config, "resolution")}
    widths = _numbers(reference_config, "width", len(_WIDTH_GENES))
    genes.update({f"{name}.width": width for name, width in zip(_WIDTH_GENES, widths, strict=True)})
    for key, gene in (("depth", "depth"), ("kernel_size", "kernel"), ("expand_ratio", "expand")):
        values = _numbers(reference_config, key, len(_STAGES))
        for stage, value in zip(_STAGES, values, strict=True):
            fixed = _FIXED.get((gene, stage))
            if fixed is None:
                genes[f"{stage}.{gene}"] = value
            elif value != fixed:
                raise UsageError(f"{key} of {stage} is {value}; accepted: {fixed}")
    return of.arch(genes)


def _number(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"reference configuration: {key} is {value!r}; accepted: a whole number")
    return value


def _numbers(config: Mapping[str, Any], key: str, length: int) -> Sequence[int]:
    values = config.get(key)
    if not isinstance(values, Sequence) or len(values) != length:
        raise UsageError(
            f"reference configuration: {key} is {values!r}; accepted: a list of {length} numbers"
        )
    return values


def _reference_name(slot: str, name: str) -> str:
    if slot in _HEADS:
        owner, _, leaf = name.rpartition(".")
        return f"{_HEADS[slot][owner]}.{leaf}"
    stage, _, layer = slot.partition("_")
    prefix = f"blocks.{_STAGES[stage][0] + int(layer)}."
    if name in _WHOLE:
        return prefix + _WHOLE[name]
    owner, _, leaf = name.rpartition(".")
    table = _MBCONV if layer == "0" or stage.startswith("mb") else _TRANSFORMER
    return f"{prefix}{table[owner]}.{leaf}"


@torch.no_grad()
def _fill(shared: Shared, slot: str, state_dict: Mapping[str, Tensor]) -> None:
    for name, full in list(shared.named_parameters()):
        source = _reference_name(slot, name)
        is_table = name == "attention.positions"
        full.copy_((_positions if is_table else _tensor)(state_dict, source, full))
    if not any(name.endswith(STATISTICS) for name in state_dict):
        return
    for norm in _norms(shared):
        like = shared.get_parameter(f"{norm}.weight")
        for statistic in STATISTICS:
            values = _tensor(state_dict, _reference_name(slot, f"{norm}.{statistic}"), like)
            shared.add_statistics(f"{norm}.{statistic}", values.clone())


def _norms(shared: Shared) -> Iterator[str]:
    """Yield the names of the batch norms, which alone have statistics."""
    for name, _ in list(shared.named_parameters()):
        owner, _, leaf = name.rpartition(".")
        if leaf == "bias" and owner.endswith("norm"):
            yield owner


def _positions(state_dict: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return the middle of a table of offsets, which the reference makes as large as its first."""
    table = state_dict.get(name)
    rows = 0 if table is None else isqrt(len(table))
    if table is None or rows * rows != len(table) or rows < len(like):
        return _tensor(state_dict, name, like)
    square = table.reshape(rows, rows, -1)
    start = (rows - len(like)) // 2
    cropped = square[start : start + len(like), start : start + len(like)]
    return _tensor({name: cropped}, name, like)


def _tensor(state_dict: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return the tensor of a name with the shape and the type of numbers of `like`."""
    tensor = state_dict.get(name)
    if tensor is None:
        raise FormatError(f"not a complete NASViT supernet: it has no tensor {name!r}")
    if tensor.numel() != like.numel():
        raise FormatError(
            f"not a NASViT supernet: {name} has shape {tuple(tensor.shape)}, "
            f"expected the {like.numel()} entries of {tuple(like.shape)}"
        )
    values = tensor.reshape(like.shape).to(like)
    if not values.isfinite().all():
        raise FormatError(f"{name} has entries that are no finite numbers of {like.dtype}")
    return values
