"""The measurements in profiles/: whole, sane, complete, and what their README says.

`python tests/e2e/test_shipped_profiles.py` writes the table of contents into the README.
"""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from hwnas.profiling.checking import check_profile
from hwnas.profiling.machine import slug
from hwnas.profiling.profiles import read_profile, write_profile
from hwnas.profiling.records import arch_digest
from hwnas.profiling.sampling import arch_document, covering, space_of
from hwnas.profiling.summaries import groups
from hwnas.spaces import space as declared

FOLDER = Path(__file__).resolve().parents[2] / "profiles"
TABLE = re.compile(r"(<!-- contents -->\n(?:\|.*\n){2})((?:\|.*\n)*)(<!-- end -->)")
ORT = "onnxruntime"
# Of the device that all this was developed on; others may bring less.
REQUIRED = {
    (space, ORT, precision, threads)
    for space in ("nasvit", "nano")
    for precision in ("fp32", "int8_dynamic")
    for threads in (1, 2)
}


def files(folder: Path = FOLDER) -> list[Path]:
    return sorted(folder.glob("*.jsonl"))


def problems(path: Path) -> list[str]:
    """Return what is wrong with a profile beyond what reading it refuses."""
    profile = read_profile(path)
    found = check_profile(profile)
    if slug(profile.header.device.name) != path.stem:
        found.append(f"is of device {profile.header.device.name!r}")
    archs = defaultdict(set)
    for record in profile.records.values():
        space = space_of(record.arch)
        arch = space.arch_from_json(record.arch)
        if arch_document(space, arch) != record.arch:
            found.append(f"{arch_digest(record.arch)[:12]} is not in canonical form")
        archs[space.name, record.backend, record.settings].add(arch)
    for (space, backend, settings), these in archs.items():
        if these != archs[space, ORT, type(settings)()]:
            found.append(f"{space} on {backend} with {settings} has other architectures")
    found += [f"{arch_digest(r.arch)[:12]} failed: {r.failure.reason}" for r in profile.failed()]
    return found


def contents() -> str:
    rows = []
    for path in files():
        for group in groups(list(read_profile(path).records.values())):
            how = group.settings
            grades = " ".join(f"{count}{letter}" for letter, count in group.grades.items())
            cells = (
                path.name, group.space, group.backend, how.precision, how.threads, how.batch,
                group.models, f"{group.least_ms:.2f}..{group.most_ms:.2f}", grades,
            )  # fmt: skip
            rows.append("| " + " | ".join(map(str, cells)) + " |\n")
    return "".join(rows)


def test_every_profile_is_sound() -> None:
    assert {path.name: problems(path) for path in files()} == {path.name: [] for path in files()}


def test_a_device_has_everything() -> None:
    held = [
        {(g.space, g.backend, g.settings.precision, g.settings.threads)
         for g in groups(list(read_profile(path).records.values())) if g.models >= 150}
        for path in files()
    ]  # fmt: skip
    complete = [
        kinds for kinds in held if kinds >= REQUIRED and "openvino" in {kind[1] for kind in kinds}
    ]
    assert complete or not held


def test_the_commands_of_the_readme_give_the_same_architectures() -> None:
    """A profile of another device would have nothing in common with them otherwise."""
    for path in files():
        held = defaultdict(set)
        for record in read_profile(path).records.values():
            held[record.arch["space"]].add(arch_digest(record.arch))
        for name, digests in held.items():
            assert digests == {arch.digest for arch in covering(declared(name), len(digests))}


def test_the_readme_lists_what_is_there() -> None:
    match = TABLE.search((FOLDER / "README.md").read_text())
    assert match is not None
    assert match[2] == contents()


@pytest.fixture
def taken(hwnas, tmp_path, own_lock):
    asked = ("--space", "nano", "-n", "3", "--batch", "1,2", "--force", "--no-memory")
    child = hwnas("profile", *asked, "--max-seconds", "0.1", cwd=tmp_path)
    assert child.returncode == 0, child.stderr
    (path,) = files(tmp_path / "profiles")
    return path


def test_what_the_command_writes_passes_unless_it_is_changed(taken) -> None:
    assert [line for line in problems(taken) if "grade D" not in line] == []
    profile = read_profile(taken)
    last = covering(space_of(next(iter(profile.records.values())).arch), 3)[2].digest
    kept = {
        key: record
        for key, record in profile.records.items()
        if not (arch_digest(record.arch) == last and record.settings.batch == 2)
    }
    write_profile(taken, type(profile)(header=profile.header, records=kept))
    assert any("other architectures" in line for line in problems(taken))
    moved = taken.rename(taken.with_name("another.jsonl"))
    assert any("is of device" in line for line in problems(moved))


if __name__ == "__main__":
    readme = FOLDER / "README.md"
    readme.write_text(TABLE.sub(lambda m: m[1] + contents() + m[3], readme.read_text()))
