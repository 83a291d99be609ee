"""Searching a space: objectives, constraints, engines, fronts and the measured loop. No torch.

May import `hwnas.predictors`, `hwnas.profiling`, `hwnas.spaces`, `hwnas.io` and `hwnas.errors`.
"""

from hwnas.search.api import ENGINES, front
from hwnas.search.constraints import Constraint
from hwnas.search.engine import Progress, search
from hwnas.search.evolution import Nsga2, Paper, Random, Uniform
from hwnas.search.front import Front, Interval, Point, knee
from hwnas.search.loop import Measured, loop
from hwnas.search.problem import Estimate, Objective, Problem, Quantity, exact, predicted
from hwnas.search.reachable import Reach, reach
from hwnas.search.settings import split_settings, with_settings
from hwnas.search.volume import hypervolume

__all__ = [
    "ENGINES",
    "Constraint",
    "Estimate",
    "Front",
    "Interval",
    "Measured",
    "Nsga2",
    "Objective",
    "Paper",
    "Point",
    "Problem",
    "Progress",
    "Quantity",
    "Random",
    "Reach",
    "Uniform",
    "exact",
    "front",
    "hypervolume",
    "knee",
    "loop",
    "predicted",
    "reach",
    "search",
    "split_settings",
    "with_settings",
]
