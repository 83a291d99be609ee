"""A search space as a value: genes with their choices, what makes a gene matter, and parts.

`Space("cell", genes={"e0": (0, 1, 2)})` is a complete space of its own, without a network. A
space with networks adds `parts`: functions from a few genes to the blocks those genes decide.
Because every part names the genes it reads, its costs are tabulated once per combination and a
million architectures cost a gather.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.spaces import bounded, sampling
from hwnas.spaces import costs as cost_tables
from hwnas.spaces.arch import Arch, Value, genes_of
from hwnas.spaces.blocks import Block, Network, Placed

Genes = Mapping[str, Any]
Codes = NDArray[np.int64]
_COVERING_LIMIT = 4096


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive blocks of the network that depend on `genes` and nothing else."""

    stage: str
    genes: tuple[str, ...]
    blocks: Callable[[Genes], tuple[Placed, ...]]


@dataclass(frozen=True, slots=True)
class Requires:
    """A gene matters only where gene `on` matters and has one of `values`."""

    on: str
    values: tuple[Value, ...]


@dataclass(frozen=True, eq=False)
class Space:
    """A set of architectures.

    `genes`: name -> accepted values, smallest first; a gene stands after the one it requires.
    `requires`: when a gene matters. `parts`: the network, in order. `picks`: how a smaller axis
    takes its entries from the shared one, by axis (default: the first entries). `side`: that of
    the images, or the gene that decides it. `options`: what the space was declared with (a space
    with networks: at least `classes` and `channels`); they are no choices of the search.
    """

    name: str
    genes: Mapping[str, Sequence[Value]]
    requires: Mapping[str, Requires] = field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    side: str | int = "resolution"
    picks: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    title: str = ""

    def __post_init__(self) -> None:
        _check_genes(self.genes, self.requires)
        frozen = {gene: tuple(map(_plain, values)) for gene, values in self.genes.items()}
        # In the order of the genes, so that what a gene requires is decided before it.
        ordered = {gene: self.requires[gene] for gene in frozen if gene in self.requires}
        object.__setattr__(self, "genes", frozen)
        object.__setattr__(self, "requires", ordered)
        if self.parts:
            self._check_parts()

    def _check_parts(self) -> None:
        for part in self.parts:
            for gene in part.genes:
                if gene not in self.genes:
                    raise unknown_name(f"gene in part {part.stage!r}", gene, self.genes)
        if isinstance(self.side, str) and self.side not in self.genes:
            raise unknown_name("gene for the side of images", self.side, self.genes)
        for option in ("channels", "classes"):
            if option not in self.options:
                raise UsageError(
                    f"space {self.name!r} has networks, and no {option} in its options "
                    f"{dict(self.options)}",
                    f"Space(..., options={{{option!r}: N}})",
                )

    def __repr__(self) -> str:
        return f"Space({self.name!r}, {len(self.genes)} genes)"

    # -- encoding ---------------------------------------------------------------------------

    @cached_property
    def gene_names(self) -> tuple[str, ...]:
        """The genes in their order, which is the order of the columns of codes."""
        return tuple(self.genes)

    @cached_property
    def cardinalities(self) -> Codes:
        """The number of values of each gene."""
        return np.array([len(values) for values in self.genes.values()], np.int64)

    @cached_property
    def columns(self) -> dict[str, int]:
        """The column of each gene in codes."""
        return {gene: column for column, gene in enumerate(self.gene_names)}

    def encode(self, archs: Iterable[Arch]) -> Codes:
        """Return one row of value indices per architecture."""
        rows = [self._codes_of(arch) for arch in archs]
        return np.array(rows, np.int64).reshape(-1, len(self.genes))

    def _codes_of(self, arch: Arch) -> list[int]:
        try:
            return [table[arch[gene]] for gene, table in self._value_index.items()]
        except KeyError as error:
            raise UsageError(
                f"architecture {arch.digest[:12]} of space {arch.space!r} is not in this space "
                f"{self.name!r}, which does not know {error}"
            ) from error

    def decode(self, codes: Codes) -> list[Arch]:
        """Return the architectures of rows of value indices."""
        canonical = self.canonical(np.asarray(codes, np.int64))
        choices = list(self.genes.items())
        return [
            Arch(
                self.name,
                {gene: values[code] for (gene, values), code in zip(choices, row, strict=True)},
            )
            for row in canonical.tolist()
        ]

    @cached_property
    def _value_index(self) -> dict[str, dict[Value, int]]:
        return {
            gene: {value: index for index, value in enumerate(values)}
            for gene, values in self.genes.items()
        }

    def active(self, codes: Codes) -> NDArray[np.bool_]:
        """Return where the choices of `codes` make a difference, with the shape of `codes`."""
        active = np.ones(codes.shape, bool)
        for gene, condition in self.requires.items():
            on = self.columns[condition.on]
            table = self._value_index[condition.on]
            accepted = np.zeros(len(table), bool)
            accepted[[table[value] for value in condition.values]] = True
            active[:, self.columns[gene]] = active[:, on] & accepted[codes[:, on]]
        return active

    def canonical(self, codes: Codes) -> Codes:
        """Return `codes` with every choice that makes no difference set to its first value."""
        return np.where(self.active(codes), codes, 0) if self.requires else codes

    # -- architectures ----------------------------------------------------------------------

    def arch(self, genes: Mapping[str, Value]) -> Arch:
        """Return the architecture with these values; genes that do not matter may be absent."""
        for gene in genes:
            if gene not in self.genes:
                raise unknown_name(f"gene of space {self.name}", gene, self.genes)
        values: dict[str, Value] = {}
        for gene, choices in self.genes.items():
            condition = self.requires.get(gene)
            if condition is not None and not self._matters(condition, values):
                values[gene] = choices[0]
                continue
            if gene not in genes:
                raise UsageError(
                    f"architecture of {self.name} lacks {gene}; accepted: {_listed(choices)}",
                    f"hwnas space show {self.name}",
                )
            if not _is_among(genes[gene], choices):
                raise UsageError(
                    f"{gene} = {genes[gene]!r} is not in space {self.name}; "
                    f"accepted: {_listed(choices)}",
                    f"hwnas space show {self.name}",
                )
            values[gene] = choices[choices.index(genes[gene])]
        return Arch(self.name, values)

    def _matters(self, condition: Requires, values: Mapping[str, Value]) -> bool:
        parent = self.requires.get(condition.on)
        if parent is not None and not self._matters(parent, values):
            return False
        return values[condition.on] in condition.values

    def arch_from_json(self, document: Any, origin: str = "architecture") -> Arch:  # noqa: ANN401
        """Return the architecture of a JSON document, which must be of this space."""
        name, genes = genes_of(document, origin)
        if name != self.name:
            raise UsageError(f"{origin}: is of space {name!r}, expected {self.name!r}")
        try:
            return self.arch(genes)
        except UsageError as error:
            raise UsageError(f"{origin}: {error.message}", error.hint) from error

    def smallest(self) -> Arch:
        """Return the architecture with the first value of every gene."""
        return self.decode(np.zeros((1, len(self.genes)), np.int64))[0]

    def largest(self) -> Arch:
        """Return the architecture with the last value of every gene."""
        return self.decode((self.cardinalities - 1)[None])[0]

    def count(self) -> int:
        """Return the number of distinct architectures."""
        return sampling.count(self)

    def sample(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        macs: tuple[float, float] | None = None,
        params: tuple[float, float] | None = None,
    ) -> list[Arch]:
        """Return `n` random architectures, optionally with costs in (low, high).

        Without bounds every gene is uniform on its own. With bounds the costs of one call (MACs
        if both are bounded) are spread evenly over the part of the range that can be reached.
        Architectures may repeat.
        """
        return self.decode(self.sample_codes(n, rng, macs=macs, params=params))

    def sample_evenly(self, n: int, rng: np.random.Generator) -> list[Arch]:
        """Return `n` random architectures that share out the values of every gene among them."""
        return self.decode(self.canonical(sampling.evenly(self, n, rng)))

    def sample_codes(
        self,
        n: int,
        rng: np.random.Generator,
        *,
        macs: tuple[float, float] | None = None,
        params: tuple[float, float] | None = None,
    ) -> Codes:
        """Return what `sample` returns, as rows of value indices."""
        bounds = {
            name: bound for name, bound in (("macs", macs), ("params", params)) if bound is not None
        }
        if not bounds:
            return self.canonical(sampling.uniform(self, n, rng))
        return bounded.within(self, n, rng, bounds)

    # -- networks and costs -----------------------------------------------------------------

    def network(self, arch: Arch) -> Network:
        """Return the description of the network of `arch`."""
        self._needs_network()
        if arch.space != self.name:
            raise UsageError(f"architecture is of space {arch.space!r}, expected {self.name!r}")
        blocks = tuple(
            placed
            for part in self.parts
            for placed in part.blocks({gene: arch[gene] for gene in part.genes})
        )
        side = self.side if isinstance(self.side, int) else int(arch[self.side])
        _check_chain(self.name, blocks, side)
        return Network(
            side=side,
            channels=self.options["channels"],
            classes=self.options["classes"],
            blocks=blocks,
        )

    def cost(self, archs: Sequence[Arch] | Codes) -> "cost_tables.Costs":
        """Return the costs of architectures (a list of them, or rows of value indices)."""
        self._needs_network()
        codes = archs if isinstance(archs, np.ndarray) else self.encode(archs)
        return self._tables.costs(self.canonical(codes))

    def covering(self) -> dict[str, list[Block]]:
        """Return, for each slot in order, blocks that between them need every shared tensor.

        All combinations of a part's genes where that is practical; else the smallest, the largest,
        what differs from either in one gene, and, where that is practical, all combinations of the
        first and the last value of each gene.
        """
        self._needs_network()
        slots: dict[str, dict[Block, None]] = {}
        for part in self.parts:
            for combination in _combinations([self.genes[gene] for gene in part.genes]):
                genes = dict(zip(part.genes, combination, strict=True))
                for placed in part.blocks(genes):
                    slots.setdefault(placed.slot, {})[placed.block] = None
        return {slot: list(blocks) for slot, blocks in slots.items()}

    @cached_property
    def _tables(self) -> "cost_tables.CostTables":
        return cost_tables.CostTables(self)

    def _needs_network(self) -> None:
        if not self.parts:
            raise HwnasError(
                f"space {self.name!r} describes no networks, so there is nothing to build or cost",
                "give it parts=..., or use a space of `hwnas space list`",
            )


