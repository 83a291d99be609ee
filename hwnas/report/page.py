"""The page of a run: one HTML file with everything in it, equal for equal runs."""

import base64
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hwnas import __version__
from hwnas.errors import MissingPackageError
from hwnas.io import write_atomic
from hwnas.report import front, machines, predictions, promises, timing, training
from hwnas.report.blocks import Section
from hwnas.report.choices import picks
from hwnas.report.gather import Material, gather
from hwnas.report.html import Html, element, joined
from hwnas.report.plot import area, line, mark
from hwnas.report.words import plural

if TYPE_CHECKING:
    from jinja2 import Template

REPORT_FILE = "report.html"
_KEY_SIZE = 14.0


def report(run: Path | str, *, output: Path | str | None = None) -> Path:
    """Write the page of the run folder `run` and return its path (default: RUN/report.html).

    What the run does not hold yet is left out, with the command that makes it. Needs jinja2.
    """
    material = gather(Path(run))
    path = Path(output) if output is not None else material.run.folder / REPORT_FILE
    write_atomic(path, page(material))
    return path


def page(material: Material) -> str:
    """Return the HTML of a run."""
    shown, indices = front.front_section(material)
    sections = [
        front.recommendation(material),
        shown,
        promises.section(material),
        timing.section(material),
        predictions.section(material),
        training.section(material),
        machines.section(material),
    ]
    script = _resource("page.js")
    headline = front.headline(material.front, material.verified)
    return _template().render(
        version=__version__,
        title=": ".join(filter(None, [_name(material), headline])),
        heading=headline or _name(material),
        over=" · ".join(_over(material)),
        under=_under(material),
        sections=sections,
        keys=_keys(),
        picks=_data(material, indices, sections),
        style=Html(_resource("page.css")),
        script=Html(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        footer=f"Made by hwnas {__version__} from {_name(material)}. "
        "Nothing on this page is loaded from a network.",
    )


def _name(material: Material) -> str:
    return material.run.folder.resolve().name or "this run"


def _over(material: Material) -> list[str]:
    return [
        "hwnas report",
        _name(material),
        f"space {material.run.space}",
        *([material.data] if material.data else []),
    ]


def _under(material: Material) -> str:
    if material.front is None:
        return "This run has not been searched yet."
    known = front.is_measured(material.front, material.verified)
    device = front.device_shown(material, material.front)
    where = f" on {device}" if device else ""
    models = sum(len(manifest.models) for _, manifest in material.manifests)
    exported = f", {plural(models, 'file')} exported" if models else ""
    return f"As {'measured' if known else 'predicted'}{where}{exported}."


def _data(material: Material, indices: Sequence[int], sections: Sequence[Section]) -> Html:
    """Return what the script reads, safe inside of a script element."""
    document: dict[str, Any] = {"rows": [], "columns": [], "choices": {}}
    first: int | None = None
    if material.front is not None and indices:
        document = picks(material.run, material.space, material.front, indices, material.verified)
        recommended = [answer.recommended for answer in material.front.answers]
        first = next((index for index in recommended if index is not None), indices[0])
    text = json.dumps({**document, "first": first}, ensure_ascii=True, allow_nan=False)
    return Html(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


def _keys() -> dict[str, Html]:
    """Return the small drawings of legends by the class of their marks."""
    middle = _KEY_SIZE / 2
    at = (middle, middle)
    across = ((0.0, middle), (_KEY_SIZE, middle))
    up = ((middle, 1.0), (middle, _KEY_SIZE - 1))
    shapes: dict[str, Sequence[Html]] = {
        "choice": (
            area([(0, 0), (_KEY_SIZE, 0)], [(0, _KEY_SIZE), (_KEY_SIZE, _KEY_SIZE)], "band"),
            line(*across, "whisker"),
            mark("circle", at, "choice"),
        ),
        "choice best": (mark("circle", at, "choice best", size=5.0),),
        "measured": (mark("diamond", at, "measured"),),
        "uniform-mark": (mark("triangle", at, "uniform-mark"),),
        "random-line": (line(*across, "random-line"),),
        "landmark": (mark("square", at, "landmark"),),
        "range": (line(*across, "range"),),
        "budget": (line(*up, "budget"),),
        "budget-mark": (line(*up, "budget-mark"),),
        "held": (line(*up, "held-range"), mark("circle", at, "held", size=3.0)),
        "held outside": (
            line(*up, "held-range outside"),
            mark("circle", at, "held outside", size=3.0),
        ),
    }
    attributes = {"width": _KEY_SIZE, "height": _KEY_SIZE, "aria-hidden": "true"}
    return {name: element("svg", attributes, joined(*parts)) for name, parts in shapes.items()}


def _resource(name: str) -> str:
    return (resources.files("hwnas.report") / name).read_text(encoding="utf-8")


def _template() -> "Template":
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "a report needs jinja2, which is not installed", "pip install 'hwnas[all]'"
        ) from error
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(_resource("page.html.j2"))
