"""The run folder: `run.json`, and the supernet's weights under `supernet/`.

`supernet/step-N.safetensors` holds the shared weights after N steps with the running statistics
that they have; `supernet/LATEST` names the newest. Every file appears whole or not at all, so a
run that was interrupted anywhere can be opened again.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.errors import FormatError, HwnasError, UsageError
from hwnas.io import (
    Schema,
    canonical_json,
    parse_json,
    read_json,
    read_tensors,
    write_atomic,
    write_json,
    write_tensors,
)
from hwnas.io.paths import typed
from hwnas.pipeline.alone import holds_only
from hwnas.spaces import Space, space

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hwnas.supernet import Supernet

RUN_SCHEMA = Schema(name="hwnas/run", version=1)
SUPERNET_SCHEMA = Schema(name="hwnas/supernet", version=1)
RUN_FILE, RUNS_FOLDER = "run.json", "runs"
SUPERNET_FOLDER, LATEST_FILE = "supernet", "LATEST"
STEP_FILE = re.compile(r"step-(\d+)\.safetensors")
_STATISTICS = ("running_mean", "running_var")
_RECORDED_PACKAGES = ("hwnas", "numpy", "torch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """A run folder. `status`: started or complete; `origin`: where its weights come from."""

    folder: Path
    status: str
    space: str
    options: Mapping[str, Any]
    origin: Mapping[str, Any]
    versions: Mapping[str, str]
    host: Mapping[str, Any]

    @property
    def typed(self) -> str:
        """The folder as it is typed in a command."""
        return typed(self.folder)

    @property
    def profiles(self) -> list[Path]:
        """The profiles in the run, one per device."""
        return profiles_in(self.folder)


def profiles_in(folder: Path) -> list[Path]:
    """Return the profiles in the folder of a run."""
    return sorted((folder / "profiles").glob("*.jsonl"))


def create_run(folder: Path, *, of: Space, origin: Mapping[str, Any]) -> Run:
    """Return the run of this space and origin in `folder`, begun now or earlier.

    The folder must be new, empty, or hold a run with the same space and origin, or one that has
    no weights yet, which is begun anew.
    """
    check_may_hold(folder, of=of, origin=origin)
    run = Run(
        folder=Path(folder),
        status="started",
        space=of.name,
        options=dict(of.options),
        origin=dict(origin),
        versions=recorded_versions(),
        host={"system": platform.system(), "machine": platform.machine()},
    )
    _write(run)
    return run


def check_may_hold(folder: Path, *, of: Space, origin: Mapping[str, Any]) -> None:
    """Raise UsageError unless a run of this space and origin can be begun or is in `folder`."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder}: is a file, a run needs a folder")
    if (folder / RUN_FILE).exists():
        there = open_run(folder)
        same = (there.space, there.options, there.origin) == (of.name, dict(of.options), origin)
        if not same and has_weights(folder):
            raise UsageError(
                f"{folder}: holds another run ({_described(there)})", "choose another folder"
            )
    elif folder.exists() and not holds_only(folder, [RUN_FILE]):
        raise UsageError(
            f"{folder}: is neither empty nor a run folder", "choose a folder that does not exist"
        )


def has_weights(folder: Path) -> bool:
    """Return whether the run in a folder has a supernet: its training came to a checkpoint."""
    return (folder / SUPERNET_FOLDER / LATEST_FILE).exists()


def open_run(folder: Path | str) -> Run:
    """Return the run in `folder`."""
    folder = Path(folder)
    path = folder / RUN_FILE
    if not path.is_file():
        what = f"not a run folder (it has no {RUN_FILE})" if folder.exists() else "no such folder"
        raise UsageError(f"{folder}: {what}", _where_runs_are(folder))
    document = read_json(path, RUN_SCHEMA)
    texts = {key: document.get(key) for key in ("status", "space")}
    tables = {key: document.get(key) for key in ("options", "origin", "versions", "host")}
    for kind, named, values in ((str, "text", texts), (dict, "object", tables)):
        for key, value in values.items():
            if not isinstance(value, kind):
                raise FormatError(f"{path}: {key} is {value!r}, expected JSON {named}")
    return Run(folder=folder, **texts, **tables)  # type: ignore[arg-type]


def _where_runs_are(folder: Path) -> str:
    for place in (folder, folder.parent, Path(RUNS_FOLDER)):
        found = sorted(path.parent for path in place.glob(f"*/{RUN_FILE}"))
        if found:
            return f"runs are there: {', '.join(map(str, found[:3]))}"
    return f"hwnas train RECIPE --run {typed(folder)} makes one"


def find_run(folder: Path | str | None = None, *, here: Path = Path()) -> Run:
    """Return the run in `folder`; without one the folder `here`, or the only run in `here`/runs."""
    found = open_run(folder) if folder is not None else only_run(here)
    if found is None:
        raise UsageError(
            f"no run is named, and there is none in {here.resolve()} nor in its folder "
            f"{RUNS_FOLDER}",
            "go to the folder that has runs/, or say --run RUN; hwnas train makes a run",
        )
    return found


