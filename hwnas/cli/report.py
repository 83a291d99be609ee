"""`hwnas report`: one HTML page that tells what a run found and how it was measured."""

from pathlib import Path

import click

from hwnas.cli.output import Output, verb_options


@click.command()
@click.argument("run", type=click.Path(path_type=Path), metavar="RUN")
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
              help="Write the page here.  [default: RUN/report.html]")  # fmt: skip
@click.option("--png", is_flag=True,
              help="Also draw the recommendation and the front beside it, as a PNG file; needs "
                   "Chromium or Chrome.")  # fmt: skip
@verb_options
def report(output: Output, *, run: Path, out: Path | None, png: bool) -> None:
    """Write one self-contained HTML page about RUN: what to take, and why to believe it.

    What the run does not hold yet is left out, with the command that makes it.
    """
    from hwnas.report import report as write_report

    page = write_report(run, output=out)
    document = {"report": str(page), "bytes": page.stat().st_size, "png": None}
    text = f"{page}: {page.stat().st_size / 1e3:.0f} kB"
    if png:
        from hwnas.report.picture import picture

        drawn = picture(page)
        document["png"] = str(drawn)
        text += f"\n{drawn}"
    output.result(document, text)
