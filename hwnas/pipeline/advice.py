"""What to tell of predictors that are of little use, and what would make them better."""

from pathlib import Path

from hwnas.io.paths import typed
from hwnas.pipeline.fit import Fitted
from hwnas.pipeline.predictors import ACCURACY

POOR_RANK = 0.6  # Kendall's tau below which a search mostly chooses by chance


def advice(fitted: Fitted, *, run: Path | None) -> tuple[str, str] | None:
    """Return what is wrong with a predictor and what to do, None where it ranks well enough.

    `run`: the run folder that it was fitted for, if any.
    """
    scores = fitted.scores
    if scores is None or scores.kendall >= POOR_RANK:
        return None
    right = round(100 * (1 + scores.kendall) / 2)
    what = (
        f"{fitted.name} ranks subnets poorly: Kendall {scores.kendall:.2f}, of two subnets it "
        f"names the better one {right} times in 100 (by chance: 50; from {POOR_RANK:g} on it is "
        "useful)"
    )
    where = f"--run {typed(run)}" if run else ""
    more = 2 * fitted.predictor.rows
    if fitted.predictor.target == ACCURACY:
        return what, (
            f"more samples: hwnas fit {where} -n {more}; training for longer (schedule.epochs) "
            "sets subnets apart; until then let the search measure more: --verify 10"
        )
    measure = f"hwnas profile {where} -n {more}" if run else "measure more architectures"
    return what, f"more measurements on a quiet machine (hwnas doctor): {measure}, then hwnas fit"
