"""Subnets whose accuracy is on record and that may beat what a search recommends.

Fitting the predictors measures accuracies all over the space; some of these subnets turn out better
than anything that a search predicts. They take part where its best are verified, so that none that
is known to be more accurate and keeps the budget is passed over.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from hwnas.pipeline.accuracies import read_accuracies
from hwnas.pipeline.answers import Pool, choices_of
from hwnas.pipeline.fronts import Choice
from hwnas.pipeline.searching import Prepared
from hwnas.search import Constraint, Estimate
from hwnas.spaces import Arch


def contenders(
    prepared: Prepared,
    constraints: Sequence[Constraint],
    *,
    above: float,
    measured: Collection[str],
) -> tuple[Choice, ...]:
    """Return subnets that are known to be more accurate than `above`, the best first.

    Each as it runs at the least cost among the ways that keep the constraints: as predicted in
    what will be `measured`, with the probability asked for in all else.
    """
    known = {e.arch: e.accuracy for e in read_accuracies(prepared.run) if e.accuracy > above}
    if not known:
        return ()
    field = prepared.field
    codes = field.in_every_way(field.base.encode(list(known)))
    pool = Pool.of(field, prepared.objectives, codes)
    sure = {
        name: Estimate(said.mean, said.mean, said.mean) if name in measured else said
        for name, said in pool.estimates.items()
    }
    rows = np.flatnonzero(replace(pool, estimates=sure).keeping(constraints))
    archs = field.base.decode(pool.codes[rows][:, : len(field.base.genes)])
    accuracies = np.array([known[arch] for arch in archs])
    # The last key counts most; the first objective is the predicted accuracy.
    order = np.lexsort((*pool.values[rows].T[:0:-1], -accuracies))
    best: dict[Arch, int] = {}
    for place in order.tolist():
        best.setdefault(archs[place], int(rows[place]))
    return choices_of(field, pool, np.array(list(best.values()), np.int64))
