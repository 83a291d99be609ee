"""The page of a run in a real browser: it renders, and hovering, picking, copying work.

The script has to run where it will be read, so these tests need Chromium or Chrome and fail
without one. Whoever has none sets HWNAS_NO_BROWSER=1; then this file holds no tests, which
`.ci/run` does only where no browser can be installed.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hwnas.pipeline.fronts import latest_front
from hwnas.pipeline.rundir import open_run
from hwnas.report import report
from hwnas.report.browser import Browser, Window, find_browser
from hwnas.report.picture import picture
from hwnas.testing.finished_runs import made_up_run

__test__ = not os.environ.get("HWNAS_NO_BROWSER")

DESKTOP, PHONE = Window(width=1100, height=900), Window(width=390, height=800)
MARKS = """[...document.querySelectorAll("[data-choice]")].filter((m) => m.checkVisibility())"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert find_browser(), "no browser: apt-get install chromium, or set HWNAS_NO_BROWSER=1"
    folder = tmp_path_factory.mktemp("runs") / "nano-toys"
    made_up_run(folder)
    return report(folder)


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Browser]:
    with Browser(DESKTOP) as found:
        yield found


@pytest.fixture
def shown(browser: Browser, page: Path) -> Browser:
    """Return the browser with the page just opened, in the default state."""
    browser.show_on(DESKTOP)
    browser.open(page)
    browser.run("localStorage.clear()")
    browser.open(page)
    assert browser.run("document.documentElement.dataset.ready") == "yes"
    return browser


@pytest.fixture(autouse=True)
def _no_problems(browser: Browser) -> Iterator[None]:
    browser.problems.clear()
    yield
    assert browser.problems == []


def place_of(browser: Browser, index: int) -> tuple[float, float]:
    """Return the middle of a choice's mark in the window, scrolled there."""
    mark = f"""{MARKS}.find((m) => m.dataset.choice === "{index}")"""
    browser.run(f"""{mark}.scrollIntoView({{block: "center", behavior: "instant"}})""")
    x, y = browser.run(
        f"""(() => {{ const b = {mark}.getBoundingClientRect();
            return [b.x + b.width / 2, b.y + b.height / 2]; }})()"""
    )
    return x, y


def text(browser: Browser, selector: str) -> str:
    found = browser.run(f"""document.querySelector("{selector}").textContent""")
    return str(found)


def hidden(browser: Browser, selector: str) -> bool:
    return not browser.run(f"""document.querySelector("{selector}").checkVisibility()""")


@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_page(shown: Browser, window: Window) -> None:
    shown.show_on(window)
    width = shown.run("document.documentElement.scrollWidth")
    assert width <= window.width
    visible = shown.run("""[...document.querySelectorAll("figure svg")].filter(
        (s) => s.checkVisibility()).map((s) => s.getBoundingClientRect().right)""")
    assert len(visible) >= 6
    assert max(visible) <= window.width


