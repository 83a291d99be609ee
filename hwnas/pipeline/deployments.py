"""What a run can predict of devices: one `Deployment` per device, backend and settings."""

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hwnas.errors import HwnasError, UsageError, unknown_name
from hwnas.pipeline.predictors import ACCURACY, FOLDER, LATENCY, SpacePredictor, predictors_of
from hwnas.pipeline.rundir import Run
from hwnas.predictors.card import CARD
from hwnas.profiling.machine import slug
from hwnas.profiling.records import Settings, one_of_pages

SETTINGS = ("backend", "threads", "batch", "precision", "workers", "pages")
# What is taken where nobody says which settings, if the device has it.
PLAINEST = {"backend": "onnxruntime", "threads": "1", "batch": "1", "precision": "fp32",
            "workers": "1", "pages": "default"}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """A way to run subnets on a device. `predictors`: what is known of it, by target.

    `device`: its name, made unique where those of two devices are alike.
    """

    device: str
    fingerprint: str
    backend: str
    settings: Settings
    predictors: Mapping[str, SpacePredictor]

    @property
    def name(self) -> str:
        """The settings in one word."""
        settings = self.settings
        parts = [self.backend, settings.precision, f"t{settings.threads}", f"b{settings.batch}"]
        unusual = {f"w{settings.workers}": settings.workers > 1, settings.pages: self._huge}
        return "-".join([*parts, *(part for part, is_so in unusual.items() if is_so)])

    @property
    def described(self) -> dict[str, Any]:
        """The settings as they stand in a front."""
        settings = self.settings
        found: dict[str, Any] = {
            "backend": self.backend,
            "threads": settings.threads,
            "batch": settings.batch,
            "precision": settings.precision,
        }
        if settings.workers > 1:
            found["workers"] = settings.workers
        if self._huge:
            found["pages"] = settings.pages
        return found

    @property
    def _huge(self) -> bool:
        return self.settings.pages == "huge"


def deployments(predictors: Mapping[str, SpacePredictor]) -> list[Deployment]:
    """Return the deployments that predictors were fitted for; HwnasError if two are for one."""
    groups: dict[tuple[str, ...], dict[str, SpacePredictor]] = {}
    names: dict[str, str] = {}
    there: dict[tuple[str, ...], str] = {}
    for name, predictor in _of_devices(predictors).items():
        purpose = _purpose(predictor)
        other = there.setdefault(purpose, name)
        if other != name:
            raise HwnasError(
                f"{other} and {name} predict the {predictor.target} of one device with the same "
                "settings",
                "remove the older folder, or hwnas fit --run RUN: it keeps what it fits now",
            )
        groups.setdefault(purpose[1:], {})[predictor.target] = predictor
        names[predictor.about["fingerprint"]] = predictor.about["device"]
    marks = device_marks(names)
    return [
        Deployment(
            device=names[fingerprint] + marks[fingerprint],
            fingerprint=fingerprint,
            backend=backend,
            settings=Settings(
                threads=int(threads),
                batch=int(batch),
                precision=precision,
                workers=int(workers),
                pages=one_of_pages(pages),
            ),
            predictors=found,
        )
        for (
            fingerprint,
            backend,
            threads,
            batch,
            precision,
            workers,
            pages,
        ), found in groups.items()
    ]


def device_marks(names: Mapping[str, str]) -> dict[str, str]:
    """Return what to append to the names of devices, by fingerprint: nothing where they differ.

    They differ if they do as parts of the names of files and folders.
    """
    slugs = [slug(name) for name in names.values()]
    return {
        fingerprint: "" if slugs.count(slug(name)) == 1 else f"-{slug(fingerprint)[:6]}"
        for fingerprint, name in names.items()
    }


def tidy(run: Run, fitted: Collection[str], *, target: str) -> tuple[list[str], list[str]]:
    """Remove the predictors of a run whose place those of the names `fitted` take.

    A device that is called something else now, or that has got a namesake, left them under other
    names. Returns (removed, left), where `left` are the other predictors of `target`.
    """
    known = _of_devices(predictors_of(run))
    now = {_purpose(predictor) for name, predictor in known.items() if name in fitted}
    removed, left = [], []
    for name, predictor in known.items():
        if name in fitted:
            continue
        if _purpose(predictor) in now:
            folder = run.folder / FOLDER / name
            (folder / CARD).unlink()  # what makes it a predictor
            shutil.rmtree(folder)
            removed.append(name)
        elif predictor.target == target:
            left.append(name)
    return removed, left


