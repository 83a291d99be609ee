"""`hwnas report`: the page of a run is valid, self-contained, safe, equal, and complete."""

import json
import re
import shlex
import shutil
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

import hwnas
from hwnas.cli.main import main
from hwnas.errors import FormatError
from hwnas.io import Journal
from hwnas.pipeline.fronts import latest_front, write_front
from hwnas.pipeline.rundir import create_run, open_run
from hwnas.profiling.profiles import read_profile, write_profile
from hwnas.report import report
from hwnas.report.words import quantity

VOID = {"meta", "link", "br", "hr", "img", "input"}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&\"'"
SECTIONS = [
    "recommendation", "front", "promises", "milliseconds", "predictors", "training", "measuring",
]  # fmt: skip


class Page(HTMLParser):
    """Checks nesting; collects elements, the text of each section, and the data of the script."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.sections: dict[str, str] = {}
        self.missing: set[str] = set()
        self.data = ""
        self._section: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        assert len(found) == len(attrs), f"{tag} repeats an attribute"
        self.elements.append((tag, found))
        if tag == "section":
            self._section.append(str(found["id"]))
            self.sections[self._section[-1]] = ""
            if "missing" in (found.get("class") or ""):
                self.missing.add(self._section[-1])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()
        if tag == "section":
            self._section.pop()

    def handle_data(self, data: str) -> None:
        if self._section:
            self.sections[self._section[-1]] += data
        if self.open and self.open[-1] == "script" and self.elements[-1][1].get("id") == "picks":
            self.data += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page_of(folder: Path, tmp_path: Path) -> tuple[Page, str]:
    html = report(folder, output=tmp_path / "page.html").read_text(encoding="utf-8")
    return Page(html), html


def test_the_page_is_whole_and_in_order(finished: Path, tmp_path: Path) -> None:
    page, html = page_of(finished, tmp_path)
    assert list(page.sections) == SECTIONS
    assert page.missing == set()
    assert html.startswith("<!DOCTYPE html>")
    assert len(page.all("h1")) == 1
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in page.all("a"):
        assert str(link["href"])[1:] in ids


def test_the_recommendation_says_what_to_take_and_how(finished: Path, tmp_path: Path) -> None:
    page, _ = page_of(finished, tmp_path)
    front = latest_front(open_run(finished))
    text = page.sections["recommendation"]
    for answer in front.answers:
        assert answer.recommended is not None
        name = front.choices[answer.recommended].digest[:12]
        assert f"hwnas export --run {finished} --arch {name}" in text
        assert answer.budget.removeprefix("latency ").replace("ms", "\u00a0ms") in text
    assert "Built and measured on Toy board" in text


def test_a_budget_that_is_a_share_draws_a_line_where_it_came_to(
    copied: Path, tmp_path: Path
) -> None:
    run = open_run(copied)
    front = latest_front(run)
    limit = front.choices[len(front.choices) // 2].predicted["latency"].mean

    def lines(**changes: object) -> int:
        first = replace(front.answers[0], budget="latency 60%", **changes)
        write_front(run, replace(front, answers=(first,)))
        page, _ = page_of(copied, tmp_path)
        return sum(found.get("class") == "budget" for found in page.all("line"))

    assert lines() == 0
    assert lines(limits={"latency": limit}) == 3  # on wide and narrow pages, and in the legend
    page, _ = page_of(copied, tmp_path)
    assert (
        f"60\u00a0% of the largest ({quantity('latency', limit)})"
        in (page.sections["recommendation"])
    )


def test_every_choice_can_be_picked(finished: Path, tmp_path: Path) -> None:
    page, _ = page_of(finished, tmp_path)
    front = latest_front(open_run(finished))
    data = json.loads(page.data)
    assert len(data["choices"]) == len(front.choices)
    marks = [a for a in page.all("circle") if "data-choice" in a]
    for index, choice in enumerate(front.choices):
        known = data["choices"][str(index)]
        assert known["name"] == choice.digest[:12]
        genes = {
            f"{row}.{column}" if column != "value" else row: cell
            for row, cells in zip(data["rows"], known["genes"], strict=True)
            for column, cell in zip(data["columns"], cells, strict=True)
        }
        for gene, value in choice.genes.items():
            assert genes[gene] == str(value)
        ours = [a for a in marks if a["data-choice"] == str(index)]
        assert len(ours) == 2  # on wide and on narrow pages
        assert all(a["role"] == "option" and known["name"] in str(a["aria-label"]) for a in ours)
    assert data["first"] == front.answers[0].recommended


def test_measurements_that_belie_the_front_are_told_with_it(copied: Path, tmp_path: Path) -> None:
    assert "go by what was measured" not in page_of(copied, tmp_path)[0].sections["front"]
    verified = copied / "search" / "verified.jsonl"
    lines = [json.loads(line) for line in verified.read_text().splitlines()]
    for line in lines:
        if "measured" in line:
            line["measured"]["accuracy"] -= 0.1
    verified.write_text("".join(json.dumps(line) + "\n" for line in lines))
    text = page_of(copied, tmp_path)[0].sections["front"]
    assert "Of the 6 that were predicted, the accuracy of none came out in" in " ".join(
        text.split()
    )


def test_accuracies_say_of_how_many_images_they_are(copied: Path, tmp_path: Path) -> None:
    page, _ = page_of(copied, tmp_path)
    text = page.sections["recommendation"].replace("\u00a0", " ")
    shown = re.search(
        r"shares of 8,000 held-out images.*: ([\d.]+) % of .* ([\d.]+)–([\d.]+) %", text
    )
    assert shown is not None
    best, low, high = map(float, shown.groups())
    assert low < best < high
    assert high - low == pytest.approx(
        2 * 196 * (best / 100 * (1 - best / 100) / 8000) ** 0.5, abs=0.15
    )
    (copied / "accuracies.jsonl").unlink()
    assert "shares of" not in page_of(copied, tmp_path)[0].sections["recommendation"]


def test_sentences_hold_the_figures(finished: Path, tmp_path: Path) -> None:
    page, _ = page_of(finished, tmp_path)
    front = latest_front(open_run(finished))
    text = " ".join(page.sections["front"].split())
    assert f"{len(front.choices)} subnets, from" in text
    gain = r"([+\u2212][\d.]+|±0)"
    assert re.search(rf"{gain} and {gain} points against scaling all choices uniformly", text)
    assert re.search(
        rf"{gain} and {gain} (points )?against the best of [\d,]+ random subnets", text
    )
    assert "1,082 steps in 2 epochs on fashion-mnist" in " ".join(page.sections["training"].split())
    assert re.search(
        r"\d of 6 measurements lie in the", " ".join(page.sections["promises"].split())
    )
    assert "model.int8_dynamic.onnx" in page.sections["promises"]
    assert "ResNet-8" in page.sections["front"]
    assert "Toy board" in page.sections["measuring"]


def test_nothing_is_loaded_from_anywhere(finished: Path, tmp_path: Path) -> None:
    page, html = page_of(finished, tmp_path)
    for name, attributes in page.elements:
        for key in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            value = attributes.get(key)
            assert value is None or value.startswith("#") or value == "data:,", (name, value)
    assert not re.search(
        r"url\(|@import|//[\w-]+\.\w", html.replace("http://www.w3.org/2000/svg", "")
    )
    (policy,) = (str(a["content"]) for a in page.all("meta") if "http-equiv" in a)
    assert policy.startswith("default-src 'none'")
    assert len(html.encode()) < 400_000


def test_a_folder_of_images_is_named_as_data(copied: Path, tmp_path: Path) -> None:
    (copied / "config.toml").write_text('[data]\npath = "../../my images"\nheldout = 0.2\n')
    page, html = page_of(copied, tmp_path)
    assert "space nano · my images" in html
    assert "steps on my images;" in " ".join(page.sections["training"].split())
    # A folder for validation would be what is held out, and not a share of the others.
    assert "my images, accuracies on 8,000\u00a0held-out images" in page.sections["measuring"]


def test_hostile_names_stay_text(copied: Path, tmp_path: Path) -> None:
    run = open_run(copied)
    front = latest_front(run)
    settings = {"backend": HOSTILE, "precision": "fp32", "threads": 1, "batch": 1}
    answers = tuple(replace(a, budget=f"latency {HOSTILE}", reason=HOSTILE) for a in front.answers)
    choices = tuple(replace(choice, settings=settings) for choice in front.choices)
    write_front(run, replace(front, answers=answers, choices=choices))
    with Journal(copied / "search" / "landmarks.jsonl") as journal:
        journal.append({"name": HOSTILE, "kind": HOSTILE, "accuracy": 0.8, "latency": 1.0})
    path = copied / "profiles" / "toy-board.jsonl"
    profile = read_profile(path)
    header = replace(
        profile.header, device=replace(profile.header.device, name=HOSTILE, cpu=HOSTILE)
    )
    write_profile(path, replace(profile, header=replace(header, note=HOSTILE)))
    (copied / "config.toml").write_text(f"[data]\nname = {json.dumps(HOSTILE)}\n")
    page, html = page_of(copied, tmp_path)
    assert len(page.all("script")) == 2
    assert page.all("img") == []
    assert not any(key.startswith("on") for _, found in page.elements for key in found)
    assert "<script>alert" not in html
    assert HOSTILE in json.loads(page.data)["choices"]["0"]["notes"][0]
    assert HOSTILE in page.sections["measuring"]


def test_equal_runs_have_equal_pages(finished: Path, tmp_path: Path) -> None:
    _, first = page_of(finished, tmp_path)
    time.sleep(0.01)
    _, second = page_of(finished, tmp_path)
    assert first == second


def test_an_empty_run_says_what_to_type(tmp_path: Path) -> None:
    folder = tmp_path / "just begun"
    create_run(folder, of=hwnas.space("nano", channels=1), origin={"recipe": "x", "start": ""})
    page, _ = page_of(folder, tmp_path)
    assert page.missing == set(SECTIONS) - {"measuring"}
    for section, command in {
        "recommendation": "hwnas search --run",
        "promises": "--verify 5",
        "milliseconds": "hwnas profile --run",
        "predictors": "hwnas fit --run",
        "training": "hwnas train RECIPE --run",
        "measuring": "hwnas profile --run",
    }.items():
        assert command in page.sections[section]
        assert f"--run {shlex.quote(str(folder))}" in page.sections[section]


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ("events.jsonl", "training"),
        ("explanations", "milliseconds"),
        ("predictors", "predictors"),
    ],
)
def test_what_is_gone_is_left_out(copied: Path, tmp_path: Path, gone: str, missing: str) -> None:
    path = copied / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    page, _ = page_of(copied, tmp_path)
    assert page.missing == {missing}
    assert "recommendation" in page.sections


def test_promises_need_something_measured(copied: Path, tmp_path: Path) -> None:
    (copied / "search" / "verified.jsonl").unlink()
    page, _ = page_of(copied, tmp_path)
    assert page.missing == set()  # the exported models were measured
    shutil.rmtree(copied / "artifacts")
    page, _ = page_of(copied, tmp_path)
    assert page.missing == {"promises"}
    assert "Not measured yet" in page.sections["recommendation"]


def test_explaining_a_choice_of_the_front_fills_its_section(copied: Path, tmp_path: Path) -> None:
    shutil.rmtree(copied / "explanations")
    page, _ = page_of(copied, tmp_path)
    front = latest_front(open_run(copied))
    name = front.choices[front.answers[0].recommended or 0].digest[:12]
    command = f"hwnas profile --run {copied} --explain {name}"
    assert command in page.sections["milliseconds"]
    assert main(command.split()[1:]) == 0
    page, _ = page_of(copied, tmp_path)
    assert page.missing == set()
    assert name in page.sections["milliseconds"]
    assert "Conv" in page.sections["milliseconds"]


def test_a_front_of_thousands_stays_small(copied: Path, tmp_path: Path) -> None:
    run = open_run(copied)
    front = latest_front(run)
    many = front.choices * (6000 // len(front.choices) + 1)
    write_front(run, replace(front, choices=many))
    page, html = page_of(copied, tmp_path)
    assert len(html.encode()) < 2_000_000
    assert "are not drawn" in page.sections["front"]
    assert len([a for a in page.all("circle") if "data-choice" in a]) < 2 * 320


def test_a_damaged_front_is_named(copied: Path, tmp_path: Path) -> None:
    (copied / "search" / "front.json").write_text('{"schema": "hwnas/front", "version": 1}')
    with pytest.raises(FormatError, match="front.json"):
        report(copied, output=tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


def test_a_landmark_without_a_latency_is_named(copied: Path) -> None:
    path = copied / "search" / "landmarks.jsonl"
    with Journal(path) as journal:
        journal.append({"name": "x", "kind": "y", "accuracy": 0.5})
    with pytest.raises(FormatError, match=r"landmarks.jsonl, line 3: not a landmark"):
        report(copied)


def test_the_verb_writes_into_the_run(copied: Path, capsys) -> None:
    assert main(["report", str(copied), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["report"] == str(copied / "report.html")
    assert document["bytes"] == (copied / "report.html").stat().st_size
    assert document["png"] is None


def test_the_only_run_need_not_be_named(copied: Path, capsys, monkeypatch) -> None:
    (copied.parent / "runs").mkdir()
    copied.rename(copied.parent / "runs" / "a")
    monkeypatch.chdir(copied.parent)
    assert main(["report"]) == 0
    assert main(["report", "--run", "runs/a"]) == 0
    assert main(["report", "runs/a", "--run", "runs/b"]) == 2
    captured = capsys.readouterr()
    assert captured.out.count("runs/a/report.html") == 2
    assert "two runs are named" in captured.err
    assert main(["show"]) == 0
    assert capsys.readouterr().out.startswith("runs/a: run")


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, capsys) -> None:
    assert main(["report", str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_the_picture_does_not_take_the_place_of_the_page(
    finished: Path, tmp_path: Path, capsys
) -> None:
    place = tmp_path / "page.PNG"
    assert main(["report", str(finished), "--out", str(place), "--png"]) == 2
    assert f"name the page: --out {place.with_suffix('.html')} --png" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_picture_without_a_browser_says_how_to_get_one(copied: Path, capsys, monkeypatch) -> None:
    monkeypatch.setenv("HWNAS_BROWSER", "no-such-browser")
    assert main(["report", str(copied), "--png"]) == 1
    captured = capsys.readouterr()
    assert "a picture needs Chromium or Chrome" in captured.err
    assert "apt-get install chromium" in captured.err
    assert (copied / "report.html").is_file()
