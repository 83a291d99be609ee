"""Searching a space: objectives, constraints, engines, fronts and the measured loop. No torch.

May import `hwnas.predictors`, `hwnas.profiling`, `hwnas.spaces`, `hwnas.io` and `hwnas.errors`.
"""

from hwnas.search.loop import Measured, loop

__all__ = ["Measured", "loop"]
