"""Types of the arrays that are searched with: rows of value indices, and numbers about them."""

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.int64]
Floats = NDArray[np.float64]
