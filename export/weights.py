"""Where the numbers of an exported block come from, and the folds that make them fewer.

An emitter asks for tensors by the names of the plain module's state dict and says which shape it
expects. Folds are exact in real arithmetic; they change single-precision results by rounding.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import HwnasError

Floats = NDArray[np.float32]
EPS = 1e-5  # that of the plain norms
_POOL = 1_000_003
_SMALLEST, _SHIFT = np.float32(1e-4), 0.1


class Weights(Protocol):
    """The tensors of one block."""

    def __call__(self, name: str, *shape: int) -> Floats:
        """Return the tensor of that name and shape."""


@dataclass(frozen=True, slots=True)
class SlotWeights:
    """The tensors of one slot among those of a network."""

    weights: Weights
    slot: str

    def __call__(self, name: str, *shape: int) -> Floats:
        """Return the slot's tensor."""
        return self.weights(f"{self.slot}.{name}", *shape)


@dataclass(frozen=True, slots=True)
class StoredWeights:
    """Tensors out of the state dict of a plain network; `prefix` is that of the block."""

    tensors: Mapping[str, Floats]
    prefix: str = ""

    def __call__(self, name: str, *shape: int) -> Floats:
        """Return the stored tensor."""
        full = self.prefix + name
        tensor = self.tensors.get(full)
        if tensor is None and name.endswith(("running_mean", "running_var")):
            raise HwnasError(
                f"the network has no batch-norm statistics ({full} is missing): "
                "those of a supernet fit none of its subnets",
                "calibrate it first: supernet.calibrate(arch, batches), then extract(arch); "
                "or hwnas.supernet.calibrate(network, batches)",
            )
        if tensor is None or tensor.shape != shape:
            found = "is missing" if tensor is None else f"has shape {tensor.shape}"
            raise HwnasError(f"weight {full} {found}; expected: shape {shape}")
        if not np.isfinite(tensor).all():
            raise HwnasError(f"weight {full} has values that are not finite")
        return np.asarray(tensor, np.float32)


class GeneratedWeights:
    """Numbers that run as fast as trained ones: normal, of a size that keeps signals in range.

    Neither zeros nor denormals occur, which some kernels run at another speed. Tensors are
    windows of one pool, so that a network costs milliseconds.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        pool = self._rng.standard_normal(_POOL, np.float32)
        pool[np.abs(pool) < _SMALLEST] = _SMALLEST
        self._pool = np.concatenate((pool, pool))  # any window up to its length is one slice

    def __call__(self, name: str, *shape: int) -> Floats:
        """Return generated numbers of the size that is usual for a tensor of that name."""
        _, _, last = name.rpartition(".")
        if last == "running_var" or "scale_" in last or ("norm" in name and last == "weight"):
            return np.ones(shape, np.float32)
        size = prod(shape)
        start = int(self._rng.integers(_POOL))
        if size <= _POOL:
            values = self._pool[start : start + size]
        else:
            values = np.resize(self._pool[start : start + _POOL], size)
        scale = 1 / sqrt(prod(shape[1:])) if len(shape) > 1 else _SHIFT
        return np.asarray(values * np.float32(scale), np.float32).reshape(shape)


def folded_norm(
    weights: Weights, name: str, norm: str, shape: tuple[int, ...]
) -> tuple[Floats, Floats]:
    """Return weight and bias of a convolution with the batch norm after it folded in."""
    weight = weights(f"{name}.weight", *shape)
    gamma, beta, mean, variance = (
        weights(f"{norm}.{part}", shape[0]).astype(np.float64)
        for part in ("weight", "bias", "running_mean", "running_var")
    )
    scale = gamma / np.sqrt(variance + EPS)
    return scaled(weight, scale), (beta - mean * scale).astype(np.float32)


def scaled(weight: Floats, scale: NDArray[np.float64] | Floats) -> Floats:
    """Return the weight with each output multiplied by its entry of `scale`."""
    factors = scale.astype(np.float32).reshape(-1, *(1,) * (weight.ndim - 1))
    return np.asarray(weight * factors, np.float32)


def after_affine(
    folded: tuple[Floats, Floats], gamma: Floats, beta: Floats
) -> tuple[Floats, Floats]:
    """Return weight and bias of a 1x1 convolution that takes x instead of gamma * x + beta."""
    weight, bias = folded
    matrix = weight.reshape(weight.shape[0], -1)
    return (matrix * gamma).reshape(weight.shape), bias + matrix @ beta


def position_bias(table: Floats, before: Floats, before_bias: Floats, side: int) -> Floats:
    """Return what relative positions add to the scores after the first talking heads.

    `table` has (2 side - 1, 2 side - 1, heads) entries; the result is (heads, pairs): with scores
    S and positions P, before @ (S + P) + bias is before @ S + (before @ P + bias).
    """
    rows, columns = np.divmod(np.arange(side * side), side)
    down = rows[:, None] - rows[None] + side - 1
    right = columns[:, None] - columns[None] + side - 1
    gathered = table[down, right].reshape(-1, table.shape[-1])
    return np.asarray(before @ gathered.T + before_bias[:, None], np.float32)
