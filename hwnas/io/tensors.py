"""Tensor files (safetensors) as numpy arrays, written atomically and with plain errors.

The torch side goes through numpy as well: this module may not import torch.
"""

import json
import os
import re
import struct
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from hwnas.errors import AbsentError, FormatError
from hwnas.io.atomic import write_atomic
from hwnas.io.canonical import canonical_json, parse_json

_ALL_ENTRIES = "entries"
# How the library reports what the system refused, for example a full disk.
_SYSTEM_ERROR = re.compile(r"os error (\d+)")
# How it reports bfloat16 and the like, depending on its version and the type.
_NOT_IN_NUMPY = (TypeError, AttributeError, KeyError)
_KINDS = "biufc"  # of numpy's own numbers
_UNREADABLE = (SafetensorError, OSError, ValueError, struct.error, *_NOT_IN_NUMPY)


def write_tensors(
    path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named arrays and string metadata to one safetensors file, atomically.

    Several entries of metadata become one: the library writes them in a random order, and equal
    content has to give equal bytes.
    """
    # numpy's ascontiguousarray would make a scalar an array of one.
    contiguous = {name: np.asarray(array, order="C") for name, array in tensors.items()}
    entries = dict(metadata or {})
    if len(entries) > 1:
        entries = {_ALL_ENTRIES: canonical_json(entries)}
    write_atomic(path, partial(_save, contiguous, entries))


def _save(arrays: Mapping[str, NDArray[Any]], entries: dict[str, str], target: Path) -> None:
    try:
        save_file(dict(arrays), target, metadata=entries)
    except SafetensorError as error:
        code = _SYSTEM_ERROR.search(str(error))
        if code is None:
            raise
        raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return (arrays, metadata) of a safetensors file."""
    path = Path(path)
    try:
        return _of_numpy(load_file(path)), _metadata(path)
    except _UNREADABLE as error:
        raise _explained(error, path) from error


def read_tensor(path: Path, name: str) -> NDArray[Any] | None:
    """Return one array of a safetensors file, whose others are not read; None if it has none."""
    try:
        with safe_open(path, framework="numpy") as file:
            held = [name] if name in file.keys() else []  # noqa: SIM118 - no dict
            return _of_numpy({name: file.get_tensor(name) for name in held}).get(name)
    except _UNREADABLE as error:
        raise _explained(error, path) from error


def _of_numpy(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays; raises TypeError for numbers that other packages may have taught numpy."""
    for array in arrays.values():
        if array.dtype.kind not in _KINDS:
            raise TypeError(f"data type {array.dtype.name!r} not understood")
    return arrays


def _explained(error: Exception, path: Path) -> FormatError:
    if isinstance(error, FileNotFoundError):
        return AbsentError(f"{path}: no such file")
    if isinstance(error, _NOT_IN_NUMPY):
        return FormatError(
            f"{path}: holds numbers of a type that numpy has not ({error})",
            "save its tensors as float32",
        )
    return FormatError(f"{path}: not a complete safetensors file ({error})")


def _metadata(path: Path) -> dict[str, str]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    entries = dict(header.get("__metadata__", {}))
    if _ALL_ENTRIES not in entries:
        return entries
    return dict(parse_json(entries[_ALL_ENTRIES], f"{path}, metadata"))