def _check_chain(space: str, blocks: Sequence[Placed], side: int) -> None:
    slots = set()
    for placed in blocks:
        if placed.slot in slots:
            raise UsageError(
                f"space {space!r} has two blocks in slot {placed.slot!r} of a network",
                "give each block of a network a slot of its own",
            )
        if placed.side != side:
            raise UsageError(
                f"space {space!r}: the block in slot {placed.slot!r} is placed at side "
                f"{placed.side}, and gets a map of side {side}",
                f"Placed({placed.slot!r}, ..., side={side})",
            )
        slots.add(placed.slot)
        side = placed.block.side_after(side)


def _combinations(choices: Sequence[Sequence[Value]]) -> Iterable[tuple[Value, ...]]:
    if prod(len(values) for values in choices) <= _COVERING_LIMIT:
        return product(*choices)
    chosen = [tuple(values[end] for values in choices) for end in (0, -1)]
    for start in tuple(chosen):
        chosen += [
            (*start[:at], value, *start[at + 1 :])
            for at, values in enumerate(choices)
            for value in values
        ]
    ends = [tuple(dict.fromkeys((values[0], values[-1]))) for values in choices]
    if prod(len(values) for values in ends) <= _COVERING_LIMIT:
        chosen += product(*ends)
    return chosen


