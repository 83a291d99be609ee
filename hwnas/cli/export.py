"""`hwnas export`: a subnet as ONNX, checked, measured, and ready for servers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hwnas.cli.choosing import SUBNET_CHOICE, Choice, extracted_folder
from hwnas.cli.output import Output, verb_options
from hwnas.cli.shared import out_folder_option, recipe_option, run_option
from hwnas.cli.show_text import family_table, model_table
from hwnas.cli.values import NAMES
from hwnas.errors import UsageError
from hwnas.io.paths import typed

if TYPE_CHECKING:
    from hwnas.export.artifact import Manifest
    from hwnas.pipeline.exporting import Exported, Wish
    from hwnas.pipeline.families import Pack


@click.command()
@click.argument("subnet", required=False, type=click.Path(path_type=Path), metavar="[SUBNET]")
@run_option("Export from this run; the subnet is extracted first if need be.")
@SUBNET_CHOICE
@click.option("--family", is_flag=True,
              help="Export what the search recommends for each budget, as one pack.")  # fmt: skip
@click.option("--members", type=click.IntRange(min=2), metavar="N",
              help="With --family: N subnets spread over the front.")  # fmt: skip
@click.option("--precision", "precisions", type=NAMES, default="fp32", show_default=True,
              metavar="NAME,..",
              help="fp32, fp16, int8_dynamic, int8_static; fp32 is always written.")  # fmt: skip
@click.option("--target", "targets", type=NAMES, metavar="NAME,..",
              help="Also write what these need: triton, ort, openvino.")  # fmt: skip
@click.option("--batch", type=click.IntRange(min=1), metavar="N",
              help="Fix the batch size.  [default: any]")  # fmt: skip
@click.option("--opset", type=int, default=17, show_default=True, metavar="N",
              help="Version of ONNX's operators, 17 to 22.")  # fmt: skip
@click.option("--embed-preprocessing", is_flag=True,
              help="The graph takes uint8 pixels (NHWC) and normalises them itself.")  # fmt: skip
@click.option("--images", type=click.IntRange(min=1), default=500, show_default=True, metavar="N",
              help="Held-out images that the files are judged by.")  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
              help="Threads that speed is measured with.")  # fmt: skip
@click.option("--no-speed", is_flag=True, help="Do not measure speed.")
@click.option("--name", metavar="NAME", help="Name of the model in a server.")
@recipe_option()
@out_folder_option("RUN/artifacts/DIGEST")
@verb_options
def export(
    output: Output, *, subnet: Path | None, folder: Path | None, choice: Choice,
    family: bool, members: int | None,
    precisions: tuple[str, ...], targets: tuple[str, ...] | None, batch: int | None, opset: int,
    embed_preprocessing: bool, images: int,
    threads: int, no_speed: bool, name: str | None, recipe: str | None, out: Path | None,
) -> None:  # fmt: skip
    """Write a subnet as ONNX, compared with torch and measured on this device.

    SUBNET is a folder that `hwnas extract` wrote; or name the subnet as there.
    """
    from hwnas.training.process import tune_process

    tune_process()
    from hwnas.pipeline import exporting

    wish = exporting.checked(
        exporting.Wish(
            precisions=precisions,
            opset=opset,
            batch=batch,
            embed_preprocessing=embed_preprocessing,
            targets=targets or (),
            images=images,
            measured=not no_speed,
            threads=threads,
            name=name,
        )
    )
    if family or members is not None:
        if subnet or choice:
            raise UsageError("--family chooses the subnets itself",
                             "leave out SUBNET, --arch, --pick and --latency")  # fmt: skip
        _export_family(output, folder, wish, recipe=recipe, out=out, members=members)
        return
    if subnet is not None and (folder or choice):
        raise UsageError("a subnet's folder is named, and another way to choose one, too",
                         "leave out one")  # fmt: skip
    if subnet is None:
        subnet = extracted_folder(output, folder, choice, recipe=recipe)
    report(output, exporting.export(subnet, wish=wish, out=out, recipe=recipe, note=output.note))


def _export_family(
    output: Output, folder: Path | None, wish: "Wish", *, recipe: str | None, out: Path | None,
    members: int | None,
) -> None:  # fmt: skip
    from hwnas.pipeline.families import export_family
    from hwnas.pipeline.rundir import find_run

    run = find_run(folder)
    found = export_family(run, wish=wish, members=members, out=out, recipe=recipe, note=output.note)
    output.result(found.to_json(), _family_text(found))


def _family_text(pack: "Pack") -> str:
    count = len(pack.family.members)
    choose = f'hwnas.export.choose_member("{pack.folder}", latency_ms=...)'
    return "\n".join(
        [
            f"{pack.folder}: {count} member{'' if count == 1 else 's'}",
            family_table(pack.family),
            f"choose one: {choose}",
        ]
    )


def report(output: Output, exported: "Exported") -> None:
    """Print what an artifact holds."""
    manifest = exported.manifest
    document: dict[str, Any] = {
        "artifact": str(exported.folder),
        "model": str(exported.folder / manifest.recommended),
        "remarks": list(exported.remarks),
        **manifest.to_json(),
    }
    text = [
        f"{exported.folder}: subnet {manifest.digest[:12]}, {_form(manifest)}",
        model_table(manifest),
        *exported.remarks,
        f"check it anywhere: hwnas validate {typed(exported.folder)}",
    ]
    output.result(document, "\n".join(text))


def _form(manifest: "Manifest") -> str:
    first = manifest.models[0]
    batch = "any batch" if first.batch is None else f"batches of {first.batch}"
    side = manifest.preprocessing.crop if "uint8" in manifest.input else manifest.preprocessing.size
    return f"opset {first.opset}, {batch}, {manifest.input} of {side} pixels"
