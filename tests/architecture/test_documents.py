"""What documents point at is there: files, headings, and the names of code."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from hwnas.testing.documents import spans

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("profiles/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)
OURS = re.compile(r"(?:hwnas|tests|benchmarks|examples|docs|predictors|export)/[\w./-]+\.\w+")
NAME = re.compile(r"(?<![\w./-])hwnas(?:\.[A-Za-z_]\w*)+")
KINDS = {"hwnas.predictor", "hwnas.transferred"}  # of files


def anchors(document: Path) -> set[str]:
    """Return the anchors of the headings of a document, as sites for code make them."""
    headings = HEADING.findall(FENCED.sub("", document.read_text()))
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.replace(" ", "-") for heading in plain}


def broken_links(document: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCED.sub("", document.read_text())):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def exists(name: str) -> bool:
    """Return whether a dotted name is a module or something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    assert broken_links(document) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_and_names_in_inline_code_are_there(document: Path) -> None:
    code = spans(document)
    files = [path for span in code for path in OURS.findall(span) if not span.startswith("hwnas ")]
    assert [path for path in files if not (ROOT / path).exists()] == []
    names = [name for span in code for name in NAME.findall(span)]
    assert [name for name in names if not (exists(name) or name in KINDS)] == []


def test_what_leads_nowhere_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One *two*\n[a](#one-two) [b](#three) [c](none.md) [d](page.md#one-two)\n")
    assert broken_links(page) == ["#three", "none.md"]
    assert exists("hwnas.search.budgets.parse_budgets")
    assert not exists("hwnas.search.nosuch")
