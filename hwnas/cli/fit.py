"""`hwnas fit`: predictors of latency and accuracy from what was measured."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from hwnas.cli.clusters import RAY, require_ray
from hwnas.cli.output import Output, verb_options
from hwnas.cli.progress import ProgressLine, clock
from hwnas.cli.shared import WORKERS, out_folder_option, recipe_option, run_option, space_options
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.pipeline.accuracies import Measuring
    from hwnas.pipeline.fit import Fitted, Rows
    from hwnas.pipeline.rundir import Run
    from hwnas.spaces import Space


_OF_TABLES = {"--table", "--test", "--target", "--json", "--quiet", "--debug"}
_OF_ACCURACIES = {"-n", "--workers", "--ray", "--recipe"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wanted:
    """What is to be fitted, and where it is kept (None: nowhere)."""

    space: "Space"
    profiles: list[Path]
    sources: list[Path]
    target: str
    into: Path | None
    run: "Run | None"
    number: int
    quick: bool


@click.command()
@run_option("Fit on a run's accuracies and on the profiles in RUN/profiles.")
@click.option("-n", "number", type=click.IntRange(min=0), default=100, show_default=True,
              metavar="N",
              help="Subnets of the run whose accuracy is measured; 0: no accuracies.")  # fmt: skip
@WORKERS
@RAY
@recipe_option()
@click.option("--profile", "profiles", multiple=True, metavar="FILE,...",
              help="Fit on these profiles.")  # fmt: skip
@click.option("--from", "sources", multiple=True, metavar="FILE,...",
              help="Profiles of other devices that a short --profile learns from.")  # fmt: skip
@space_options("The space of --profile.  [default: what the profile says]", of="--space")
@click.option("--table", "train", type=click.Path(path_type=Path), metavar="CSV",
              help="Fit on a table: columns gene:* and cost:*, the rest are targets.")  # fmt: skip
@click.option("--test", type=click.Path(path_type=Path), metavar="CSV",
              help="The table that the fitted predictor is tested on.")  # fmt: skip
@click.option("--target", metavar="NAME",
              help="The column of --table, or what to take from profiles: latency_ms (default), "
                   "throughput_per_s, peak_mb, energy_mj.")  # fmt: skip
@out_folder_option("RUN/predictors", "Keep the predictors here.")
@click.option("--quick", is_flag=True, help="Fit only; no cross-validation.")
@verb_options
def fit(
    output: Output,
    *,
    folder: Path | None,
    number: int,
    workers: int | None,
    ray: str | None,
    recipe: str | None,
    profiles: tuple[str, ...],
    sources: tuple[str, ...],
    space_name: str | None,
    classes: int | None,
    channels: int | None,
    train: Path | None,
    test: Path | None,
    target: str | None,
    out: Path | None,
    quick: bool,
) -> None:
    """Fit predictors of latency and accuracy on what was measured, and tell how good they are.

    Errors are those of nested cross-validation: every row is predicted by a predictor that has
    not seen it. The same command measures only what is missing.
    """
    if train is not None or test is not None:
        _refuse(_typed() - _OF_TABLES, "--table goes with --test and --target only")
        _fit_table(output, train, test, target)
        return
    named, others = _paths(profiles), _paths(sources)
    if others and not named:
        raise UsageError("--from needs the profile of the new device", "--profile new.jsonl")
    run = None if named and folder is None else _opened(folder, space_name, classes or channels)
    if run is None or others:
        number = _no_accuracies(number, "with --from" if others else "without --run")
    elif number:
        _measure(output, run, number, workers=workers, ray=ray, recipe=recipe)
    wanted = _Wanted(
        space=_space(run, space_name, named, classes=classes, channels=channels),
        profiles=named or (run.profiles if run else []),
        sources=others,
        target=target or "latency_ms",
        into=out or (run.folder / "predictors" if run else None),
        run=run,
        number=number,
        quick=quick,
    )
    done, failed = _fit_all(output, wanted)
    _report(output, done, failed, run=run)
    if run is not None and out is None:
        _tidy(output, run, done, wanted)


def _typed() -> set[str]:
    """Return the options that were typed, by their names."""
    context = click.get_current_context()
    return {
        option.opts[0]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    }


def _refuse(options: set[str], why: str) -> None:
    if options:
        named = ", ".join(sorted(options))
        raise UsageError(f"{named} would have no effect: {why}", "leave out what has none")


def _no_accuracies(number: int, why: str) -> int:
    if number:
        _refuse(_typed() & _OF_ACCURACIES, f"no accuracies are measured {why}")
    return 0


def _fit_table(output: Output, train: Path | None, test: Path | None, target: str | None) -> None:
    from hwnas.predictors import fit_table

    for option, value in (("--table", train), ("--test", test), ("--target", target)):
        if value is None:
            raise UsageError(
                f"{option} is missing", "hwnas fit --table train.csv --test test.csv --target lat"
            )
    assert train is not None
    assert test is not None
    assert target is not None
    scores = fit_table(train, test, target)
    text = "\n".join(
        [
            f"{target}: fitted on {scores['rows']} rows of {train}, tested on {test}",
            *_score_lines(scores),
            f"  fitted in {scores['fit_cpu_s']:.1f} s of one core",
        ]
    )
    output.result(scores, text)


def _paths(texts: Iterable[str]) -> list[Path]:
    return [Path(part.strip()) for text in texts for part in text.split(",") if part.strip()]


def _opened(folder: Path | None, space: str | None, options: int | None) -> "Run":
    from hwnas.pipeline.rundir import only_run, open_run

    run = open_run(folder) if folder is not None else only_run()
    if run is None:
        raise UsageError("nothing to fit on", "--run RUN, --profile FILE, or --table CSV")
    if space or options:
        raise UsageError(
            "a run knows its space",
            "leave out --space, --classes and --channels, or name a --profile",
        )
    return run


def _space(
    run: "Run | None", name: str | None, profiles: list[Path], *, classes: int | None,
    channels: int | None,
) -> "Space":  # fmt: skip
    if run is not None:
        from hwnas.pipeline.rundir import space_of

        return space_of(run)
    from hwnas.pipeline.profiled import space_in

    options = {"classes": classes, "channels": channels}
    given = {key: value for key, value in options.items() if value is not None}
    return space_in(profiles, name=name, options=given)


def _measure(
    output: Output, run: "Run", number: int, *, workers: int | None, ray: str | None,
    recipe: str | None,
) -> None:  # fmt: skip
    from hwnas.cli.verbs import require
    from hwnas.pipeline.accuracies import Work, measure_accuracies, read_accuracies

    missing = number - len(read_accuracies(run))
    if missing <= 0:
        return
    require("fit --run", ("torch", "timm"))
    require_ray("fit", ray)
    output.note(f"measuring the accuracies of {missing} subnets on the held-out part")
    work = Work(workers=workers, ray=ray, recipe=recipe, watch=_watcher(output), note=output.note)
    measure_accuracies(run, number, work=work)


def _watcher(output: Output) -> "Callable[[Measuring], None]":
    line = ProgressLine(output)

    def watch(measuring: "Measuring") -> None:
        line.show(
            f"{measuring.done}/{measuring.total} subnets  {clock(measuring.seconds_left)} left",
            last=measuring.done == measuring.total,
        )

    return watch


def _fit_all(
    output: Output, wanted: _Wanted
) -> "tuple[list[Fitted], list[tuple[str, UsageError]]]":
    """Return what was fitted, and what could not be with the reason."""
    from hwnas.pipeline.fit import accuracy_rows, fit_rows, fit_transfer, profile_rows, sources_from
    from hwnas.predictors.predictor import LEAST_ROWS
    from hwnas.predictors.transfer import LEAST_ROWS as LEAST_TO_TRANSFER

    groups: list[Rows] = []
    if wanted.run is not None and wanted.number:
        groups.append(accuracy_rows(wanted.run))
    least = LEAST_TO_TRANSFER if wanted.sources else LEAST_ROWS
    groups += profile_rows(wanted.profiles, wanted.space, targets=(wanted.target,), least=least)
    if not groups:
        where = ", ".join(map(str, wanted.profiles)) or "no profile is there"
        raise UsageError(f"nothing measured to fit {wanted.target} on ({where})", "hwnas profile")
    sources = (
        sources_from(wanted.sources, wanted.space, target=wanted.target) if wanted.sources else []
    )
    done: list[Fitted] = []
    failed: list[tuple[str, UsageError]] = []
    for rows in groups:
        folder = wanted.into / rows.name if wanted.into else None
        output.note(f"fitting {rows.name} on {len(rows.values)} rows")
        try:
            if wanted.sources:
                fitted = fit_transfer(
                    rows, wanted.space, sources, folder=folder, quick=wanted.quick
                )
            else:
                fitted = fit_rows(rows, wanted.space, folder=folder, quick=wanted.quick)
            done.append(fitted)
        except UsageError as error:
            failed.append((rows.name, error))
    if not done:
        name, reason = failed[0]
        raise UsageError(f"{name}: {reason.message}", reason.hint)
    return done, failed


def _tidy(output: Output, run: "Run", done: "list[Fitted]", wanted: _Wanted) -> None:
    """Remove what was fitted anew under another name, and tell what else is there."""
    from hwnas.pipeline.deployments import tidy

    removed, left = tidy(run, [fitted.name for fitted in done], target=wanted.target)
    for name in removed:
        output.note(f"{name} is removed: what was fitted now is of the same device and settings")
    if wanted.profiles == run.profiles:
        for name in left:
            output.note(
                f"{name} stays as it was fitted earlier: too little of its device and settings is "
                f"in {run.folder}/profiles now; searches use it, unless you remove its folder"
            )


def _report(
    output: Output, done: "list[Fitted]", failed: list[tuple[str, UsageError]], *, run: "Run | None"
) -> None:  # fmt: skip
    from hwnas.pipeline.advice import advice

    for name, error in failed:
        click.echo(f"warning: {name} is not fitted: {error.message}", err=True)
    folder = run.folder if run else None
    warnings = [found for found in (advice(fitted, run=folder) for fitted in done) if found]
    document = {
        "predictors": [fitted.to_json() for fitted in done],
        "warnings": [what for what, _ in warnings],
        "not_fitted": [{"name": name, "reason": error.message} for name, error in failed],
    }
    output.result(document, "\n\n".join(_described(fitted) for fitted in done))
    for what, remedy in warnings:
        click.echo(f"warning: {what}\nhint: {remedy}", err=True)


def _described(fitted: "Fitted") -> str:
    from dataclasses import asdict

    from hwnas.pipeline.fit import MORE

    lines = [f"{fitted.name}: {fitted.predictor.rows} rows"]
    scores, curve = fitted.scores, fitted.curve
    if scores is not None:
        lines += _score_lines(asdict(scores))
    if curve is not None:
        rows = fitted.predictor.rows
        points = ", ".join(f"{point.mape:.2f} % with {point.rows}" for point in curve.curve)
        ahead = " and ".join(
            f"{curve.expected_mape(number):.2f} % with {number}" for number in (rows, rows + MORE)
        )
        lines.append(f"  error by rows: {points}; as it falls, about {ahead}")
        lines.append(
            f"  {MORE} more samples would buy about {curve.gain(MORE):.2f} points of error"
        )
    lines.append(f"  fitted in {fitted.fit_cpu_s:.1f} s of one core")
    lines += [f"  {remark}" for remark in fitted.remarks]
    if fitted.folder is not None:
        lines.append(f"  {fitted.folder}")
    return "\n".join(lines)


def _score_lines(scores: dict[str, Any]) -> list[str]:
    return [
        f"  error {scores['mape']:.2f} %, within 5 %: {scores['within_5']:.1f} %, "
        f"within 10 %: {scores['within_10']:.1f} %",
        f"  Spearman {scores['spearman']:.3f}, Kendall {scores['kendall']:.3f}",
        f"  90 % intervals hold {scores['coverage_90']:.1f} %, width {scores['width_90']:.1f} % "
        "of the value",
    ]
