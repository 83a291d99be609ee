"""Reading checkpoints of other programs without executing anything they contain.

A torch checkpoint is a pickle. This unpickler rebuilds tensors and plain containers and puts an
inert stand-in wherever the file names any other class or function.
"""

import pickle
import re
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from hwnas.errors import AbsentError, FormatError

_HARMLESS: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): torch._utils._rebuild_tensor_v2,
    ("torch._utils", "_rebuild_parameter"): torch._utils._rebuild_parameter,
    ("torch", "Size"): torch.Size,
    ("torch", "device"): torch.device,
}
# What DistributedDataParallel and torch.compile leave before names, in either order.
_WRAPPERS = re.compile(r"^(?:module\.|_orig_mod\.)+")
# What torch and pickle raise on files that are cut off or are something else.
_DAMAGE = (
    RuntimeError,
    EOFError,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)


class _Inert(dict[Any, Any]):
    """Stands for an object whose class is not rebuilt; keeps nothing and does nothing."""

    __eq__ = object.__eq__  # as of most objects: they may be keys of a dictionary
    __hash__ = object.__hash__  # type: ignore[assignment] # dict has none

    def __init__(self, *_arguments: Any) -> None:  # noqa: ANN401
        super().__init__()

    def __setstate__(self, state: Any) -> None:  # noqa: ANN401
        return

    def append(self, item: Any) -> None:  # noqa: ANN401
        """Ignore an item of a list-like object."""

    def extend(self, items: Any) -> None:  # noqa: ANN401
        """Ignore the items of a list-like object."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401
        """Return a harmless constructor, or the inert stand-in."""
        if (module, name) in _HARMLESS:
            return _HARMLESS[module, name]
        dtype = getattr(torch, name, None) if module == "torch" else None
        if isinstance(dtype, torch.dtype):
            return dtype
        if module in ("torch", "torch.storage") and name.endswith("Storage"):
            return getattr(torch, name, torch.UntypedStorage)
        return _Inert


def _pickle_module() -> ModuleType:
    module = ModuleType("hwnas_restricted_pickle")
    load: Callable[..., Any] = lambda file, **_options: _Unpickler(file).load()  # noqa: E731
    module.Unpickler = _Unpickler  # type: ignore[attr-defined]
    module.load = load  # type: ignore[attr-defined]
    return module


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return the containers and tensors of a torch checkpoint or a safetensors file."""
    path = Path(path)
    if path.is_dir():
        raise FormatError(f"{path}: is a folder")
    if not path.is_file():
        raise AbsentError(f"{path}: no such file")
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))  # by torch: numpy has no bfloat16
        except (SafetensorError, OSError, ValueError) as error:
            raise FormatError(f"{path}: not a complete safetensors file ({error})") from error
    try:
        content = torch.load(
            path, map_location="cpu", weights_only=False, pickle_module=_pickle_module()
        )
    except _DAMAGE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise FormatError(
            f"{path}: not a complete torch checkpoint ({reason})",
            "fetch the file again; a .safetensors file of its tensors is accepted too",
        ) from error
    if not isinstance(content, dict):
        raise FormatError(f"{path}: holds no dictionary of tensors")
    return content


def state_dict_of(content: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Tensor]:
    """Return the tensors under the first of `keys` that has some, else those of the content itself.

    Prefixes that wrappers leave behind are removed.
    """
    held = (_tensors(content.get(key)) for key in keys)
    return next((tensors for tensors in held if tensors), None) or _tensors(content)


def _tensors(found: object) -> dict[str, Tensor]:
    if not isinstance(found, dict):
        return {}
    return {
        _WRAPPERS.sub("", name): value.detach()
        for name, value in found.items()
        if isinstance(name, str) and isinstance(value, Tensor)
    }
