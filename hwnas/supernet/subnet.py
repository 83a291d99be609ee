"""A subnet on disk: `arch.json` and `weights.safetensors`, from which alone it is rebuilt."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import torch
from torch import nn

from hwnas.errors import FormatError, UsageError
from hwnas.io import Schema, read_json, read_tensors, write_json, write_tensors
from hwnas.nets import PlainNetwork, build_network
from hwnas.nets.norms import BatchNorm
from hwnas.spaces import Arch, Space, space

SUBNET_SCHEMA = Schema(name="hwnas/subnet", version=1)
ARCH_FILE, WEIGHTS_FILE = "arch.json", "weights.safetensors"


def save_subnet(network: PlainNetwork, of: Space, arch: Arch, folder: Path) -> None:
    """Write the weights and the architecture of a plain network to a folder."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    content = {"arch": arch.to_json(), "options": dict(of.options), "digest": arch.digest}
    write_tensors(folder / WEIGHTS_FILE, arrays, {"arch": arch.digest})
    write_json(folder / ARCH_FILE, SUBNET_SCHEMA, content)


def load_subnet(folder: Path | str) -> PlainNetwork:
    """Return the plain network of a folder, in evaluation mode.

    A network without running statistics normalises by those of each batch.
    """
    folder = Path(folder)
    of, arch = read_arch(folder)
    path = folder / WEIGHTS_FILE
    arrays, metadata = read_tensors(path)
    if metadata.get("arch") != arch.digest:
        raise FormatError(f"{path}: holds another architecture's weights")
    network = build_network(of.network(arch))
    drop_absent_statistics(network, arrays)
    expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
    for name, array in arrays.items():
        if array.shape != expected.get(name, array.shape):
            raise FormatError(f"{path}: {name} is {array.shape}, expected {expected[name]}")
    missing, unexpected = network.load_state_dict(
        {name: torch.from_numpy(array) for name, array in arrays.items()}, strict=False
    )
    if missing or unexpected:
        raise FormatError(f"{path}: lacks {sorted(missing)[:3]}, has {sorted(unexpected)[:3]}")
    return network.eval()


def read_arch(folder: Path | str) -> tuple[Space, Arch]:
    """Return the space, with its options, and the architecture of the subnet in a folder."""
    path = Path(folder) / ARCH_FILE
    document: dict[str, Any] = read_json(path, SUBNET_SCHEMA)
    arch, options = document.get("arch"), document.get("options", {})
    if not isinstance(arch, dict) or not isinstance(arch.get("space"), str):
        raise FormatError(f"{path}: has no architecture")
    if not isinstance(options, dict):
        raise FormatError(f"{path}: options are {options!r}, expected an object")
    try:
        of = space(arch["space"], **options)
    except UsageError as error:
        raise UsageError(f"{path}: {error.message}", error.hint) from error
    return of, of.arch_from_json(arch, str(path))


def drop_absent_statistics(network: nn.Module, weights: Container[str]) -> None:
    """Make the norms whose weights have no running statistics normalise by those of each batch."""
    for name, module in network.named_modules():
        if (
            isinstance(module, BatchNorm)
            and f"{name}.weight" in weights
            and f"{name}.running_mean" not in weights
        ):
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False
