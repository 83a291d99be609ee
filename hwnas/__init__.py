"""Hardware-aware neural architecture search and deployment for vision transformers.

Names are imported when they are first used, so that the command line starts quickly and a device
without torch can use what needs none.
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hwnas import export, interop, predictors, search, spaces, supernet
    from hwnas.spaces import Arch, Space, space
    from hwnas.supernet import Supernet

__version__ = "0.1.0"
__all__ = [
    "Arch",
    "Space",
    "Supernet",
    "__version__",
    "export",
    "interop",
    "predictors",
    "search",
    "space",
    "spaces",
    "supernet",
]

_HOMES = {
    "Arch": "hwnas.spaces",
    "Space": "hwnas.spaces",
    "Supernet": "hwnas.supernet",
    "space": "hwnas.spaces",
}


def _find_linked_packages(package: Path) -> None:
    """Make the packages importable that live beside this one and are reached through links."""
    for name in ("predictors", "export"):
        if (package / name).is_dir():
            continue
        # A checkout without symbolic links holds each link as a small text file.
        if not (package / name).is_file() or not (package.parent / name).is_dir():
            raise ImportError(
                f"this copy of hwnas has no package {name!r}: the symbolic link {package / name} "
                "was lost. Clone with `git clone -c core.symlinks=true`, or run hwnas from the "
                "folder of the clone"
            )
        if str(package.parent) not in __path__:
            __path__.append(str(package.parent))


_find_linked_packages(Path(__file__).resolve().parent)


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if not name.startswith("_"):
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"{__name__}.{name}":
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
