"""`hwnas profiles`: list, show, compare, merge and check measurements that were taken."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.profile_measuring import PROFILES, groups_table
from hwnas.errors import AbsentError, FormatError, GateError, UsageError

if TYPE_CHECKING:
    from hwnas.profiling.profiles import Profile
    from hwnas.profiling.records import Record

FILE = click.Path(path_type=Path)


@click.group()
def profiles() -> None:
    """List, show, compare, merge and check profiles."""


@profiles.command("list")
@click.argument("folder", type=FILE, default=PROFILES, metavar="[FOLDER]")
@verb_options
def list_profiles(output: Output, folder: Path) -> None:
    """List the profiles in FOLDER (profiles/ unless given)."""
    from hwnas.profiling.profiles import read_profile

    if folder.is_file():
        raise UsageError(f"{folder}: is a file", f"hwnas profiles show {folder}")
    if not folder.is_dir():
        raise AbsentError(f"{folder}: no such folder", "hwnas profile --space nano -n 20")
    documents, rows, problems = [], [], list[str]()
    for path in sorted(folder.glob("*.jsonl")):
        try:
            document = _outline(read_profile(path))
        except FormatError as error:
            documents.append({"file": str(path), "problem": error.message})
            rows.append([path.name, "unreadable", "-", "-", "-"])
            problems.append(error.message)
            continue
        documents.append({"file": str(path), **document})
        rows.append(
            [path.name, document["device"], ",".join(document["spaces"]),
             ",".join(document["backends"]), str(document["records"])]
        )  # fmt: skip
    header = ["file", "device", "spaces", "backends", "records"]
    text = table(header, rows, right=(4,)) if rows else f"{folder}: no profiles"
    output.result(documents, "\n\n".join([text, *problems]))


@profiles.command("show")
@click.argument("file", type=FILE)
@click.option("--all", "every", is_flag=True, help="Also show each record.")
@verb_options
def show(output: Output, file: Path, every: bool) -> None:
    """Show the device, the conditions and the latencies of a profile."""
    from hwnas.profiling.profiles import read_profile
    from hwnas.profiling.records import header_json
    from hwnas.profiling.summaries import groups

    found = read_profile(file)
    records = list(found.records.values())
    summary = groups(records)
    document = {
        **header_json(found.header),
        "groups": [asdict(group) for group in summary],
        "failures": [_failure(record) for record in found.failed()],
    }
    parts = [_header_text(found), groups_table(summary)]
    if found.failed():
        parts.append("\n".join(f"failed {text}" for text in map(_failure_text, found.failed())))
    if every:
        document["records"] = [_line(record) for record in found.measured()]
        parts.append(_records_table(found.measured()))
    output.result(document, "\n\n".join(parts))


@profiles.command("diff")
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@verb_options
def diff(output: Output, first: Path, second: Path) -> None:
    """Compare the latencies of two profiles, of one device or of two."""
    from hwnas.profiling.profiles import diff_profiles, read_profile
    from hwnas.profiling.summaries import differences

    one, other = read_profile(first), read_profile(second)
    whole = diff_profiles(one, other)
    documents: list[dict[str, Any]] = []
    for (space, backend, settings), found in differences(one, other):
        if found.median_ratio is not None:
            documents.append(
                {"space": space, "backend": backend, "settings": asdict(settings),
                 "both": len(found.keys), "median_ratio": found.median_ratio,
                 "least_ratio": min(found.ratios), "most_ratio": max(found.ratios),
                 "spearman": found.spearman, "other_models": found.other_models}
            )  # fmt: skip
    same = one.header.device.fingerprint == other.header.device.fingerprint
    text = [
        f"{first}: {one.header.device.name}",
        f"{second}: {other.header.device.name}{' (the same device)' if same else ''}",
        f"{len(whole.keys)} measurements in both, {whole.only_first} only in the first, "
        f"{whole.only_second} only in the second",
    ]
    if whole.other_models:
        text.append(f"{whole.other_models} of those in both are of models in another form")
    if documents:
        text += ["", _differences_table(documents), "", "ratio: second / first"]
    output.result(
        {"same_device": same, "both": len(whole.keys), "only_first": whole.only_first,
         "only_second": whole.only_second, "other_models": whole.other_models,
         "groups": documents},
        "\n".join(text),
    )  # fmt: skip


@profiles.command("merge")
@click.argument("files", type=FILE, nargs=-1, required=True)
@click.option("-o", "--out", type=FILE, required=True, help="The profile to write.")
@verb_options
def merge(output: Output, files: tuple[Path, ...], out: Path) -> None:
    """Write the union of profiles of one device; of two equal measurements the better graded.

    What was measured beside the same model in all of them is told at one latency of that model, so
    that a slow hour of the one does not set its measurements apart from the others. Where they are
    of different models of one network, written in two forms, the newer counts, and levels stay.
    """
    from hwnas.profiling.companions import at_one_level
    from hwnas.profiling.profiles import merge_profiles, other_models, read_profile, write_profile

    merged, others = read_profile(files[0]), set[object]()
    for path in files[1:]:
        added = read_profile(path)
        others.update(other_models(merged.records, added.records))
        merged = merge_profiles(merged, added)
    told = merged if others else at_one_level(merged)
    changed = sum(told.records[key] is not record for key, record in merged.records.items())
    _check_nothing_lost(out, files, told)
    write_profile(out, told)
    if changed:
        output.note(
            f"{changed} measurements are told at what the model that they were measured beside "
            "took in the middle of all these sessions"
        )
    if others:
        output.note(
            f"{len(others)} measurements are of other models of the same networks in one profile "
            "than in another; the newer count. What only the older has was measured in its form: "
            "a predictor of both would mix them"
        )
    output.result(
        {"profile": str(out), **_outline(told), "other_models": len(others), "told_anew": changed},
        f"{out}: {len(told.records)} records",
    )


def _check_nothing_lost(out: Path, files: tuple[Path, ...], merged: "Profile") -> None:
    """Raise UsageError where `out` is there and holds what the merged profile does not."""
    from hwnas.profiling.profiles import read_profile

    if not out.exists() or any(out.samefile(path) for path in files):
        return
    choose_another = "write another file: -o FILE"
    if out.is_dir():
        raise UsageError(f"{out}: is a folder", choose_another)
    try:
        there = read_profile(out)
    except FormatError as error:
        raise UsageError(f"{out}: exists and is no profile that can be read", choose_another) from (
            error
        )
    only_there = len(there.records.keys() - merged.records.keys())
    same_device = there.header.device.fingerprint == merged.header.device.fingerprint
    if only_there or not same_device:
        raise UsageError(
            f"{out}: exists, and {only_there or len(there.records)} of its measurements would be "
            "lost" + ("" if same_device else f"; it is a profile of {there.header.device.name!r}"),
            f"merge it, too: hwnas profiles merge {' '.join(map(str, files))} {out} -o {out}"
            if same_device
            else choose_another,
        )


@profiles.command("check")
@click.argument("files", type=FILE, nargs=-1, required=True)
@verb_options
def check(output: Output, files: tuple[Path, ...]) -> None:
    """Check that profiles are whole, agree with themselves and can be trusted."""
    problems = {str(path): _problems(path) for path in files}
    lines = [
        f"{path}: {'; '.join(found) if found else 'sound'}" for path, found in problems.items()
    ]
    output.result(problems, "\n".join(lines))
    bad = [path for path, found in problems.items() if found]
    if bad:
        raise GateError(
            f"{len(bad)} of {len(files)} profiles have problems: {', '.join(bad)}",
            _what_helps([Path(path) for path in bad]),
        )


def _what_helps(bad: list[Path]) -> str:
    """Return the hint of the first that cannot be read, else how to look at the first."""
    from hwnas.profiling.profiles import read_profile

    for path in bad:
        try:
            read_profile(path)
        except FormatError as error:
            return error.hint
    return f"hwnas profiles show {bad[0]} --all"


def _problems(path: Path) -> list[str]:
    from hwnas.profiling.checking import check_profile
    from hwnas.profiling.profiles import read_profile

    try:
        return check_profile(read_profile(path))
    except AbsentError:
        raise
    except FormatError as error:  # the others are to be checked, too
        return [error.message.removeprefix(str(path)).lstrip(":, ")]


def _outline(profile: "Profile") -> dict[str, Any]:
    records = list(profile.records.values())
    return {
        "device": profile.header.device.name,
        "spaces": sorted({str(record.arch["space"]) for record in records}),
        "backends": sorted({record.backend for record in records}),
        "records": len(records),
        "failed": len(profile.failed()),
    }


def _header_text(profile: "Profile") -> str:
    header = profile.header
    device = header.device
    rows = [
        ["device", device.name],
        ["cpu", f"{device.cpu}, {device.cores} cores, {device.architecture}"],
        ["memory", f"{device.memory_mb / 1024:.1f} GiB"],
        ["os", device.os],
        ["runtimes", ", ".join(f"{name} {number}" for name, number in header.runtimes.items())],
        ["begun", datetime.fromtimestamp(header.created_at, UTC).strftime("%Y-%m-%d %H:%M UTC")],
    ]
    if header.note:
        rows.append(["note", header.note])
    return table(rows[0], rows[1:], right=())


def _failure(record: "Record") -> dict[str, Any]:
    assert record.failure is not None
    return {**_what(record), **asdict(record.failure)}


def _failure_text(record: "Record") -> str:
    assert record.failure is not None
    what = _what(record)
    return f"{what['digest'][:12]} on {record.backend}: {record.failure.reason}"


def _what(record: "Record") -> dict[str, Any]:
    from hwnas.profiling.records import arch_digest

    return {
        "digest": arch_digest(record.arch),
        "backend": record.backend,
        "settings": asdict(record.settings),
    }


def _line(record: "Record") -> dict[str, Any]:
    assert record.latency is not None
    latency = record.latency
    return {
        **_what(record),
        "graph": record.graph,
        "median_ms": latency.median_ms,
        "p90_ms": latency.p90_ms,
        "p99_ms": latency.p99_ms,
        "throughput_per_s": record.throughput_per_s,
        "peak_mb": record.memory.peak_mb if record.memory else None,
        "energy_mj": record.energy_mj,
        "grade": record.grade,
        "reasons": list(record.reasons),
    }


def _records_table(records: "list[Record]") -> str:
    rows = []
    for record, line in ((record, _line(record)) for record in records):
        settings, peak, energy = line["settings"], line["peak_mb"], line["energy_mj"]
        rows.append(
            [line["digest"][:12], line["backend"], record.settings.form,
             str(settings["threads"]), str(settings["batch"]), str(settings["workers"]),
             f"{line['median_ms']:.3f}", f"{line['p90_ms']:.3f}", f"{line['p99_ms']:.3f}",
             "-" if peak is None else f"{peak:.0f}", "-" if energy is None else f"{energy:.1f}",
             line["grade"], "; ".join(line["reasons"])]
        )  # fmt: skip
    header = ["architecture", "backend", "precision", "threads", "batch", "workers", "median",
              "p90", "p99", "peak MB", "mJ", "grade", "why"]  # fmt: skip
    return table(header, rows, right=(3, 4, 5, 6, 7, 8, 9, 10))


def _differences_table(documents: list[dict[str, Any]]) -> str:
    from hwnas.profiling.records import Settings

    rows = [
        [
            one["space"],
            one["backend"],
            Settings(**one["settings"]).form,
            *(str(one["settings"][name]) for name in ("threads", "batch", "workers")),
            str(one["both"]),
            f"{one['median_ratio']:.3f}",
            f"{one['least_ratio']:.3f}..{one['most_ratio']:.3f}",
            "-" if one["spearman"] is None else f"{one['spearman']:.3f}",
        ]
        for one in documents
    ]
    header = ["space", "backend", "precision", "threads", "batch", "workers", "both", "ratio",
              "range", "rank corr."]  # fmt: skip
    return table(header, rows, right=(3, 4, 5, 6, 7, 8, 9))