def _plain(value: Any) -> Any:  # noqa: ANN401 - a tuple may hold anything
    """Return the number that a scalar of numpy holds, also in tuples: JSON knows no others."""
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def _is_among(value: Value, choices: Sequence[Value]) -> bool:
    """Return whether a value is one of the choices; True is not 1 here, though equal to it."""
    return any(
        value == choice and isinstance(value, bool) == isinstance(choice, bool)
        for choice in choices
    )


def _listed(choices: Sequence[Value]) -> str:
    return "{" + ", ".join(str(choice) for choice in choices) + "}"


def _check_genes(genes: Mapping[str, Sequence[Value]], requires: Mapping[str, Requires]) -> None:
    if not genes:
        raise UsageError("a space needs at least one gene")
    for gene, values in genes.items():
        ordered = isinstance(values, Collection) and not isinstance(values, str | Set | Mapping)
        if not ordered or not len(values):
            raise UsageError(f"gene {gene!r} needs a sequence of values, got {values!r}")
        if not all(isinstance(value, Hashable) for value in values):
            raise UsageError(
                f"gene {gene!r} has values that cannot be told apart: {list(values)}; "
                "accepted: numbers, texts, tuples of them"
            )
        if len(set(values)) != len(values):
            raise UsageError(f"gene {gene!r} repeats a value: {list(values)}")
    _check_requires(genes, requires)


def _check_requires(genes: Mapping[str, Sequence[Value]], requires: Mapping[str, Requires]) -> None:
    order = list(genes)
    for gene, condition in requires.items():
        for name in (gene, condition.on):
            if name not in genes:
                raise unknown_name("gene in requires", name, genes)
        if order.index(condition.on) >= order.index(gene):
            raise UsageError(f"gene {gene!r} requires {condition.on!r}, which must come before")
        for value in condition.values:
            if value not in genes[condition.on]:
                raise UsageError(f"gene {gene!r} requires {condition.on} = {value!r}: no value")
