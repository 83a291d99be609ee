"""The head of a page as a PNG file: the recommendation and the front."""

from pathlib import Path

from hwnas.errors import HwnasError
from hwnas.report.browser import Browser, Window

_WINDOW = Window(width=960, height=900, scale=2.0)
_MARGIN = 24.0
# The bottom of the first figure; of the first section where there is no figure.
_BOTTOM = """(() => {
  const figure = document.querySelector(".front-figure") || document.querySelector("section");
  return figure.getBoundingClientRect().bottom + scrollY;
})()"""


def picture(page: Path, output: Path | None = None) -> Path:
    """Write the head of a page as PNG (default: beside it) with a headless browser; return it."""
    path = output or page.with_suffix(".png")
    with Browser(_WINDOW) as browser:
        browser.open(page)
        bottom = float(browser.run(_BOTTOM))
        browser.screenshot(path, area=(0.0, 0.0, float(_WINDOW.width), bottom + _MARGIN))
        if browser.problems:
            raise HwnasError(f"{page}: its script fails ({browser.problems[0]})")
    return path
