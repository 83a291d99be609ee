"""What to measure, by where it comes from: a space, a file of architectures, or a pack.

A pack needs neither torch nor onnx; nothing here imports them before a model has to be built.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hwnas.errors import UsageError
from hwnas.profiling.backends import BuildCall, backend
from hwnas.profiling.graphs import Graphs, graph_digest
from hwnas.profiling.jobs import Job, Provide
from hwnas.profiling.packs import PackProvider, read_pack
from hwnas.profiling.records import ArchJson, Settings
from hwnas.profiling.sampling import (
    arch_document,
    covering,
    middle_first,
    read_archs,
    space_of,
)
from hwnas.spaces import Arch, Space

_DEFAULT_PRECISIONS = ("fp32",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Architectures to measure and what makes their models, and tells their graphs.

    `precisions` are those of its ONNX models, None if it can make any; `usual` are the ones to
    measure when nobody says which.
    """

    archs: list[ArchJson]
    provide: Provide
    graphs: Graphs
    precisions: tuple[str, ...] | None
    usual: tuple[str, ...]


def building(archs: Iterable[ArchJson] = ()) -> Source:
    """Return a source that builds the models of architectures, of these to begin with."""
    from hwnas.pipeline.models import BuildingProvider

    builder = BuildingProvider()
    return Source(
        archs=list(archs),
        provide=builder,
        graphs=Graphs(of=lambda arch, how: graph_digest(builder(arch, how)), costly=True),
        precisions=None,
        usual=_DEFAULT_PRECISIONS,
    )


def from_space(space: Space, n: int, *, seed: int = 0) -> Source:
    """Return `n` architectures that cover the costs of a space."""
    return building([arch_document(space, arch) for arch in covering(space, n, seed=seed)])


def from_file(path: Path, *, of: Space | None = None) -> Source:
    """Return the architectures in a file; `of` says what space they must be of."""
    documents = []
    for place, document in read_archs(path).items():
        space = of or space_of(document, place)
        arch = space.arch_from_json(document, place)
        documents.append(arch_document(space, arch))
    return building(documents)


def from_old_devices(
    old: Sequence[Path], space: Space, n: int, *, seed: int = 0, among: Source | None = None
) -> Source:
    """Return `n` architectures spread over what old devices' profiles let expect.

    They depend on the profiles and the seed alone, not on what is measured of them already.
    `among`: choose of these; otherwise of the whole space.
    """
    from hwnas.pipeline.choose import few
    from hwnas.pipeline.fit import sources_from

    pool = None if among is None else archs_of(among, space)
    chosen = few(space, sources_from(old, space), n, seed=seed, among=pool)
    documents: list[ArchJson] = [arch_document(space, arch) for arch in middle_first(space, chosen)]
    return building(documents) if among is None else replace(among, archs=documents)


def space_of_source(source: Source) -> Space:
    """Return the one space that the architectures of a source are of."""
    first, *others = source.archs
    for other in others:
        if any(other.get(key) != first.get(key) for key in ("space", "options")):
            raise UsageError(
                f"architectures of {first['space']!r} and {other['space']!r}, or with other "
                "options; accepted: those of one space"
            )
    return space_of(first)


def archs_of(source: Source, space: Space) -> list[Arch]:
    """Return the architectures of a source, which are of this space."""
    return [space.arch_from_json(document) for document in source.archs]


def from_pack(path: Path, *, of: Space | None = None) -> Source:
    """Return what a pack holds; `of` says what space it must be of."""
    pack = read_pack(path)
    if of is not None:
        _check_all_of(of, pack.archs(), path)
    there = tuple(dict.fromkeys(model.precision for model in pack.models))
    provider = PackProvider(pack)
    return Source(
        archs=list(pack.archs()),
        provide=provider,
        graphs=Graphs(of=provider.graph),
        precisions=(*there, "bf16") if "fp32" in there else there,
        usual=there,
    )


def _check_all_of(space: Space, documents: Iterable[ArchJson], path: Path) -> None:
    """Raise UsageError unless all architectures are of a space with its options."""
    wanted = arch_document(space, space.smallest())
    for document in documents:
        if any(document.get(key) != wanted.get(key) for key in ("space", "options")):
            raise UsageError(
                f"{path}: holds models of {_described(document)}, not of {_described(wanted)}",
                "leave --space, --classes, --channels and --run out, or pack that: hwnas pack",
            )


def _described(document: ArchJson) -> str:
    options = ", ".join(f"{name}={value}" for name, value in document.get("options", {}).items())
    return f"space {document.get('space')!r}" + (f" with {options}" if options else "")


def plain_module(arch: ArchJson, settings: Settings) -> BuildCall:
    """Return how to make the torch module of an architecture."""
    return BuildCall(target="hwnas.profiling.backends.plain:plain_model", argument=dict(arch))


def macs_of(document: ArchJson) -> int:
    """Return the multiply-accumulates of an architecture document."""
    space = space_of(document)
    return int(space.cost([space.arch_from_json(document)]).macs[0])


def runnable(jobs: Sequence[Job], source: Source) -> tuple[list[Job], list[str]]:
    """Return the jobs that make sense, and in words which combinations do not.

    Raises UsageError if that leaves a backend or a precision without any.
    """
    left_out: dict[str, None] = {}
    kept = []
    for job in jobs:
        reason = _obstacle(job, source)
        if reason is None:
            kept.append(job)
        else:
            left_out[reason] = None
    for asked, found in (
        ({job.backend for job in jobs}, {job.backend for job in kept}),
        ({job.settings.precision for job in jobs}, {job.settings.precision for job in kept}),
    ):
        if asked - found:
            raise UsageError(
                f"nothing to measure for {', '.join(sorted(asked - found))}: {'; '.join(left_out)}"
            )
    return kept, list(left_out)


def _obstacle(job: Job, source: Source) -> str | None:
    runtime, precision = backend(job.backend), job.settings.precision
    if precision not in runtime.precisions:
        return f"{job.backend} has no {precision} (it has {', '.join(runtime.precisions)})"
    if runtime.takes == "onnx" and source.precisions and precision not in source.precisions:
        return f"the pack holds no {precision} (it has {', '.join(source.precisions)})"
    if job.settings.workers > 1 and job.settings.threads > 1:
        return "several workers run on one thread each"
    return None
