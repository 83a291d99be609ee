"""HTML and SVG elements as text that is escaped exactly once."""

from collections.abc import Mapping
from html import escape

Attributes = Mapping[str, object]


class Html(str):
    """Text that is markup already; all other text is escaped where it becomes part of some."""

    __slots__ = ()

    def __html__(self) -> str:
        return self


def element(name: str, attributes: Attributes | None = None, *children: str) -> Html:
    """Return an element; attributes that are None or False are left out."""
    head = name + "".join(_attribute(key, value) for key, value in (attributes or {}).items())
    if not children:
        return Html(f"<{head}/>")
    return Html(f"<{head}>{joined(*children)}</{name}>")


def joined(*parts: str) -> Html:
    """Return parts one after the other, those that are no markup escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def number(value: float) -> str:
    """Return a coordinate with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {key}"
    text = number(value) if isinstance(value, int | float) else escape(str(value), quote=True)
    return f' {key}="{text}"'