@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_long_name_does_not_widen_the_page(
    browser: Browser, page: Path, tmp_path: Path, window: Window
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(page.parent, folder)
    (folder / "config.toml").write_text(f'[data]\nname = "{120 * "x"}"\n')
    browser.show_on(window)
    browser.open(report(folder))
    assert browser.run("document.documentElement.scrollWidth") <= window.width


@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_no_labels_of_a_figure_overlap(shown: Browser, window: Window) -> None:
    shown.show_on(window)
    overlapping = shown.run("""[...document.querySelectorAll("figure svg")].flatMap((svg) => {
      const texts = [...svg.querySelectorAll("text")].filter((t) => t.checkVisibility());
      const boxes = texts.map((t) => [t.textContent, t.getBoundingClientRect()]);
      return boxes.flatMap(([a, p], i) => boxes.slice(i + 1).filter(([, q]) =>
        p.left + 1 < q.right && q.left + 1 < p.right && p.top + 3 < q.bottom &&
        q.top + 3 < p.bottom).map(([b]) => `${a} / ${b}`));
    })""")
    assert overlapping == []


@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_hovering_shows_the_architecture(shown: Browser, page: Path, window: Window) -> None:
    shown.show_on(window)
    front = latest_front(open_run(page.parent))
    index = len(front.choices) // 2
    assert hidden(shown, "#tip")
    shown.move(*place_of(shown, index))
    assert not hidden(shown, "#tip")
    tip = text(shown, "#tip")
    assert front.choices[index].digest[:12] in tip
    for word in ("MACs", "parameters", "accuracy", "latency", "stem", "kernel"):
        assert word in tip
    box = shown.run("""(() => { const b = document.getElementById("tip").getBoundingClientRect();
        return [b.left, b.right]; })()""")
    assert box[0] >= 0
    assert box[1] <= window.width
    shown.move(2, 2)
    assert hidden(shown, "#tip")


def test_the_recommended_choice_is_picked_at_first(shown: Browser, page: Path) -> None:
    front = latest_front(open_run(page.parent))
    best = front.choices[front.answers[0].recommended or 0].digest[:12]
    assert best in text(shown, "#panel")
    assert f"--arch {best}" in text(shown, "#panel code")


def test_a_click_picks(shown: Browser, page: Path) -> None:
    front = latest_front(open_run(page.parent))
    index = 1
    shown.click(*place_of(shown, index))
    name = front.choices[index].digest[:12]
    assert f"hwnas export --run {page.parent} --arch {name}" == text(shown, "#panel code")
    assert name in text(shown, "#said")
    picked = shown.run(f"""{MARKS}.filter((m) => m.getAttribute("aria-selected") === "true")
        .map((m) => m.dataset.choice)""")
    assert picked == [str(index)]


def test_the_keyboard_moves_and_picks(shown: Browser) -> None:
    order = shown.run(f"""{MARKS}.sort((a, b) => a.getAttribute("cx") - b.getAttribute("cx"))
        .map((m) => m.dataset.choice)""")
    shown.run(f"""{MARKS}.find((m) => m.tabIndex === 0).focus()""")
    shown.press("Home")
    shown.press("ArrowRight")
    assert shown.run("document.activeElement.dataset.choice") == order[1]
    assert not hidden(shown, "#tip")
    shown.press("Enter")
    assert shown.run("""document.getElementById("panel").dataset.picked""") == order[1]
    shown.press("End")
    assert shown.run("document.activeElement.dataset.choice") == order[-1]
    shown.press("Escape")
    assert hidden(shown, "#tip")


def test_one_mark_is_reached_by_tab(shown: Browser) -> None:
    assert shown.run(f"{MARKS}.filter((m) => m.tabIndex === 0).length") == 1


def test_the_table_picks_too(shown: Browser, page: Path) -> None:
    shown.run("""document.querySelector("details").open = true""")
    shown.run("""document.querySelector('[data-pick="2"]').click()""")
    front = latest_front(open_run(page.parent))
    assert front.choices[2].digest[:12] in text(shown, "#panel")


def test_copying_answers(shown: Browser) -> None:
    shown.run("""document.querySelector("#panel .copy").click()""")
    shown.run("new Promise((done) => setTimeout(done, 200))")
    assert text(shown, "#panel .copy") in ("Copied", "Press Ctrl+C")
    assert text(shown, "#said") != ""


def test_colours_follow_the_system_and_the_button(shown: Browser, page: Path) -> None:
    def paper() -> int:
        colour = shown.run("getComputedStyle(document.body).backgroundColor")
        return int(str(colour).removeprefix("rgb(").split(",")[0])

    assert paper() > 200
    shown.show_on(Window(dark=True))
    assert paper() < 60
    shown.run("""document.getElementById("theme").click()""")  # light, whatever the system says
    assert paper() > 200
    shown.run("""document.getElementById("theme").click()""")
    shown.show_on(DESKTOP)
    assert paper() < 60


def test_it_prints(shown: Browser, tmp_path: Path) -> None:
    shown.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_the_picture_shows_the_front(page: Path, tmp_path: Path) -> None:
    path = picture(page, tmp_path / "front.png")
    header = path.read_bytes()[:24]
    assert header.startswith(b"\x89PNG")
    width, height = int.from_bytes(header[16:20], "big"), int.from_bytes(header[20:24], "big")
    assert width == 1920
    assert height > 1500
