"""What profiles hold of a space: a file may mix spaces, and classes or channels of one space."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hwnas.errors import FormatError, UsageError
from hwnas.io import canonical_json
from hwnas.profiling.profiles import Profile, best_records, read_profile
from hwnas.profiling.records import ArchJson, Device, Key, Record
from hwnas.profiling.sampling import arch_document, space_of
from hwnas.spaces import Arch, Space, space

# Of a device and a measurement: the graphs of the models that were measured, None where unknown.
Models = Mapping[tuple[str, Key], set[str | None]]


def measured_in(path: Path, of: Space) -> tuple[Device, list[tuple[Arch, Record]]]:
    """Return the device of a profile and its records of one space, which it must have any of."""
    profile = read_profile(path)
    found = records_of(profile, of, origin=str(path))
    if profile.records and not found:
        there = _named(record.arch for record in profile.records.values())
        raise UsageError(
            f"{path}: a profile of {there}, expected {_name(of.name, _unusual(of))}",
            "name the profile's space: --space, --classes, --channels; what is packed with "
            "hwnas pack --run RUN is of that run's",
        )
    return profile.header.device, found


def by_device(
    paths: Sequence[Path], space: Space
) -> tuple[dict[str, tuple[Device, list[tuple[Arch, Record]]]], Models]:
    """Return what counts of each device, and of which models the profiles are."""
    models: defaultdict[tuple[str, Key], set[str | None]] = defaultdict(set)
    devices: dict[str, Device] = {}
    records: dict[str, list[Record]] = {}
    archs: dict[str, Arch] = {}
    for path in paths:
        device, found = measured_in(path, space)
        devices[device.fingerprint] = device
        for arch, record in found:
            archs[record.key[0]] = arch
            if record.latency is not None:
                records.setdefault(device.fingerprint, []).append(record)
                models[device.fingerprint, record.key].add(record.graph)
    counting = {
        fingerprint: (
            devices[fingerprint],
            [(archs[key[0]], record) for key, record in best_records(found).items()],
        )
        for fingerprint, found in records.items()
    }
    return counting, models


def mixed_forms(
    fingerprint: str, records: Sequence[tuple[Arch, Record]], models: Models
) -> tuple[str, ...]:
    """Return in words whether profiles of a device measured networks in several forms."""
    known = (models[fingerprint, record.key] - {None} for _, record in records)
    several = sum(len(graphs) > 1 for graphs in known)
    if not several:
        return ()
    return (
        f"{several} networks were measured in two forms, of which the newer counts; those that "
        "only the older profile has are of the older form",
    )


def records_of(profile: Profile, of: Space, *, origin: str) -> list[tuple[Arch, Record]]:
    """Return the records of one space, failures too, in the order measured."""
    wanted = (of.name, _unusual(of))
    return [
        (_arch(record, of, origin), record)
        for record in profile.records.values()
        if _identity(record.arch) == wanted
    ]


def space_in(
    paths: Sequence[Path], *, name: str | None = None, options: Mapping[str, Any] | None = None
) -> Space:
    """Return the space that profiles are of; `name` and `options` choose if there are several."""
    wanted = dict(options or {})
    documents: dict[tuple[str, str], ArchJson] = {}
    for path in paths:
        for record in read_profile(path).records.values():
            documents.setdefault(_identity(record.arch), record.arch)
    there = ", ".join(map(str, paths))
    if not documents:
        raise UsageError(f"{there}: has no measurements", "hwnas profile")
    fitting = [
        found
        for document in documents.values()
        if name in (None, document["space"])
        and wanted.items() <= dict((found := space_of(document)).options).items()
    ]
    if len(fitting) == 1:
        return fitting[0]
    if name is not None:
        return space(name, **wanted)
    raise UsageError(
        f"{there}: of {_named(documents.values())}; accepted: one space at a time",
        "say which: --space NAME, --classes, --channels",
    )


def _unusual(of: Space) -> str:
    return canonical_json(arch_document(of, of.smallest()).get("options", {}))


def _identity(document: ArchJson) -> tuple[str, str]:
    return str(document["space"]), canonical_json(document.get("options", {}))


def _named(documents: Iterable[ArchJson]) -> str:
    return " and ".join(_name(*one) for one in dict.fromkeys(map(_identity, documents)))


def _name(space_name: str, options: str) -> str:
    return f"space {space_name!r}" + (f" with {options}" if options != "{}" else "")


def _arch(record: Record, of: Space, origin: str) -> Arch:
    genes = record.arch.get("genes")
    if not isinstance(genes, dict):
        raise FormatError(f"{origin}: an architecture has no genes")
    try:
        return of.arch(genes)
    except UsageError as error:
        raise UsageError(f"{origin}: {error.message}", error.hint) from error
