"""Accuracy and latency predictors that know how sure they are (no torch).

The code lives in `predictors/` and is imported as `hwnas.predictors` only.
"""

if __name__ != "hwnas.predictors":  # every class would exist twice
    raise ImportError("import hwnas.predictors instead of predictors")

from hwnas.predictors.predictor import Prediction, Predictor

__all__ = ["Prediction", "Predictor"]
