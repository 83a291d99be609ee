"""Importers of released weights. May import only `hwnas.supernet` and what that may import."""

from hwnas.interop import nasvit

__all__ = ["nasvit"]
