"""The options of verbs that measure: how models are run, and with what care.

Each group of options reaches the verb as one value.
"""

from typing import TYPE_CHECKING

import click

from hwnas.cli.profile_measuring import Settings
from hwnas.cli.shared import FORCE
from hwnas.cli.values import NAMES, SECONDS, WHOLE_NUMBERS, options, together
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from hwnas.profiling.jobs import Options
    from hwnas.profiling.records import Grade


def _care(
    *,
    force: bool,
    retry_failures: bool,
    again: "Grade | None",
    no_memory: bool,
    max_seconds: float,
    timeout: float,
) -> "Options":
    from hwnas.profiling.jobs import Options
    from hwnas.profiling.measure import Plan

    usual = Plan()
    patience = max_seconds * usual.patience_s / usual.max_s
    if patience >= timeout:
        raise UsageError(
            f"--max-seconds {max_seconds:g} can take {patience:g} s beside others that slow it "
            f"down, --timeout is {timeout:g}; accepted: a longer timeout",
            f"--timeout {max(60.0, 2 * patience):g}",
        )
    return Options(
        force=force, retry_failures=retry_failures, again=again, memory=not no_memory,
        plan=Plan(max_s=max_seconds, patience_s=patience), timeout_s=timeout,
    )  # fmt: skip


# Passed as `settings`.
SETTINGS = options(
    click.option("--backend", "backends", type=NAMES, default="onnxruntime", show_default=True,
                 metavar="NAME,..", help="Runtimes to measure with."),
    click.option("--precision", "precisions", type=NAMES, metavar="NAME,..",
                 help="fp32, bf16, int8_dynamic, ..  [default: fp32, or all that a pack holds]"),
    click.option("--threads", type=WHOLE_NUMBERS, default="1", show_default=True,
                 metavar="N,..", help="Threads of the runtime."),
    click.option("--batch", "batches", type=WHOLE_NUMBERS, default="1", show_default=True,
                 metavar="N,..", help="Images at once."),
    click.option("--workers", type=WHOLE_NUMBERS, default="1", show_default=True, metavar="N,..",
                 help="More than 1: throughput of that many processes, each on its own core."),
    click.option("--pages", type=NAMES, default="default", show_default=True, metavar="NAME,..",
                 help="Pages of the memory: default (what the system gives), huge."),
    together("settings", Settings, "backends", "precisions", "threads", "batches", "workers",
              "pages"),
)  # fmt: skip
# Passed as `care`.
CARE = options(
    FORCE,
    click.option("--retry-failures", is_flag=True, help="Measure again what failed before."),
    click.option("--again", type=click.Choice(["B", "C", "D"]),
                 help="Measure again what is graded so or worse; the better grade counts."),
    click.option("--no-memory", is_flag=True, help="Do not measure peak memory."),
    click.option("--max-seconds", type=SECONDS, default="1.5", show_default=True,
                 metavar="SECONDS",
                 help="Stop measuring a model after this time; it can be 2.7 times as long "
                 "beside others that slow it down."),
    click.option("--timeout", type=SECONDS, default="60", show_default=True, metavar="SECONDS",
                 help="Give up on a model after this time."),
    together("care", _care, "force", "retry_failures", "again", "no_memory", "max_seconds",
              "timeout"),
)  # fmt: skip