def only_run(here: Path = Path()) -> Run | None:
    """Return the run in `here`, or the only one in `here`/runs; None where there is none."""
    if (here / RUN_FILE).is_file():
        return open_run(here)
    found = sorted(path.parent for path in (here / RUNS_FOLDER).glob(f"*/{RUN_FILE}"))
    if len(found) > 1:
        raise UsageError(
            f"{len(found)} runs in {here / RUNS_FOLDER}: {', '.join(map(str, found))}",
            f"say which: --run {typed(found[0])}",
        )
    return open_run(found[0]) if found else None


def complete_run(run: Run) -> Run:
    """Record that everything the run was started for is there."""
    done = Run(**{**_fields(run), "folder": run.folder, "status": "complete"})
    _write(done)
    return done


def space_of(run: Run) -> Space:
    """Return the space of a run, with the options it was started with."""
    return space(run.space, **run.options)


def save_supernet(run: Run, supernet: "Supernet", *, step: int) -> Path:
    """Write the shared weights and running statistics after `step` steps; return the file."""
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in supernet.state_dict().items()}
    path = run.folder / SUPERNET_FOLDER / f"step-{step}.safetensors"
    described = SUPERNET_SCHEMA.stamp({"space": run.space, "step": step})
    # One entry: the order of several is random, and equal weights should be equal files.
    write_tensors(path, arrays, {"hwnas": canonical_json(described)})
    write_atomic(path.with_name(LATEST_FILE), f"{path.name}\n")
    return path


def latest_step(run: Run) -> int:
    """Return the number of steps of the newest weights of a run."""
    path = run.folder / SUPERNET_FOLDER / LATEST_FILE
    try:
        name = path.read_text(errors="replace").strip()
    except OSError as error:
        raise HwnasError(f"{run.folder}: has no supernet yet ({path} cannot be read)") from error
    match = STEP_FILE.fullmatch(name)
    if match is None:
        raise FormatError(f"{path}: names {name!r}, expected step-N.safetensors")
    return int(match[1])


def supernet_file(run: Run, *, step: int | None = None) -> Path:
    """Return the file of the weights after `step` steps (default: the newest)."""
    step = latest_step(run) if step is None else step
    return run.folder / SUPERNET_FOLDER / f"step-{step}.safetensors"


def load_supernet(run: Run, *, step: int | None = None) -> "Supernet":
    """Return the supernet of a run after `step` steps (default: the newest), evaluating."""
    from hwnas.supernet import Supernet

    path = supernet_file(run, step=step)
    arrays, metadata = read_tensors(path)
    described = SUPERNET_SCHEMA.check(_description(metadata), str(path))
    if described.get("space") != run.space:
        raise FormatError(f"{path}: weights of {described.get('space')!r}, expected {run.space!r}")
    supernet = Supernet(space_of(run))
    _fill(supernet, arrays, path)
    return supernet.eval()


def _description(metadata: Mapping[str, str]) -> Any:  # noqa: ANN401 - parsed JSON
    try:
        return parse_json(metadata.get("hwnas", ""), "metadata")
    except FormatError:
        return None


def _fill(supernet: "Supernet", arrays: "Mapping[str, NDArray[Any]]", path: Path) -> None:
    import torch

    from hwnas.sharing.shared import Shared

    parameters = dict(supernet.named_parameters())
    statistics = {name for name in arrays if name.endswith(_STATISTICS)}
    missing = sorted(set(parameters) - set(arrays))
    unexpected = sorted(set(arrays) - set(parameters) - statistics)
    if missing or unexpected:
        raise FormatError(f"{path}: lacks {missing[:3]}, has unknown {unexpected[:3]}")
    for name, parameter in parameters.items():
        if arrays[name].shape != tuple(parameter.shape):
            raise FormatError(
                f"{path}: {name} is {arrays[name].shape}, expected {tuple(parameter.shape)}"
            )
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(arrays[name]))
    for name in sorted(statistics):
        _, slot, inner = name.split(".", 2)
        shared = supernet.blocks[slot]
        assert isinstance(shared, Shared)
        shared.add_statistics(inner, torch.from_numpy(arrays[name]))


def _fields(run: Run) -> dict[str, Any]:
    return {
        "status": run.status,
        "space": run.space,
        "options": dict(run.options),
        "origin": dict(run.origin),
        "versions": dict(run.versions),
        "host": dict(run.host),
    }


def _write(run: Run) -> None:
    write_json(run.folder / RUN_FILE, RUN_SCHEMA, _fields(run))


def _described(run: Run) -> str:
    return ", ".join([run.space, *(f"{key} {value}" for key, value in run.origin.items())])


def recorded_versions() -> dict[str, str]:
    """Return the versions of what decides results, as files that are written record them."""
    versions = {"python": platform.python_version()}
    for package in _RECORDED_PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
