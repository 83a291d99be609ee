"""Weights that are described instead of stored: latency does not depend on their values.

Each value comes from integer random bits and one multiplication, so that every machine and every
numpy makes the same bytes. Values are near normal, never zero and never denormal, and scaled so
that activations neither vanish nor saturate: softmax of huge logits would be full of denormals.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import FormatError
from hwnas.io.onnxwire import (
    BFLOAT16,
    FLOAT,
    FLOAT16,
    INT8,
    UINT8,
    Tensor,
    Use,
    floats,
)

Rule = Literal["normal", "positive", "constant", "integers"]

SMALLEST = 64  # elements; smaller tensors are kept as they are: shapes, scalars, zero points
_GAIN = 0.7
_UNKNOWN_SCALE = 0.1
_DISTINCT = 16
_CHUNK = 1 << 15
_SIGMA = 37836.6  # of the sum of four random 16-bit numbers: sqrt(4 * (2**32 - 1) / 12)
_SMALLEST_NORMAL_HALF = 2.0**-14
_FLOATING = (FLOAT, FLOAT16, BFLOAT16)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """How to make a tensor. `scale`: standard deviation, mean (positive) or value (constant)."""

    name: str
    dtype: int
    shape: tuple[int, ...]
    rule: Rule
    scale: float = 0.0


def describe(tensor: Tensor, use: Use | None) -> Spec | None:
    """Return how to generate a stand-in for `tensor`, None if it has to be kept as it is."""
    if tensor.size < SMALLEST or tensor.external:
        return None
    rule: Rule
    if tensor.dtype in (INT8, UINT8):
        rule, scale = "integers", 0.0
    elif tensor.dtype in _FLOATING and (values := floats(tensor)) is not None:
        found = _rule(tensor, values, use)
        if found is None:
            return None
        rule, scale = found
    else:
        return None
    return Spec(name=tensor.name, dtype=tensor.dtype, shape=tensor.shape, rule=rule, scale=scale)


def generate(spec: Spec) -> Tensor:
    """Return the tensor of `spec`; equal specs give equal bytes on every machine."""
    size = int(np.prod(spec.shape, dtype=np.int64))
    if spec.rule == "integers":
        raw = _integers(_bits(spec), size, spec.dtype).tobytes()
    elif spec.rule == "constant":
        raw = _as_bytes(np.full(size, spec.scale, dtype=np.float32), spec.dtype)
    elif spec.rule == "normal":
        raw = _as_bytes(_normal(_bits(spec), size) * np.float32(spec.scale), spec.dtype)
    elif spec.rule == "positive":
        spread = np.clip(_normal(_bits(spec), size) * np.float32(0.2), -0.5, 0.5)
        raw = _as_bytes((np.float32(1) + spread) * np.float32(spec.scale), spec.dtype)
    else:
        raise FormatError(f"weights of {spec.name!r}: unknown rule {spec.rule!r}")
    return Tensor(name=spec.name, dtype=spec.dtype, shape=spec.shape, raw=raw)


def fan_in(shape: tuple[int, ...], use: Use | None) -> int | None:
    """Return how many products are summed for one output, None where that is not known."""
    if use is None or len(shape) < 2:
        return None
    if use.operator in ("Conv", "FusedConv") and use.position == 1:
        return int(np.prod(shape[1:]))
    if use.operator == "Gemm" and use.position == 1:
        return shape[-1] if use.transposed else shape[0]
    if use.operator in ("MatMul", "FusedMatMul"):
        return shape[-1] if use.position == 0 else shape[-2]
    return None


def _rule(
    tensor: Tensor, values: NDArray[np.float32], use: Use | None
) -> tuple[Rule, float] | None:
    summed = fan_in(tensor.shape, use)
    if summed is not None:
        return "normal", float(np.float32(_GAIN / np.sqrt(summed)))
    if len(np.unique(values[:4096])) <= _DISTINCT and len(np.unique(values)) <= _DISTINCT:
        # A mask or a table of few values means something; a single value needs no table.
        return ("constant", float(values[0])) if len(np.unique(values)) == 1 else None
    if not np.isfinite(values).all():
        return None
    if values.min() > 0:
        return "positive", float(values.mean())
    return "normal", float(np.float32(min(float(values.std()), _UNKNOWN_SCALE)))


def _bits(spec: Spec) -> np.random.PCG64:
    seed = hashlib.sha256(f"{spec.name} {spec.dtype} {spec.shape}".encode()).digest()
    return np.random.PCG64(int.from_bytes(seed[:16], "little"))


def _normal(bits: np.random.PCG64, size: int) -> NDArray[np.float32]:
    values = np.empty(size, dtype=np.float32)
    for start in range(0, size, _CHUNK):
        count = min(_CHUNK, size - start)
        words = bits.random_raw(count)
        low, high = words & 0x0000FFFF0000FFFF, (words >> 16) & 0x0000FFFF0000FFFF
        pairs = low + high  # two sums of two 16-bit numbers, 32 bits apart: no carry between them
        total = (pairs & 0xFFFFFFFF) + (pairs >> 32)
        values[start : start + count] = total
    # Half a step off the mean: never zero, and far from denormal.
    values -= np.float32(131069.5)
    values *= np.float32(1 / _SIGMA)
    return values


def _integers(bits: np.random.PCG64, size: int, dtype: int) -> NDArray[np.int8] | NDArray[np.uint8]:
    words = bits.random_raw((size + 7) // 8).astype("<u8").view(np.uint8)[:size]
    words = np.maximum(words, 1)  # no zeros, which a kernel may skip
    if dtype == UINT8:
        return words
    return np.asarray(np.where(words == 128, 127, words), dtype=np.uint8).view(np.int8)


def _as_bytes(values: NDArray[np.float32], dtype: int) -> bytes:
    if dtype == FLOAT:
        return values.astype("<f4", copy=False).tobytes()
    if dtype == FLOAT16:
        magnitude = np.maximum(np.abs(values), np.float32(_SMALLEST_NORMAL_HALF))
        return np.copysign(magnitude, values).astype("<f2").tobytes()
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
