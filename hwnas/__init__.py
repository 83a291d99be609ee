"""Hardware-aware neural architecture search and deployment for vision transformers."""

from pathlib import Path

from hwnas.spaces import Arch, Space, space

_root = Path(__file__).resolve().parent.parent
if (_root / "hwnas" / "predictors").is_file() and (_root / "predictors").is_dir():
    # A checkout without symbolic links holds the two links as small text files.
    __path__.append(str(_root))

__version__ = "0.1.0"
__all__ = ["Arch", "Space", "__version__", "space"]
