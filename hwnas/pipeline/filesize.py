"""How large the ONNX files of architectures are, without writing them.

A file is the sum of its blocks. The graph of each distinct block is built once, and what it stores
is counted: folded norms take less than their parameters, position tables that are spelled out for
every pair of tokens take much more.
"""

from math import prod

import numpy as np

from hwnas.export.graph import Graph
from hwnas.export.onnx import build_graph
from hwnas.search.arrays import Codes, Floats
from hwnas.spaces import Network, Space
from hwnas.spaces.blocks import Block, Placed
from hwnas.spaces.space import Part

# Bytes beside the numbers, as files of the shipped spaces have them.
_PER_CONSTANT, _PER_NODE, _PER_FILE = 60, 85, 400
_BYTE = 1
# What quantising adds: to a product whose input is quantised as it comes, its nodes and two scales;
# else to each tensor that enters or leaves a product nodes to and from 8 bits with their scale,
# and to each weight those from 8 bits.
_PER_DYNAMIC_PRODUCT, _PER_STATIC_TENSOR, _PER_STATIC_WEIGHT = 620, 390, 250


class FileSizes:
    """Sizes of the files of one space in one precision; the table of blocks grows as it is used."""

    def __init__(self, space: Space, precision: str) -> None:
        blocks: dict[tuple[Block, int], float] = {}
        self._parts = [_PartSizes(space, part, precision, blocks) for part in space.parts]

    def __call__(self, codes: Codes) -> Floats:
        """Return the bytes of canonical rows of value indices."""
        total = np.full(len(codes), float(_PER_FILE))
        for part in self._parts:
            total += part(codes)
        return total


class _PartSizes:
    def __init__(
        self, space: Space, part: Part, precision: str, blocks: dict[tuple[Block, int], float]
    ) -> None:
        self._space, self._part, self._precision = space, part, precision
        self._blocks = blocks
        self._columns = [space.columns[gene] for gene in part.genes]
        sizes = [len(space.genes[gene]) for gene in part.genes]
        self._strides = np.array([prod(sizes[:place]) for place in range(len(sizes))], np.int64)
        self._known: dict[int, float] = {}

    def __call__(self, codes: Codes) -> Floats:
        chosen = codes[:, self._columns]
        keys, first, inverse = np.unique(
            chosen @ self._strides, return_index=True, return_inverse=True
        )
        for key, row in zip(keys.tolist(), first.tolist(), strict=True):
            if key not in self._known:
                self._known[key] = self._size(chosen[row].tolist())
        return np.array([self._known[key] for key in keys.tolist()])[inverse]

    def _size(self, row: list[int]) -> float:
        space, part = self._space, self._part
        genes = {gene: space.genes[gene][code] for gene, code in zip(part.genes, row, strict=True)}
        return sum(self._of(placed) for placed in part.blocks(genes))

    def _of(self, placed: Placed) -> float:
        key = (placed.block, placed.side)
        if key not in self._blocks:
            self._blocks[key] = self._built(placed)
        return self._blocks[key]

    def _built(self, placed: Placed) -> float:
        options = self._space.options
        alone = Network(
            side=placed.side,
            channels=options["channels"],
            classes=options["classes"],
            blocks=(placed,),
        )
        eight_bits = self._precision.startswith("int8")
        graph = build_graph(alone, _ones, linears="product" if eight_bits else "convolution")
        return stored(graph, self._precision)


def stored(graph: Graph, precision: str) -> float:
    """Return the bytes of a graph in a file of this precision.

    In 8 bits only what matrix products multiply with is stored so; bf16 is made of single
    precision by the runtime.
    """
    half = precision == "fp16"
    products = [node for node in graph.nodes if node.operator == "MatMul"]
    eight_bits = precision.startswith("int8")
    weights = {node.inputs[1] for node in products if eight_bits} & graph.constants.keys()
    total = float(_PER_NODE * len(graph.nodes) + _PER_CONSTANT * len(graph.constants))
    for name, array in graph.constants.items():
        floating = np.issubdtype(array.dtype, np.floating)
        width = _BYTE if name in weights else array.itemsize / (2 if half and floating else 1)
        total += array.size * width
    if precision == "int8_static":
        tensors = {name for node in products for name in (*node.inputs, node.output)} - weights
        return total + _PER_STATIC_TENSOR * len(tensors) + _PER_STATIC_WEIGHT * len(weights)
    return total + _PER_DYNAMIC_PRODUCT * len(weights)


def _ones(name: str, *shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Stand in for weights: only their number matters."""
    return np.ones(shape, np.float32)
