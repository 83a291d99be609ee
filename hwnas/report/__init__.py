"""The page of a run: figures and tables. May import `hwnas.pipeline` and what it may import."""

from hwnas.report.page import report

__all__ = ["report"]
