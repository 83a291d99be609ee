"""`hwnas report`: one HTML page that tells what a run found and how it was measured."""

from pathlib import Path

import click

from hwnas.cli.output import Output, verb_options
from hwnas.cli.shared import out_file_option, run_option
from hwnas.errors import UsageError


@click.command()
@click.argument("place", required=False, type=click.Path(path_type=Path), metavar="[RUN]")
@run_option("The same.")
@out_file_option("Write the page here.", "RUN/report.html")
@click.option("--png", is_flag=True,
              help="Also draw the recommendation and the front beside it, as a PNG file; needs "
                   "Chromium or Chrome.")  # fmt: skip
@verb_options
def report(
    output: Output, *, place: Path | None, folder: Path | None, out: Path | None, png: bool
) -> None:  # fmt: skip
    """Write one self-contained HTML page about RUN: what to take, and why to believe it.

    What the run does not hold yet is left out, with the command that makes it.
    """
    from hwnas.pipeline.rundir import find_run
    from hwnas.report import report as write_report

    if place is not None and folder is not None and place != folder:
        raise UsageError(f"two runs are named: {place} and --run {folder}", "leave one out")
    if png and out is not None and out.suffix.lower() == ".png":
        raise UsageError(
            f"--out {out}: would be both the page and its picture, which goes beside the page",
            f"name the page: --out {out.with_suffix('.html')} --png",
        )
    page = write_report(find_run(place or folder).folder, output=out)
    document = {"report": str(page), "bytes": page.stat().st_size, "png": None}
    text = f"{page}: {page.stat().st_size / 1e3:.0f} kB"
    if png:
        from hwnas.report.picture import picture

        drawn = picture(page)
        document["png"] = str(drawn)
        text += f"\n{drawn}"
    output.result(document, text)
