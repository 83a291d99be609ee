"""Accuracy and latency predictors that know how sure they are (no torch).

The code lives in `predictors/` and is imported as `hwnas.predictors` only. Fitting needs
scikit-learn; predicting and loading do not.
"""

if __name__ != "hwnas.predictors":  # every class would exist twice
    raise ImportError("import hwnas.predictors instead of predictors")

from hwnas.predictors.evaluate import CurvePoint, Evaluation, evaluate
from hwnas.predictors.predictor import Prediction, Predictor
from hwnas.predictors.sampling import Measured, most_uncertain, stratified
from hwnas.predictors.scores import Scores, kendall, score, spearman
from hwnas.predictors.table import Table, fit_table, read_table
from hwnas.predictors.transfer import Transferred, transfer

__all__ = [
    "CurvePoint",
    "Evaluation",
    "Measured",
    "Prediction",
    "Predictor",
    "Scores",
    "Table",
    "Transferred",
    "evaluate",
    "fit_table",
    "kendall",
    "most_uncertain",
    "read_table",
    "score",
    "spearman",
    "stratified",
    "transfer",
]
