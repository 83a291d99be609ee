"""Searches that are interrupted and continued are the searches that were not."""

from dataclasses import replace

import numpy as np
import pytest

from hwnas.errors import UsageError
from hwnas.search import Constraint, Nsga2, Paper, Quantity, front, search
from hwnas.search.problem import Scores
from hwnas.search.pymoo_adapter import PymooNsga2
from hwnas.spaces import Requires, Space

SPACE = Space("wide", genes={f"g{i}": tuple(range(8)) for i in range(8)})
ENGINES = {
    "nsga2": Nsga2(population=20, generations=9),
    "pymoo": PymooNsga2(population=20, generations=9),
    "paper": Paper(random=40, parents=10, crossovers=10, mutations=10, generations=9),
}


class Interrupted(Exception):
    pass


def evaluate(codes):
    cost = (codes**1.5).sum(axis=1)
    gain = np.sin(codes).sum(axis=1) + codes.sum(axis=1)
    return Scores(np.stack([cost, -gain], axis=1), np.maximum(cost - 80.0, 0.0))


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_resumed_search_equals_the_uninterrupted_one(engine, tmp_path):
    whole = search(SPACE, evaluate, engine=engine, seed=5)
    file = tmp_path / "state.safetensors"

    def stop_at_six(progress):
        if progress.generation == 6:
            raise Interrupted

    with pytest.raises(Interrupted):
        search(SPACE, evaluate, engine=engine, seed=5, report=stop_at_six, checkpoint=file, every=2)
    seen = []
    resumed = search(
        SPACE, evaluate, engine=engine, seed=5, report=seen.append, checkpoint=file, every=2
    )
    assert [progress.generation for progress in seen] == [5, 6, 7, 8, 9]
    assert resumed.history == whole.history
    assert np.array_equal(resumed.found.codes, whole.found.codes)
    assert np.array_equal(resumed.last.values, whole.last.values)


def test_a_finished_search_is_not_run_again(tmp_path):
    file = tmp_path / "state.safetensors"
    first = search(SPACE, evaluate, engine=ENGINES["nsga2"], checkpoint=file)

    asked = []

    def asking(codes):
        asked.append(codes)
        return evaluate(codes)

    again = search(SPACE, asking, engine=ENGINES["nsga2"], checkpoint=file)
    assert np.array_equal(first.found.codes, again.found.codes)
    (codes,) = asked  # to see that they still have the scores they had
    assert np.array_equal(codes, first.last.codes)


def test_the_checkpoint_of_another_search_is_refused(tmp_path):
    file = tmp_path / "state.safetensors"
    search(SPACE, evaluate, engine=ENGINES["nsga2"], checkpoint=file)
    with pytest.raises(UsageError, match="another space, engine, seed"):
        search(SPACE, evaluate, engine=ENGINES["nsga2"], seed=1, checkpoint=file)
    with pytest.raises(UsageError, match="another space, engine, seed"):
        search(SPACE, evaluate, engine=ENGINES["paper"], checkpoint=file)
    nested = replace(SPACE, requires={"g1": Requires("g0", (1, 2))})
    with pytest.raises(UsageError, match="another space, engine, seed"):
        search(nested, evaluate, engine=ENGINES["nsga2"], checkpoint=file)


def test_a_front_is_not_resumed_from_that_of_another_problem(tmp_path):
    def searched(*, most, factor=1.0, goals=("cost", "-gain"), company=0.0):
        quantities = (
            Quantity(name="cost", of=lambda codes: factor * (codes**1.5).sum(axis=1) + company),
            Quantity(name="gain", of=lambda codes: codes.sum(axis=1) + np.sin(codes).sum(axis=1)),
        )
        bound = Constraint(quantity="cost", most=most)
        return front(SPACE, goals, [bound], quantities=quantities, engine=ENGINES["nsga2"],
                     checkpoint=tmp_path / "state.safetensors")  # fmt: skip

    first = searched(most=60.0)
    for changed in (
        {"most": 20.0}, {"most": 1e6}, {"most": 60.0, "factor": 1.1},
        {"most": 60.0, "goals": ("cost", "gain")},
    ):  # fmt: skip
        with pytest.raises(UsageError, match="objectives or constraints"):
            searched(**changed)
    assert np.allclose(searched(most=60.0, company=1e-7).values, first.values, atol=1e-6)
