"""`hwnas pack`: the models of many architectures in one file, for a device without torch."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hwnas.cli.output import Output, verb_options
from hwnas.cli.profile import chosen_source, chosen_space, run_to_measure
from hwnas.cli.progress import ProgressLine, clock
from hwnas.cli.shared import ARCHITECTURES, ONLY_RUN_IF_ALONE, out_file_option, run_option
from hwnas.cli.values import NAMES
from hwnas.io.units import SIZE_BYTES, format_value

if TYPE_CHECKING:
    from hwnas.pipeline.measuring import Source
    from hwnas.profiling.packs import Model


@click.command()
@ARCHITECTURES
@click.option("--precision", "precisions", type=NAMES, default="fp32", show_default=True,
              metavar="NAME,..", help="fp32, fp16, int8_dynamic, int8_static.")  # fmt: skip
@run_option("Take the space of this run, with its classes and channels.", ONLY_RUN_IF_ALONE)
@out_file_option("The file to write.")
@verb_options
def pack(
    output: Output,
    *,
    space_name: str | None,
    number: int,
    few: int | None,
    old: tuple[Path, ...],
    archs: str | None,
    seed: int,
    classes: int | None,
    channels: int | None,
    precisions: tuple[str, ...],
    folder: Path | None,
    out: Path,
) -> None:
    """Write the models of many architectures into one file for a device without torch."""
    from hwnas.pipeline.models import check_precisions
    from hwnas.profiling.packs import write_pack

    check_precisions(precisions)
    run = run_to_measure(folder, named=bool(space_name or archs or old))
    space = chosen_space(space_name, run, classes=classes, channels=channels)
    source = chosen_source(None, space, archs, number=number, seed=seed, few=few, old=old,
                           example="hwnas pack --space nano -n 20 -o nano.pack")  # fmt: skip
    start = time.perf_counter()
    line = ProgressLine(output)
    about = {"space": source.archs[0]["space"], "precisions": list(precisions)}
    packed = write_pack(out, _models(source, precisions, line), about=about)
    seconds, size = time.perf_counter() - start, out.stat().st_size
    output.result(
        {"pack": str(out), "architectures": len(source.archs), "models": len(packed),
         "precisions": list(precisions), "size_bytes": size, "seconds": round(seconds, 2)},
        f"{out}: {len(packed)} models of {len(source.archs)} architectures, "
        f"{format_value(round(size, -4), SIZE_BYTES)}, {clock(seconds)}\n"
        f"on the device: hwnas profile {out.name}",
    )  # fmt: skip


def _models(source: "Source", precisions: tuple[str, ...], line: ProgressLine) -> "Iterator[Model]":
    from hwnas.profiling.packs import Model
    from hwnas.profiling.records import Settings

    start, total = time.perf_counter(), len(source.archs)
    for done, arch in enumerate(source.archs, start=1):
        for precision in precisions:
            made = source.provide(arch, Settings(precision=precision))
            assert isinstance(made, bytes)
            yield Model(arch=arch, precision=precision, onnx=made)
        left = (time.perf_counter() - start) / done * (total - done)
        line.show(f"{done}/{total}  {clock(left)} left", last=done == total)
