"""Which architectures to measure: a set that covers what a space costs, or those in a file."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hwnas.errors import FormatError, UsageError
from hwnas.io import parse_json
from hwnas.profiling.records import ArchJson
from hwnas.spaces import Arch, Space, bounded, is_known
from hwnas.spaces import space as declared
from hwnas.spaces.arch import genes_of
from hwnas.spaces.space import Codes

_CANDIDATES = 32  # per wanted architecture, so that few strata stay empty


def covering(space: Space, n: int, *, seed: int = 0) -> list[Arch]:
    """Return `n` different architectures that cover the range of MACs evenly.

    There are the smallest, the largest, and one from each of `n - 2` equal parts of the range. One
    from the middle comes first, since others may be measured beside it (docs/adr/0009); then the
    ends, and the rest in random order, so that whoever stops early has covered the range, too.
    Equal seeds give equal architectures.
    """
    if n < 1:
        raise UsageError(f"{n} architectures; accepted: a whole number from 1")
    if n > space.count():
        raise UsageError(f"{n} architectures of {space.name}, which has only {space.count()}")
    ends = list(dict.fromkeys((space.smallest(), space.largest())))[:n]
    rng = np.random.default_rng(seed)
    return middle_first(space, ends + _between(space, ends, n - len(ends), rng))


def middle_first(space: Space, archs: Sequence[Arch]) -> list[Arch]:
    """Return the architectures in their order, but first the one in the middle of their MACs."""
    if len(archs) < 3:
        return list(archs)
    macs = space.cost(archs).macs
    middle = int(np.argmin(abs(macs - (macs.min() + macs.max()) / 2)))
    return [archs[middle], *archs[:middle], *archs[middle + 1 :]]


def _between(space: Space, ends: list[Arch], n: int, rng: np.random.Generator) -> list[Arch]:
    """Return `n` architectures other than `ends`, from all parts of the range."""
    if n == 0:
        return []
    low, high = (float(macs) for macs in np.sort(space.cost(ends).macs)[[0, -1]])
    edges = np.linspace(low, high, n + 1)
    pool = space.encode(ends)
    known = len(pool)
    while len(pool) < n + known:  # small spaces give the same ones again and again
        drawn = bounded.candidates(space, _CANDIDATES * n, rng, {"macs": (low, high)})
        pool = _distinct(np.concatenate([pool, drawn, _anything(space, n, rng)]))
    candidates = rng.permutation(pool[known:])
    strata = np.clip(np.searchsorted(edges, space.cost(candidates).macs) - 1, 0, n - 1)
    _, first = np.unique(strata, return_index=True)
    rest = np.setdiff1d(np.arange(len(candidates)), first)
    chosen = np.concatenate([first, rest[: n - len(first)]])
    return space.decode(candidates[rng.permutation(chosen)])


def _anything(space: Space, n: int, rng: np.random.Generator) -> Codes:
    # Drawing towards costs may never reach every architecture of a tiny space.
    return space.sample_codes(n, rng)


def _distinct(codes: Codes) -> Codes:
    """Return the rows, each once, in the order in which they first occur."""
    _, first = np.unique(codes, axis=0, return_index=True)
    return codes[np.sort(first)]


def read_archs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the architecture documents in a file, each once, by its place.

    One JSON document a line, or a list of them; an architecture, or an object that holds one as
    `arch`, as `hwnas space sample --json` prints them.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FormatError(f"{path}: cannot be read as text ({error})") from error
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    for place, document in _documents(text, path):
        arch = document.get("arch", document) if isinstance(document, dict) else document
        space, genes = genes_of(arch, place)
        network = [space, genes, arch.get("options")]
        found[json.dumps(network, sort_keys=True)] = (place, arch)
    if not found:
        raise FormatError(f"{path}: holds no architectures")
    return dict(found.values())


def _documents(text: str, path: Path) -> list[tuple[str, Any]]:
    try:
        whole = parse_json(text, str(path))
    except FormatError:
        lines = [(f"{path}, line {n}", line) for n, line in enumerate(text.splitlines(), start=1)]
        return [(place, parse_json(line, place)) for place, line in lines if line.strip()]
    if isinstance(whole, list):
        return [(f"{path}, entry {number}", entry) for number, entry in enumerate(whole, start=1)]
    return [(str(path), whole)]


def arch_document(space: Space, arch: Arch) -> dict[str, Any]:
    """Return the document of an architecture, with the options in which its space is unusual.

    Classes and channels are no choices of the search, but they make another network.
    """
    document = arch.to_json()
    usual = declared(space.name).options if is_known(space.name) else space.options
    options = {name: value for name, value in space.options.items() if usual.get(name) != value}
    return {**document, "options": options} if options else document


def space_of(document: ArchJson, origin: str = "architecture") -> Space:
    """Return the space of an architecture document, with the options that it states."""
    options = document.get("options", {})
    if not isinstance(options, dict):
        raise FormatError(f"{origin}: options are {options!r}, expected an object")
    try:
        return declared(str(document.get("space")), **options)
    except UsageError as error:
        raise UsageError(f"{origin}: {error.message}", error.hint) from error
