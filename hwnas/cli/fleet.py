"""`hwnas fleet`: a pack measured on many devices at once, the machines of a Ray cluster."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, table, verb_options
from hwnas.cli.profile_measuring import PROFILES, Settings, jobs_of
from hwnas.cli.profile_options import CARE, SETTINGS
from hwnas.cli.progress import ProgressLine
from hwnas.cli.shared import note_option, run_option
from hwnas.cli.values import NAMES
from hwnas.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hwnas.pipeline.fleet import DeviceOutcome, FleetProgress
    from hwnas.profiling.jobs import Options


@click.command()
@click.argument("pack", type=click.Path(path_type=Path), metavar="PACK")
@click.option("--devices", type=NAMES, required=True, metavar="NAME,..",
              help="The devices: machines that joined the cluster with that resource.")  # fmt: skip
@click.option("--ray", "address", default="auto", show_default=True, metavar="ADDRESS",
              help="Of the cluster; auto: the one that runs here.")  # fmt: skip
@click.option("-o", "--out", type=click.Path(path_type=Path, file_okay=False), metavar="FOLDER",
              help="Where the profiles go.  [default: profiles]")  # fmt: skip
@run_option("Write into this run.", default="")
@SETTINGS
@CARE
@note_option("new profiles")
@verb_options
def fleet(
    output: Output,
    *,
    pack: Path,
    devices: tuple[str, ...],
    address: str,
    out: Path | None,
    folder: Path | None,
    settings: Settings,
    care: "Options",
    note: str,
) -> None:
    """Measure a PACK on many devices at once, the machines of a Ray cluster.

    On each device: ray start --address=HOST:6379 --resources='{"NAME": 1}'. One measurement at a
    time runs on a device; its records go to FOLDER/NAME.jsonl. The same command goes on.
    """
    from hwnas.pipeline.fleet import conclude, profile_fleet
    from hwnas.pipeline.measuring import from_pack

    jobs = jobs_of(from_pack(pack), settings, output)
    outcomes = profile_fleet(
        pack, jobs, devices=devices, folder=_folder(out, folder), address=address,
        options=replace(care, note=note), progress=_Watcher(output), note=output.note,
    )  # fmt: skip
    output.result([_document(outcome) for outcome in outcomes], _text(outcomes))
    conclude(outcomes, len(jobs))


def _folder(out: Path | None, run: Path | None) -> Path:
    if run is None:
        return out or PROFILES
    from hwnas.pipeline.rundir import open_run

    if out is not None:
        raise UsageError(f"both --out {out} and --run {run}", "leave one out")
    return open_run(run).folder / PROFILES


class _Watcher:
    """Tells of each measurement."""

    def __init__(self, output: Output) -> None:
        self._line = ProgressLine(output)

    def __call__(self, progress: "FleetProgress") -> None:
        """Show a measurement, and a failure on a line of its own."""
        from hwnas.profiling.records import arch_digest

        record = progress.record
        name = f"{progress.device}: {arch_digest(record.arch)[:12]} {record.backend}"
        if record.failure is not None:
            self._line.note(f"failed ({record.failure.kind}): {name}: {record.failure.reason}")
        parts = [f"{progress.done}/{progress.total}", name]
        if record.latency is not None:
            parts += [f"{record.latency.median_ms:.3f} ms", f"grade {record.grade}"]
        self._line.show("  ".join(parts), last=progress.done == progress.total)


def _document(outcome: "DeviceOutcome") -> dict[str, object]:
    return {
        "device": outcome.device,
        "profile": str(outcome.profile),
        "measured": outcome.measured,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
        "refusal": None if outcome.refusal is None else outcome.refusal.message,
    }


def _text(outcomes: "Sequence[DeviceOutcome]") -> str:
    rows = [
        [outcome.device, str(outcome.measured), str(outcome.skipped), str(outcome.failed),
         str(outcome.profile)]
        for outcome in outcomes
    ]  # fmt: skip
    return table(["device", "measured", "there", "failed", "profile"], rows, right=(1, 2, 3))
