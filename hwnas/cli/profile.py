"""`hwnas profile`: latency, throughput and memory of architectures on this machine."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click
from click.core import ParameterSource

from hwnas.cli.output import Output, verb_options
from hwnas.cli.profile_measuring import PROFILES, Settings, measure
from hwnas.cli.profile_options import CARE, SETTINGS
from hwnas.cli.shared import (
    ARCHITECTURES,
    ONLY_RUN_IF_ALONE,
    note_option,
    out_file_option,
    run_option,
)
from hwnas.cli.values import Parsed, options, paths
from hwnas.cli.verbs import require
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.jobs import Options
    from hwnas.spaces import Space

_PLACE = options(
    out_file_option("The profile.", "profiles/DEVICE.jsonl"),
    run_option("Write into this run, and take its space unless --space is given.",
               ONLY_RUN_IF_ALONE),
    click.option("--beside", type=Parsed(paths), default="", metavar="PROFILE,..",
                 help="Tell latencies at the level of these profiles of this device: in turns with "
                 "a model of theirs, where it can be built here."),
    click.option("--device", metavar="NAME", help="Call this machine so."),
    note_option("a new profile"),
    click.option("--explain", metavar="ARCH",
                 help="Show where the time of one architecture goes: a JSON file, smallest, "
                 "largest, or the beginning of a digest."),
)  # fmt: skip


_UNTIL = options(
    click.option("--active", is_flag=True,
                 help="Measure batches of what a predictor is least sure of, with the first of "
                 "each setting, until its error is small enough."),
    click.option("--wanted-error", metavar="SHARE",
                 help="The mean error at which --active stops.  [default: 3%]"),
    click.option("--most", type=click.IntRange(min=12), metavar="N",
                 help="Architectures after which --active stops.  [default: 300]"),
)  # fmt: skip


@click.command()
@click.argument("pack", required=False, type=click.Path(path_type=Path), metavar="[PACK]")
@ARCHITECTURES
@SETTINGS
@_UNTIL
@CARE
@_PLACE
@verb_options
def profile(
    output: Output,
    *,
    pack: Path | None,
    space_name: str | None,
    number: int,
    few: int | None,
    old: tuple[Path, ...],
    archs: str | None,
    seed: int,
    classes: int | None,
    channels: int | None,
    settings: Settings,
    active: bool,
    wanted_error: str | None,
    most: int | None,
    care: "Options",
    out: Path | None,
    folder: Path | None,
    beside: tuple[Path, ...],
    device: str | None,
    note: str,
    explain: str | None,
) -> None:
    """Measure architectures on this machine, those of a PACK or of a --space.

    Every measurement is kept at once; the same command goes on after any interruption.
    """
    run = run_to_measure(folder, named=bool(pack or space_name or archs or old))
    care = replace(_at_level_of(beside, care), device_name=device, note=note)
    target = target_file(out, run, device)
    space = chosen_space(space_name, run, classes=classes, channels=channels)
    if explain is not None:
        from hwnas.cli.explain import show_explanation

        show_explanation(output, explain, pack=pack, archs=archs, space=space, profile=target,
                         settings=settings, run=run)  # fmt: skip
        return
    if active:
        from hwnas.cli.profile_active import chosen_pool, measure_until

        pool = chosen_pool(pack, space, archs, few=few)
        measure_until(output, *pool, settings=settings, options=care, target=target, seed=seed,
                      wanted_error=wanted_error, most=most)  # fmt: skip
        return
    if wanted_error or most:
        raise UsageError(f"{'--wanted-error' if wanted_error else '--most'} goes with --active")
    _check_target(target, old)
    source = chosen_source(pack, space, archs, number=number, seed=seed, few=few, old=old)
    measure(output, source, settings=settings, options=care, target=target)


def _at_level_of(profiles: tuple[Path, ...], care: "Options") -> "Options":
    """Return options that tell latencies at the level of these profiles."""
    from hwnas.profiling.paces import paces_here, profiles_here

    found = [one for path in profiles for one in profiles_here([path]) or _refuse(path)]
    return replace(care, beside=tuple(found), paces=paces_here(profiles))


def _refuse(path: Path) -> NoReturn:
    raise UsageError(
        f"{path} was measured on another device; accepted by --beside: profiles of this one",
        f"hwnas profiles show {path}",
    )


def _check_target(target: Path, old: tuple[Path, ...]) -> None:
    if target.resolve() in {path.resolve() for path in old}:
        raise UsageError(
            f"{target} is both an old profile and the one to write",
            "leave it out of --from, or write another: -o FILE",
        )


def run_to_measure(run: Path | None, *, named: bool) -> Path | None:
    """Return the run whose space is meant: where nothing is `named`, the only one there is."""
    if run is not None or named:
        return run
    from hwnas.pipeline.rundir import only_run

    found = only_run()
    return found.folder if found else None


def chosen_space(
    name: str | None, run: Path | None, *, classes: int | None, channels: int | None
) -> "Space | None":
    """Return the space of the options, or that of the run."""
    from hwnas.spaces import space

    asked = {"classes": classes, "channels": channels}
    given = {option: value for option, value in asked.items() if value is not None}
    if name is not None:
        return space(name, **given)
    if run is not None:
        from hwnas.pipeline.rundir import open_run

        there = open_run(run)
        return space(there.space, **{**there.options, **given})
    if given:
        raise UsageError(f"{' and '.join(f'--{key}' for key in given)}: of which space?",
                         "add --space NAME")  # fmt: skip
    return None


def chosen_source(
    pack: Path | None,
    space: "Space | None",
    archs: str | None,
    *,
    number: int,
    seed: int,
    few: int | None = None,
    old: tuple[Path, ...] = (),
    example: str = "hwnas profile --space nano -n 20, or hwnas profile FILE.pack",
) -> "Source":
    """Return the architectures that the options name, of which `example` is one way."""
    whole = pack or archs
    if whole and few is None:
        _refuse_number(f"{whole}, of which all is taken")
    named = named_source(pack, space, archs)
    if few is not None or old:
        return _few_of(few, old, space, named, seed=seed)
    if named is not None:
        return named
    if space is None:
        raise UsageError(
            "no architectures are named; accepted: --space, --archs, --run, or a pack to measure",
            example,
        )
    from hwnas.pipeline import measuring

    return measuring.from_space(space, number, seed=seed)


def named_source(pack: Path | None, space: "Space | None", archs: str | None) -> "Source | None":
    """Return the architectures of a pack or of a file, None if neither is named."""
    from hwnas.pipeline import measuring

    if pack is not None and archs is not None:
        raise UsageError(f"both a pack ({pack}) and --archs ({archs})", "leave one out")
    if pack is not None:
        return measuring.from_pack(pack, of=space)
    return None if archs is None else measuring.from_file(Path(archs), of=space)


def _few_of(
    few: int | None, old: tuple[Path, ...], space: "Space | None", named: "Source | None",
    *, seed: int,
) -> "Source":  # fmt: skip
    if few is None:
        raise UsageError("--from goes with --few", "--few 15")
    if not old:
        raise UsageError("--few needs profiles of other devices", "--from a.jsonl,b.jsonl")
    _refuse_number(f"--few {few}")
    require("profile --few", ("sklearn",))
    from hwnas.pipeline.measuring import from_old_devices, space_of_source
    from hwnas.pipeline.profiled import space_in

    if named is not None:
        space = space_of_source(named)
    return from_old_devices(old, space or space_in(old), few, seed=seed, among=named)


def _refuse_number(other: str) -> None:
    """Raise UsageError if -n was typed, too."""
    context = click.get_current_context()
    if context.get_parameter_source("number") is ParameterSource.COMMANDLINE:
        raise UsageError(f"both -n {context.params['number']} and {other}", "leave one out")


def target_file(out: Path | None, run: Path | None, device: str | None) -> Path:
    """Return the profile to write: the one named, or that of this device here or in the run."""
    from hwnas.profiling.machine import device as this_device
    from hwnas.profiling.machine import slug

    if out is not None:
        return out
    folder = PROFILES if run is None else run / PROFILES
    return folder / f"{slug(this_device(name=device).name)}.jsonl"
