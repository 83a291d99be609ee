"""Values as a reader likes them: few digits, a unit, and no line break between the two."""

from collections.abc import Sequence
from datetime import UTC, datetime

SPACE = "\u00a0"
MINUS = "\u2212"
DASH = "\u2013"
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
SHORT_DIGEST = 12
_UNITS = {"latency": "ms", "throughput": "/s", "energy": "mJ"}
_BYTES = ("size", "memory")


def digits(value: float, significant: int = 3) -> str:
    """Return a number with so many significant digits and no exponent."""
    if value == 0:
        return "0"
    text = f"{value:.{significant}g}"
    if "e" in text:
        decimals = significant - 1 - int(text.partition("e")[2])
        text = f"{float(text):,.0f}" if abs(value) >= 1 else f"{value:.{decimals}f}"
    elif "." not in text and len(text.lstrip("-")) < significant:
        text += "." + "0" * (significant - len(text.lstrip("-")))
    elif "." in text:
        lead = text.lstrip("-").replace(".", "").lstrip("0")
        text += "0" * (significant - len(lead))
    return text.replace("-", MINUS)


def percent(share: float, decimals: int = 1) -> str:
    """Return a share such as 88.4 %."""
    return f"{100 * share:.{decimals}f}{SPACE}%".replace("-", MINUS)


def count(value: float) -> str:
    """Return a large count such as 12.3 M."""
    shown = abs(float(f"{value:.3g}"))  # 999,990 is shown as 1.00 M
    for factor, unit in _PREFIXES:
        if shown >= factor:
            return f"{digits(value / factor)}{SPACE}{unit}"
    return f"{value:.0f}"


def milliseconds(value: float) -> str:
    """Return a time such as 4.61 ms."""
    return f"{digits(value)}{SPACE}ms"


def quantity(name: str, value: float) -> str:
    """Return a value of a named quantity with its unit; `latency:DEVICE` is a latency."""
    kind = name.partition(":")[0]
    if kind == "accuracy":
        return percent(value)
    if kind in _BYTES:
        return f"{count(value)}B"
    if kind in _UNITS:
        return f"{digits(value)}{SPACE}{_UNITS[kind]}"
    return count(value)


def interval(name: str, low: float, high: float) -> str:
    """Return an interval of a named quantity such as 87.9–88.9 %, the unit once.

    One value where both ends read the same.
    """
    first, last = quantity(name, low), quantity(name, high)
    if first == last:
        return first
    plain, separator, unit = first.rpartition(SPACE)
    if separator and last.endswith(SPACE + unit):
        first = plain
    return f"{first}{DASH}{last}"


def listed(words: Sequence[str], *, last: str = "and") -> str:
    """Return words as an enumeration: a, b and c."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def plural(number: float, noun: str, nouns: str = "") -> str:
    """Return a number with its noun: 1 subnet, 2 subnets."""
    return f"{number:,}{SPACE}{noun if number == 1 else nouns or noun + 's'}"


def every(number: int, noun: str) -> str:
    """Return all of so many: the subnet, all 12 subnets."""
    return f"The {noun}" if number == 1 else f"All {plural(number, noun)}"


def short(digest: str) -> str:
    """Return the beginning of a digest, by which commands know it."""
    return digest[:SHORT_DIGEST]


def day(seconds: float) -> str:
    """Return the day (UTC) of a time in seconds since 1970; empty for none."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d") if seconds > 0 else ""


def settings_text(settings: object) -> str:
    """Return how a model is run: onnxruntime, fp32, 1 thread, batch 1."""
    if not isinstance(settings, dict) or not settings:
        return ""
    if all(isinstance(value, dict) for value in settings.values()):
        return "; ".join(f"{name}: {settings_text(value)}" for name, value in settings.items())
    parts = [str(settings[key]) for key in ("backend", "precision") if key in settings]
    if "threads" in settings:
        parts.append(plural(int(settings["threads"]), "thread"))
    if "batch" in settings:
        parts.append(f"batch{SPACE}{settings['batch']}")
    if int(settings.get("workers", 1)) > 1:
        parts.append(plural(int(settings["workers"]), "process", "processes"))
    if settings.get("pages", "default") != "default":
        parts.append(f"{settings['pages']} pages")
    return ", ".join(parts)
