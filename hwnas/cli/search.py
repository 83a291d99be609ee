"""`hwnas search`: the best subnets within a budget, verified by measuring them."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, verb_options
from hwnas.cli.progress import ProgressLine
from hwnas.cli.shared import FORCE, WORKERS, recipe_option, run_option, seed_option
from hwnas.cli.values import NAMES, Parsed, options
from hwnas.cli.verbs import require
from hwnas.errors import HwnasError, InfeasibleError, UnreliableError, UsageError
from hwnas.io.units import SHARE, parse

if TYPE_CHECKING:
    from hwnas.pipeline.searching import Found, Request
    from hwnas.pipeline.verifying import Verification
    from hwnas.search import Progress

VERIFIED = 5  # of each answer, where the device is this machine


def _confidence(text: str) -> float:
    value = parse(text, SHARE)
    if not 0.5 <= value < 1.0:
        raise UsageError(f"{text!r}; accepted: 50% to below 100%", "write it such as 95% or 0.95")
    return value


_BUDGETS = options(
    click.option("--latency", multiple=True, metavar="BUDGET",
                 help="25ms; 5ms,10ms (an answer each); 60% (of the largest); 5ms..20ms; "
                      "server=25ms."),
    click.option("--throughput", multiple=True, metavar="BUDGET", help="At least: 200/s."),
    click.option("--memory", multiple=True, metavar="BUDGET", help="Peak memory: 100MB."),
    click.option("--energy", multiple=True, metavar="BUDGET", help="Per inference: 50mJ."),
    click.option("--macs", multiple=True, metavar="BUDGET", help="Multiply-accumulates: 200M."),
    click.option("--params", multiple=True, metavar="BUDGET", help="Parameters: 5M."),
    click.option("--size", multiple=True, metavar="BUDGET", help="Of the exported file: 20MB."),
)  # fmt: skip
_HOW = options(
    click.option("--device", metavar="NAME",
                 help="The device of budgets that name none.  [default: this machine, or the "
                      "only one known]"),
    click.option("--settings", metavar="any|KEY=VALUE,..",
                 help="Ways to run to choose among: any, or such as threads=1,precision=fp32."),
    click.option("--confidence", type=Parsed(_confidence), default="95%", show_default=True,
                 metavar="SHARE",
                 help="The probability with which a budget has to be kept."),
    click.option("--minimise", type=NAMES, metavar="NAME,..",
                 help="What is traded for accuracy.  [default: latency]"),
    click.option("--engine", default="nsga2", show_default=True,
                 help="nsga2, pymoo, paper, random, uniform."),
    seed_option("answers"),
)  # fmt: skip
_VERIFYING = options(
    click.option("--verify", type=click.IntRange(min=0), metavar="K",
                 help="Build the K best of each answer and measure them here; 0: none.  "
                      f"[default: {VERIFIED} if the device is this machine]"),
    FORCE,
    recipe_option(),
    WORKERS,
    click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, metavar="N",
                 help="How many subnets of each answer are shown."),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wish:
    """How to verify; `count` is None where nobody said whether."""

    count: int | None
    force: bool
    recipe: str | None
    workers: int | None


@click.command()
@run_option()
@_BUDGETS
@_HOW
@_VERIFYING
@verb_options
def search(
    output: Output,
    *,
    folder: Path | None,
    latency: tuple[str, ...],
    throughput: tuple[str, ...],
    memory: tuple[str, ...],
    energy: tuple[str, ...],
    macs: tuple[str, ...],
    params: tuple[str, ...],
    size: tuple[str, ...],
    device: str | None,
    settings: str | None,
    confidence: float,
    minimise: tuple[str, ...] | None,
    engine: str,
    seed: int,
    verify: int | None,
    force: bool,
    recipe: str | None,
    workers: int | None,
    top: int,
) -> None:
    """Find the most accurate subnets of a run within budgets, and measure the best of them.

    Without a budget: the whole front, and its knee. What is found is kept in RUN/search.
    """
    # Read when numpy is loaded: matrices are small, and threads cost many times what they save.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    texts = {"latency": latency, "throughput": throughput, "memory": memory, "energy": energy,
             "macs": macs, "params": params, "size": size}  # fmt: skip
    request = _request(
        texts, device=device, settings=settings, confidence=confidence, minimise=minimise,
        engine=engine, seed=seed,
    )  # fmt: skip
    from hwnas.cli.search_tables import show_ranges, show_result
    from hwnas.pipeline.rundir import find_run
    from hwnas.pipeline.searching import prepare
    from hwnas.pipeline.searching import search as search_prepared

    prepared = prepare(find_run(folder), request)
    show_ranges(output, prepared)
    found = search_prepared(prepared, watch=_watcher(output, engine))
    wish = _Wish(count=verify, force=force, recipe=recipe, workers=workers)
    verification, obstacle = _verified(output, found, wish)
    show_result(output, found, verification, obstacle=obstacle, top=top)
    if obstacle is not None and verify is not None:
        raise obstacle
    _check_answered(found, verification)


def _request(
    texts: Mapping[str, tuple[str, ...]],
    *,
    device: str | None,
    settings: str | None,
    confidence: float,
    minimise: tuple[str, ...] | None,
    engine: str,
    seed: int,
) -> "Request":
    from hwnas.pipeline.deployments import parse_settings
    from hwnas.pipeline.searching import Request
    from hwnas.search.budgets import parse_budgets

    return Request(
        budgets=parse_budgets(texts),
        device=device,
        settings=None if settings is None else parse_settings(settings),
        confidence=confidence,
        minimise=minimise or (),
        engine=engine,
        seed=seed,
    )


def _watcher(output: Output, engine: str) -> "Callable[[str, Progress], None]":
    from hwnas.search.api import engine_named

    line, last = ProgressLine(output), engine_named(engine).generations

    def watch(name: str, progress: "Progress") -> None:
        line.show(
            f"{name}: generation {progress.generation}/{last}, {progress.evaluations} scored, "
            f"hypervolume {progress.hypervolume:.4g}, {progress.feasible} feasible",
            last=progress.generation == last,
        )

    return watch


def _verified(
    output: Output, found: "Found", wish: _Wish
) -> "tuple[Verification | None, HwnasError | None]":
    """Return what was verified, or what stood in the way; neither if nobody wants it."""
    from hwnas.pipeline.verifying import device_here

    usual = VERIFIED if device_here(found) and any(a.budget for a in found.front.answers) else 0
    count = usual if wish.count is None else wish.count
    if not count:
        return None, None
    try:
        require("search --verify", ("torch", "timm", "onnx"))
        verification = _measured(output, found, count, wish)
    except HwnasError as error:  # what was found is to be shown all the same
        return None, error
    return verification, verification.obstacle


def _measured(output: Output, found: "Found", count: int, wish: _Wish) -> "Verification":
    from hwnas.cli.profile_measuring import Watcher
    from hwnas.pipeline.accuracies import Work
    from hwnas.pipeline.verifying import Effort, verify
    from hwnas.profiling.jobs import Options

    output.note(f"building, measuring and evaluating the {count} best of each answer")
    effort = Effort(
        count=count,
        options=Options(force=wish.force),
        work=Work(workers=wish.workers, recipe=wish.recipe, note=output.note),
        watch=Watcher(output),
    )
    return verify(found, effort)


def _check_answered(found: "Found", verification: "Verification | None") -> None:
    """Raise for a budget that nothing meets, or that nothing keeps as measured."""
    from hwnas.pipeline.fronts import UNRELIABLE

    front = verification.front if verification else found.front
    entries = verification.entries if verification else ()
    for answer, asked in zip(front.answers, found.prepared.asked, strict=True):
        if asked.obstacle is not None:
            message = f"{answer.budget}: {asked.obstacle.message}"
            raise InfeasibleError(message, asked.obstacle.hint)
        if answer.recommended is not None:
            continue
        if verification is not None and verification.obstacle is not None:
            raise verification.obstacle
        mine = [entry for entry in entries if entry.budget == answer.budget]
        if mine and all(entry.grade == UNRELIABLE for entry in mine):
            raise UnreliableError(
                f"{answer.budget}: this machine was too busy to tell what keeps it",
                "stop other work and search again",
            )
        raise InfeasibleError(
            f"{answer.budget}: {answer.reason}",
            f"hwnas profile --run {found.prepared.run.typed}, then hwnas fit, or a wider budget",
        )
