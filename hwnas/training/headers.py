"""What the headers of image files tell before any of them is decoded: sizes and colours."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_GREY_MODES = frozenset({"1", "L", "LA", "La", "I", "F"})
_MUCH_LARGER = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Header:
    """What the header of an image says; `mode` is Pillow's name of how its pixels are stored."""

    mode: str
    width: int
    height: int

    @property
    def is_grey(self) -> bool:
        """Whether it has no colour."""
        return self.mode in _GREY_MODES or self.mode.startswith("I;16")


def described(seen: Sequence[Header], *, channels: int, side: int | None) -> list[str]:
    """Return what a person should know before training on such images.

    `channels` and `side` are those that they will be read with.
    """
    if not seen:
        return []
    found = [_colours(seen, channels=channels)]
    width, height = (round(median(values)) for values in _sides(seen))
    found.insert(0, f"typical size {width}x{height} pixels" if _differ(seen) else
                 f"all of {width}x{height} pixels")  # fmt: skip
    if side is not None and min(width, height) >= _MUCH_LARGER * side:
        found.append(
            f"they are scaled to {side} pixels (data.image_size), where little of them is left; "
            "the recipe adapt is for photographs"
        )
    return ["; ".join(found)]


def _sides(seen: Sequence[Header]) -> tuple[list[int], list[int]]:
    return [one.width for one in seen], [one.height for one in seen]


def _differ(seen: Sequence[Header]) -> bool:
    return len({(one.width, one.height) for one in seen}) > 1


def _colours(seen: Sequence[Header], *, channels: int) -> str:
    grey = sum(one.is_grey for one in seen)
    if grey == len(seen):
        if channels == 1:
            return "all grey"
        return "all grey, read as RGB: --set data.channels=1 makes smaller networks for them"
    if grey:
        kept = "RGB" if channels > 1 else "grey"
        return f"{grey} of {len(seen)} looked at are grey, the others in colour; read as {kept}"
    return "in colour" if channels > 1 else "in colour, read as grey (data.channels is 1)"
