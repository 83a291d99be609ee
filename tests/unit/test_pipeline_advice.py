"""What `hwnas fit` says of predictors that rank poorly."""

from dataclasses import replace
from pathlib import Path

import pytest

from hwnas.pipeline.advice import POOR_RANK, advice
from hwnas.pipeline.fit import Fitted
from hwnas.predictors import Scores

SCORES = Scores(
    rows=40, mape=1.0, within_5=100.0, within_10=100.0, spearman=0.7, kendall=0.49,
    coverage_90=90.0, width_90=4.0,
)  # fmt: skip


class _Known:
    """A predictor of which only the target and the number of rows are asked."""

    rows = 40

    def __init__(self, target: str) -> None:
        self.target = target


def fitted(target: str, kendall: float | None) -> Fitted:
    scores = None if kendall is None else replace(SCORES, kendall=kendall)
    return Fitted(name=target, predictor=_Known(target), scores=scores, curve=None, fit_cpu_s=0.0)  # type: ignore[arg-type]


def test_poor_ranking_is_explained_with_what_to_type() -> None:
    told = advice(fitted("accuracy", 0.49), run=Path("runs/a"))
    assert told is not None
    what, remedy = told
    assert "the better one 74 times in 100" in what
    assert "hwnas fit --run runs/a -n 80" in remedy
    assert "schedule.epochs" in remedy
    told = advice(fitted("latency_ms", 0.1), run=Path("runs/a"))
    assert told is not None
    assert "hwnas profile --run runs/a -n 80" in told[1]
    told = advice(fitted("latency_ms", 0.1), run=None)
    assert told is not None
    assert "--run" not in told[1]


@pytest.mark.parametrize("kendall", [None, POOR_RANK, 0.9])
def test_useful_ranking_is_not_remarked_upon(kendall: float | None) -> None:
    assert advice(fitted("accuracy", kendall), run=None) is None
