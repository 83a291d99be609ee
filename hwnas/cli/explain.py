"""`hwnas profile --explain`: where the milliseconds of one architecture go.

With a run it is kept there, for reports that measure nothing.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.cli.output import Output, millions, table
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.cli.profile_measuring import Settings
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.explain import Explanation
    from hwnas.profiling.records import ArchJson
    from hwnas.profiling.records import Settings as How
    from hwnas.spaces import Space

_SHORTEST_DIGEST = 4
_OPERATORS_SHOWN = 3


def show_explanation(
    output: Output,
    wanted: str,
    *,
    pack: Path | None,
    archs: str | None,
    space: "Space | None",
    profile: Path,
    settings: "Settings",
    run: Path | None,
) -> None:
    """Print the blocks of an architecture with their times, slowest first; keep them in `run`."""
    from hwnas.io.scratch import scratch_folder
    from hwnas.pipeline.explanations import Explained, write_explanation
    from hwnas.pipeline.measuring import macs_of
    from hwnas.profiling.driver import preflight
    from hwnas.profiling.explain import explain
    from hwnas.profiling.jobs import Job
    from hwnas.profiling.machine import device as this_device

    how = _how(settings)
    source = _source(pack, archs, space)
    arch = find_arch(wanted, source=source, space=space, profile=profile, run=run)
    made = source.provide(arch, how)
    assert isinstance(made, bytes)
    job = Job(arch=arch, backend="onnxruntime", settings=how)
    for reason in preflight([job]).reasons:  # where the time goes can still be told roughly
        output.note(f"caution: {reason}")
    with scratch_folder() as folder:
        path = folder / "model.onnx"
        path.write_bytes(made)
        found = explain(path, threads=how.threads, batch=how.batch)
    explained = Explained(
        arch=arch,
        macs=macs_of(arch),
        device=this_device().name,
        backend="onnxruntime",
        settings=how,
        found=found,
    )
    document = explained.to_json()
    text = _text(document, found)
    if run is not None:
        text += f"\n\n{write_explanation(run, explained)}"
    output.result(document, text)


def _how(settings: "Settings") -> "How":
    """Return the setting; raises UsageError for several, and where nothing could be told."""
    from hwnas.profiling.backends import backend
    from hwnas.profiling.backends.base import check_precision
    from hwnas.profiling.records import Settings as How

    given = {"backend": (settings.backends, "onnxruntime"), "pages": (settings.pages, "default"),
             "workers": (settings.workers, 1)}  # fmt: skip
    for option, (values, accepted) in given.items():
        value = ",".join(map(str, values))
        if value != str(accepted):
            raise UsageError(f"--explain with --{option} {value}; accepted: {accepted}",
                             f"leave --{option} out")  # fmt: skip
    several = {"threads": settings.threads, "batch": settings.batches,
               "precision": settings.precisions or ()}  # fmt: skip
    for option, found in several.items():
        if len(found) > 1:
            shown = ",".join(map(str, found))
            raise UsageError(f"--explain with --{option} {shown}; accepted: one of them",
                             f"--{option} {found[0]}")  # fmt: skip
    how = How(threads=settings.threads[0], batch=settings.batches[0],
              precision=(settings.precisions or ("fp32",))[0])  # fmt: skip
    check_precision(backend("onnxruntime"), how)
    return how


def _source(pack: Path | None, archs: str | None, space: "Space | None") -> "Source":
    from hwnas.cli.profile import named_source
    from hwnas.cli.verbs import require
    from hwnas.pipeline import measuring

    if pack is None:
        require("profile --explain", ("onnx",))
    return named_source(pack, space, archs) or measuring.building()


def find_arch(
    wanted: str, *, source: "Source", space: "Space | None", profile: Path, run: Path | None = None
) -> "ArchJson":
    """Return the architecture that `wanted` names: an end of the range, a file, or a digest."""
    if wanted in ("smallest", "largest"):
        return _end(wanted, source, space)
    if Path(wanted).is_file():
        return _only_one(Path(wanted), space)
    return _by_digest(wanted, [*_measured(source, profile), *_found(run)])


def _end(which: str, source: "Source", space: "Space | None") -> "ArchJson":
    from hwnas.pipeline.measuring import macs_of
    from hwnas.profiling.sampling import arch_document

    if source.archs:
        return (min if which == "smallest" else max)(source.archs, key=macs_of)
    if space is None:
        raise UsageError(f"the {which} of which space?", "add --space NAME, or name a pack")
    return arch_document(space, space.smallest() if which == "smallest" else space.largest())


def _only_one(path: Path, space: "Space | None") -> "ArchJson":
    from hwnas.pipeline.measuring import from_file

    archs = from_file(path, of=space).archs
    if len(archs) > 1:
        raise UsageError(f"{path}: holds {len(archs)} architectures; accepted: one")
    return archs[0]


def _measured(source: "Source", profile: Path) -> "list[tuple[str, Sequence[ArchJson]]]":
    """Return the architectures that are named, or else of a profile, with the name of the place."""
    from hwnas.profiling.profiles import read_profile

    if source.archs or not profile.exists():
        return [("those named", source.archs)]
    return [(str(profile), [record.arch for record in read_profile(profile).records.values()])]


def _found(run: Path | None) -> "list[tuple[str, Sequence[ArchJson]]]":
    """Return the architectures of the front of a run, with the name of the place."""
    from hwnas.pipeline.fronts import FOLDER, FRONT_FILE, arch_of, latest_front
    from hwnas.pipeline.rundir import open_run, space_of
    from hwnas.profiling.sampling import arch_document

    if run is None or not (run / FOLDER / FRONT_FILE).is_file():
        return []
    there = open_run(run)
    front, space = latest_front(there), space_of(there)
    archs = [arch_document(space, arch_of(front, index)) for index in range(len(front.choices))]
    return [("the front", archs)]


def _by_digest(wanted: str, places: "Sequence[tuple[str, Sequence[ArchJson]]]") -> "ArchJson":
    from hwnas.profiling.records import arch_digest

    if len(wanted) >= _SHORTEST_DIGEST:
        known = {arch_digest(arch): arch for _, archs in places for arch in archs}
        matching = [arch for name, arch in known.items() if name.startswith(wanted)]
        if len(matching) == 1:
            return dict(matching[0])
        if matching:
            raise UsageError(f"{wanted!r} begins {len(matching)} digests", "give more digits")
    searched = " and ".join(name for name, archs in places if archs) or "no profile is there"
    raise UsageError(
        f"{wanted!r} is no file, and no digest of an architecture ({searched}); accepted: "
        "smallest, largest, an architecture's JSON file, or a digest in a profile",
        "hwnas profiles show FILE --all",
    )


def _text(document: dict[str, Any], found: "Explanation") -> str:
    how = document["settings"]
    head = (
        f"{document['digest'][:12]} of {document['arch']['space']}: "
        f"{millions(document['macs'])} MACs, {found.total_ms:.3f} ms "
        f"(onnxruntime, {how['precision']}, threads {how['threads']}, batch {how['batch']})"
    )
    rows = [
        [
            row.block,
            f"{row.ms:.3f}",
            f"{row.share:.1%}",
            " ".join(
                f"{kind} {ms:.3f}" for kind, ms in [*row.operators.items()][:_OPERATORS_SHOWN]
            ),
        ]
        for row in found.rows
    ]
    return f"{head}\n\n{table(['block', 'ms', 'share', 'operators'], rows, right=(1, 2))}"
