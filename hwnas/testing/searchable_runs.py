"""Runs to search in: random weights, made-up accuracies and latencies, and real predictors."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hwnas.io import Journal
from hwnas.pipeline.accuracies import FILE, SCHEMA, spread
from hwnas.pipeline.config import read_recipe, to_toml
from hwnas.pipeline.fit import accuracy_rows, fit_rows, profile_rows
from hwnas.pipeline.rundir import Run, space_of
from hwnas.profiling.machine import device as this_device
from hwnas.profiling.profiles import Profile, best_records, write_profile
from hwnas.profiling.records import Settings
from hwnas.spaces import Arch, Space
from hwnas.testing.profiles import made_up_profile
from hwnas.testing.runs import SMALL, imported_run

ROWS = 60
HERE = "here"  # the name under which this machine is known


def searchable_run(
    folder: Path, devices: Mapping[str, Sequence[Settings]], *, speed: float = 1.0
) -> Run:
    """Return a run of the nano space whose predictors know these devices; HERE is this machine.

    `speed`: how many times faster than usual all devices are.
    """
    run = imported_run(folder, statistics=False)
    (folder / "config.toml").write_text(to_toml(read_recipe("nano-fashion", SMALL)))
    space = space_of(run)
    archs = spread(space, ROWS, seed=1)
    _record_accuracies(run, space, archs)
    for number, (name, several) in enumerate(devices.items()):
        records = []
        for settings in several:
            values = made_up_latency(space, archs, settings) * (1.0 + 7.0 * number) / speed
            pairs = list(zip(archs, values.tolist(), strict=True))
            profile = made_up_profile(name, pairs, settings=settings, space=space)
            records += list(profile.records.values())
        device = profile.header.device
        if name == HERE:
            device = this_device(name=HERE)
        header = replace(profile.header, device=device)
        path = folder / "profiles" / f"{name}.jsonl"
        write_profile(path, Profile(header=header, records=best_records(records)))
    paths = sorted((folder / "profiles").glob("*.jsonl"))
    for rows in (accuracy_rows(run), *profile_rows(paths, space)):
        fit_rows(rows, space, folder=folder / "predictors" / rows.name, quick=True)
    return run


def made_up_latency(space: Space, archs: Sequence[Arch], settings: Settings) -> NDArray[np.float64]:
    """Return milliseconds that follow from costs and settings, with one per cent of noise."""
    costs = space.cost(list(archs))
    noise = np.random.default_rng(0).normal(0.0, 0.01, len(archs))
    clean = 0.2 + costs.macs / 3e6 + 0.02 * costs.layers
    faster = settings.threads**0.7 * (1.5 if settings.precision.startswith("int8") else 1.0)
    return np.asarray(clean * settings.batch**0.9 / faster * np.exp(noise))


def _record_accuracies(run: Run, space: Space, archs: Sequence[Arch]) -> None:
    macs = space.cost(list(archs)).macs
    noise = np.random.default_rng(1).normal(0.0, 0.005, len(archs))
    values = 0.93 - 0.5 * np.exp(-macs / 1.5e6) + noise
    with Journal(run.folder / FILE) as journal:
        header = {"space": run.space, "options": dict(run.options), "step": 0, "part": "heldout"}
        journal.append(SCHEMA.stamp(header))
        for arch, value in zip(archs, values.tolist(), strict=True):
            journal.append(
                {"arch": arch.to_json(), "digest": arch.digest, "accuracy": value, "images": 100,
                 "seconds": 0.1}
            )  # fmt: skip
