"""`hwnas profile --active`: measure until a predictor is good enough."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas.cli.output import Output
from hwnas.cli.profile import named_source
from hwnas.cli.profile_measuring import (
    Settings,
    Watcher,
    require_builders,
)
from hwnas.cli.progress import ProgressLine
from hwnas.cli.verbs import require
from hwnas.errors import GateError, UsageError
from hwnas.io.units import SHARE, parse

if TYPE_CHECKING:
    from hwnas.pipeline.choose import Active, Round
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.jobs import Options
    from hwnas.profiling.records import Settings as How
    from hwnas.spaces import Space

_WANTED = "3%"


def chosen_pool(
    pack: Path | None, space: "Space | None", archs: str | None, *, few: int | None
) -> "tuple[Space, Source]":
    """Return the space, and the architectures to choose among (none: the whole space)."""
    from hwnas.pipeline import measuring
    from hwnas.pipeline.fit import LEAST_JUDGED

    if few is not None:
        raise UsageError("both --few and --active", "leave one out")
    source = named_source(pack, space, archs)
    if source is not None:
        if len(source.archs) < LEAST_JUDGED:
            raise UsageError(
                f"--active with {len(source.archs)} architectures; accepted: from {LEAST_JUDGED}, "
                "with fewer a predictor's error cannot be known",
                "leave --active out to measure all of them",
            )
        return measuring.space_of_source(source), source
    if space is None:
        raise UsageError(
            "nothing to measure is named; accepted: a pack, --space, --archs or --run",
            "hwnas profile --space nano --active",
        )
    return space, measuring.building()


def measure_until(
    output: Output,
    space: "Space",
    source: "Source",
    *,
    settings: Settings,
    options: "Options",
    target: Path,
    seed: int,
    wanted_error: str | None,
    most: int | None,
) -> None:
    """Measure and print what was reached; GateError if the error asked for was not."""
    wanted = 100.0 * _share(_WANTED if wanted_error is None else wanted_error)
    require("profile --active", ("sklearn",))
    backend, how = _first(output, settings, source)
    require_builders(source, [backend])
    from hwnas.pipeline.active import Aim, profile_actively
    from hwnas.pipeline.choose import MOST

    aim = Aim(mape=wanted, most=most or MOST, seed=seed)
    line = ProgressLine(output)
    found = profile_actively(
        space, source, backend=backend, settings=how, output=target, aim=aim,
        options=options, progress=Watcher(output),
        watch=lambda now: line.note(_round_text(now, aim.batch)),
    )  # fmt: skip
    output.result(
        _document(found, target, backend, how, wanted=wanted),
        f"{target}: {_count(found)} with {_described(backend, how)}\n"
        + "\n".join(_round_text(now, aim.batch) for now in found.rounds),
    )
    if not found.reached:
        raise _not_reached(found, wanted, aim.most)


def _not_reached(found: "Active", wanted: float, most: int) -> GateError:
    last = found.rounds[-1]
    error, after = f"{last.mape:.2f} %", f"after {_count(found)}"
    what = f"the error is {error} {after}, not the {wanted:g} % asked for"
    if last.mape <= wanted:
        what = f"the error is estimated as {error} {after}, which are too few to confirm it"
    if found.used_up:
        return GateError(
            what, "nothing is left to measure: name more architectures, or ask for less"
        )
    tried = len(found.measured) + len(found.left_out) + len(found.failed)
    hint = f"the same command with --most {max(most, tried) + 100} goes on, or ask for less"
    return GateError(what, hint)


def _share(text: str) -> float:
    value = parse(text, SHARE)
    if not 0 < value <= 1:
        raise UsageError(f"--wanted-error {text!r}; accepted: a share such as 3% or 0.03")
    return value


def _first(output: Output, settings: Settings, source: "Source") -> "tuple[str, How]":
    """Return the first backend and setting, and tell if there were others."""
    from hwnas.profiling.records import Settings as How
    from hwnas.profiling.records import one_of_pages

    precisions = settings.precisions or source.usual
    lists = (settings.backends, precisions, settings.threads, settings.batches, settings.workers,
             settings.pages)  # fmt: skip
    backend = settings.backends[0]
    how = How(threads=settings.threads[0], batch=settings.batches[0], precision=precisions[0],
              workers=settings.workers[0], pages=one_of_pages(settings.pages[0]))  # fmt: skip
    if any(len(values) > 1 for values in lists):
        output.note(
            f"--active measures one setting at a time: {_described(backend, how)}; "
            "start it again for the others"
        )
    return backend, how


def _described(backend: str, how: "How") -> str:
    return f"{backend}, {how.form}, threads {how.threads}, batch {how.batch}"


def _count(found: "Active") -> str:
    measured = len(found.measured) + len(found.left_out)
    return f"{measured} architectures measured{_but(len(found.failed), len(found.left_out))}"


def _round_text(now: "Round", batch: int) -> str:
    kind = "by nested cross-validation" if now.confirmed else "estimated"
    but = _but(now.failed, now.left_out)
    return (
        f"{now.rows} architectures{but}: error {now.mape:.2f} % ({kind}); "
        f"{batch} more would buy about {now.gain:.2f} points"
    )


def _but(failed: int, left_out: int) -> str:
    exceptions = {"failed": failed, "left out (grade D)": left_out}
    return "".join(f", {number} {what}" for what, number in exceptions.items() if number)


def _document(
    found: "Active", target: Path, backend: str, how: "How", *, wanted: float
) -> dict[str, Any]:
    return {
        "profile": str(target),
        "backend": backend,
        "settings": asdict(how),
        "reached": found.reached,
        "wanted_mape": wanted,
        "mape": found.rounds[-1].mape,
        "rows": len(found.measured),
        "failed": len(found.failed),
        "left_out": len(found.left_out),
        "rounds": [asdict(now) for now in found.rounds],
    }
