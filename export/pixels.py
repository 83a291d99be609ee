"""Preprocessing inside the graph: from uint8 squares (B, crop, crop, C) to the network's input.

What it does is `Preprocessing.normalise`; cutting the square stays outside, because decoders and
their scaling are no operators. The channels move while they are bytes, a quarter of the traffic.
"""

import numpy as np

from hwnas.export.graph import Scope
from hwnas.io.preprocessing import Preprocessing, cubic_weights

PIXELS_SLOT = "pixels"
_FLOAT = 1


def planes(preprocessing: Preprocessing, x: str, scope: Scope) -> str:
    """Append the nodes that turn pixels into normalised planes (B, C, size, size)."""
    mean, std = (np.array(values) for values in (preprocessing.mean, preprocessing.std))
    factors, shifts = (1 / (255 * std))[:, None, None], (-mean / std)[:, None, None]
    y = scope.node("Cast", "floats", scope.transpose("planes", x, 0, 3, 1, 2), to=_FLOAT)
    y = scope.node("Mul", "scaled", y, scope.constant("factors", factors.astype(np.float32)))
    y = scope.node("Add", "normalised", y, scope.constant("shifts", shifts.astype(np.float32)))
    if preprocessing.size == preprocessing.crop:
        return y
    # Two products are several times faster than the runtime's cubic Resize.
    weights = cubic_weights(preprocessing.crop, preprocessing.size)
    y = scope.node("MatMul", "rows", scope.constant("row_weights", weights), y)
    return scope.node("MatMul", "resized", y, scope.constant("column_weights", weights.T))