def device_of(known: Sequence[Deployment], name: str | None, *, this: str, run: Run) -> str:
    """Return the device that is meant: the one named, else this one, else the only one.

    `this`: the fingerprint of this machine.
    """
    devices = list(dict.fromkeys(deployment.device for deployment in known))
    if not devices:
        raise nothing_fitted(run)
    if name is not None:
        for device in devices:
            if name == device or slug(name) == slug(device):
                return device
        raise unknown_name("device", name, devices, hint="hwnas profile there, then hwnas fit")
    here = [deployment.device for deployment in known if deployment.fingerprint == this]
    if here:
        return here[0]
    if len(devices) > 1:
        raise UsageError(
            f"{run.folder} knows {len(devices)} devices, none of them this machine: "
            f"{', '.join(devices)}",
            f"say which: --device {devices[0]}",
        )
    return devices[0]


def ways_to_run(
    known: Sequence[Deployment], device: str, wanted: Mapping[str, str] | None,
    *, targets: Sequence[str],
) -> tuple[Deployment, ...]:  # fmt: skip
    """Return the deployments of a device among which a search may choose.

    `wanted`: values of settings that they must have; None takes the plainest one. `targets`: what
    has to be predictable.
    """
    there = [deployment for deployment in known if deployment.device == device]
    knowing = [d for d in there if all(target in d.predictors for target in targets)]
    if not knowing:
        lacking = [t for t in targets if not any(t in d.predictors for d in there)] or targets
        raise HwnasError(
            f"nothing predicts {' and '.join(lacking)} of {device}",
            f"hwnas fit --run RUN --target {lacking[0]}",
        )
    if wanted is None:
        plain = [d for d in knowing if _fits(d, PLAINEST)]
        if plain or len(knowing) == 1:
            return tuple(plain or knowing)
        raise UsageError(
            f"{device} was measured with several settings: {_listed(knowing)}",
            "--settings any chooses among them; or say which, such as --settings "
            + ",".join(f"{k}={v}" for k, v in knowing[0].described.items()),
        )
    fitting = tuple(deployment for deployment in knowing if _fits(deployment, wanted))
    if not fitting:
        asked = ", ".join(f"{key}={value}" for key, value in wanted.items())
        raise UsageError(
            f"{device} was not measured with {asked}; accepted: {_listed(knowing)}",
            "measure it so: hwnas profile --help",
        )
    return fitting


def parse_settings(text: str) -> dict[str, str]:
    """Return the wanted settings of `any` or of a text such as `threads=1,precision=fp32`."""
    if text.strip() == "any":
        return {}
    wanted = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key not in SETTINGS or not equals or not value:
            raise UsageError(
                f"--settings {text!r}: {part.strip()!r} is no setting; accepted: any, or "
                f"{', '.join(SETTINGS)} with a value",
                "--settings threads=1,precision=fp32",
            )
        wanted[key] = value
    return wanted


def nothing_fitted(run: Run) -> HwnasError:
    """Return the error for a run without predictors of any device."""
    measured = bool(run.profiles)
    how = "" if measured else f"hwnas profile --run {run.typed}, then "
    return HwnasError(
        f"{run.folder}: nothing predicts the {LATENCY.partition('_')[0]} of its subnets yet",
        f"{how}hwnas fit --run {run.typed}"
        + ("; it says so where too little is measured" if measured else ""),
    )


def _of_devices(predictors: Mapping[str, SpacePredictor]) -> dict[str, SpacePredictor]:
    return {
        name: predictor
        for name, predictor in predictors.items()
        if predictor.target != ACCURACY and "device" in predictor.about
    }


def _purpose(predictor: SpacePredictor) -> tuple[str, ...]:
    """Return what a device's predictor is for: its target, the device, and each of SETTINGS."""
    about = predictor.about
    settings = (about.get(name, PLAINEST[name]) for name in SETTINGS)
    return (predictor.target, about["fingerprint"], *settings)


def _fits(deployment: Deployment, wanted: Mapping[str, str]) -> bool:
    has = {**PLAINEST, **deployment.described}
    return all(str(has[key]) == value for key, value in wanted.items())


def _listed(known: Sequence[Deployment]) -> str:
    return ", ".join(deployment.name for deployment in known)
