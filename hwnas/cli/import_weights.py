"""`hwnas import`: released weights of other programs become the supernet of a run."""

from pathlib import Path

import click

from hwnas.cli.output import Output, verb_options


@click.group()
def import_weights() -> None:
    """Turn released weights into a supernet."""


@import_weights.command("nasvit")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="RUN",
              help="The run folder to create.")  # fmt: skip
@verb_options
def nasvit(output: Output, file: Path, out: Path) -> None:
    """Read the released NASViT checkpoint FILE; nothing in it is executed."""
    from hwnas.interop import nasvit as reference
    from hwnas.io import digest_file
    from hwnas.pipeline.rundir import complete_run, create_run, save_supernet

    supernet = reference.read(file)
    output.note(f"read {file}; writing {out}")
    origin = {"importer": "nasvit", "file": file.name, "sha256": digest_file(file)}
    run = create_run(out, of=supernet.space, origin=origin)
    path = save_supernet(run, supernet, step=0)
    complete_run(run)
    classes = run.options["classes"]
    tensors = len(supernet.state_dict())
    output.result(
        {"run": str(out), "space": run.space, "classes": classes, "supernet": str(path),
         "tensors": tensors, "sha256": origin["sha256"]},
        f"{out}: supernet of space {run.space}, {classes} classes, {tensors} tensors from {file}",
    )  # fmt: skip
