"""Engines: canonical codes, no repeats, determinism, constraints, baselines."""

import numpy as np
import pytest

import hwnas
from hwnas.errors import UsageError
from hwnas.search import Nsga2, Paper, Random, Uniform, hypervolume, search
from hwnas.search import volume as volumes
from hwnas.search.engine import SLICES, Population, Seen, counted_rows, hashed
from hwnas.search.evolution import best_first, crossed, mutated, scaled
from hwnas.search.problem import Scores
from hwnas.search.pymoo_adapter import PymooNsga2
from hwnas.spaces import Requires, Space

NESTED = Space(
    "nested",
    genes={"depth": (1, 2, 3), **{f"w{i}": tuple(range(6)) for i in range(3)}, "x": (0, 1, 2, 3)},
    requires={"w1": Requires("depth", (2, 3)), "w2": Requires("depth", (3,))},
)
ENGINES = {
    "nsga2": Nsga2(population=24, generations=12),
    "pymoo": PymooNsga2(population=24, generations=12),
    "paper": Paper(random=48, parents=12, crossovers=12, mutations=12, generations=12),
    "random": Random(offspring=24, generations=12),
}


def two_goals(codes):
    """Large values are expensive and good, with an interaction and a bad choice."""
    cost = codes.sum(axis=1) + 0.5 * codes[:, 1] * codes[:, -1]
    gain = np.sqrt(codes + 1.0).sum(axis=1) - 2.0 * (codes[:, -1] == 2)
    return np.stack([cost.astype(float), -gain], axis=1)


class Recorder:
    """Evaluates and remembers what it was asked."""

    def __init__(self, limit=np.inf):
        self.asked, self.limit = [], limit

    def __call__(self, codes):
        self.asked.append(codes)
        values = two_goals(codes)
        return Scores(values, np.maximum(values[:, 0] - self.limit, 0.0))

    @property
    def codes(self):
        return np.concatenate(self.asked)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_asks_for_canonical_codes_once(engine):
    recorder = Recorder()
    outcome = search(NESTED, recorder, engine=engine, seed=3)
    assert np.array_equal(recorder.codes, NESTED.canonical(recorder.codes))
    assert len(np.unique(recorder.codes, axis=0)) == len(recorder.codes) == outcome.evaluations


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_every_engine_repeats_itself_for_a_seed(engine):
    first, again, other = (
        search(NESTED, Recorder(), engine=engine, seed=seed) for seed in (1, 1, 2)
    )
    assert np.array_equal(first.found.codes, again.found.codes)
    assert first.history == again.history
    assert first.history != other.history


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_what_is_found_is_the_best_of_all_that_was_asked(engine):
    recorder = Recorder(limit=9.0)
    outcome = search(NESTED, recorder, engine=engine, seed=0)
    values = two_goals(recorder.codes)
    feasible = values[values[:, 0] <= 9.0]
    assert (outcome.found.violation == 0).all()
    assert (outcome.found.values[:, 0] <= 9.0).all()
    everything = hypervolume(feasible, outcome.reference)
    assert outcome.history[-1].hypervolume == pytest.approx(everything)
    volumes = [progress.hypervolume for progress in outcome.history]
    assert volumes == sorted(volumes)


@pytest.mark.parametrize(
    "engine",
    [
        Nsga2(population=32, generations=40),
        PymooNsga2(population=32, generations=40),
        Paper(random=96, parents=16, crossovers=16, mutations=16, generations=38),
    ],
    ids=["nsga2", "pymoo", "paper"],
)
def test_evolution_comes_closer_than_random_search(engine):
    space = Space("wide", genes={f"g{i}": tuple(range(6)) for i in range(20)})
    rng = np.random.default_rng(0)
    prices = np.cumsum(rng.random((20, 6)), axis=1)
    gains = prices * rng.uniform(0.2, 2.0, (20, 1)) + 0.3 * rng.random((20, 6))

    def evaluate(codes):
        values = [table[np.arange(20), codes].sum(axis=1) for table in (prices, -gains)]
        return Scores(np.stack(values, axis=1), np.zeros(len(codes)))

    evolved, drawn = (
        search(space, evaluate, engine=chosen, seed=0)
        for chosen in (engine, Random(offspring=32, generations=40))
    )
    assert evolved.evaluations == drawn.evaluations
    reference = np.maximum(evolved.found.values.max(axis=0), drawn.found.values.max(axis=0))
    volumes = [hypervolume(outcome.found.values, reference) for outcome in (evolved, drawn)]
    assert volumes[0] > 1.15 * volumes[1]


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_a_space_that_is_used_up_ends_the_search(engine):
    tiny = Space("tiny", genes={"a": (0, 1, 2), "b": (0, 1)})
    recorder = Recorder()
    outcome = search(tiny, recorder, engine=engine, seed=0)
    assert outcome.evaluations == tiny.count() == len(recorder.codes)


@pytest.mark.parametrize("engine", ENGINES.values(), ids=ENGINES)
def test_nothing_is_bred_where_nothing_is_left(engine, monkeypatch):
    bred = []
    breed = type(engine).breed
    monkeypatch.setattr(type(engine), "breed", lambda *given: bred.append(0) or breed(*given))
    for values in ((0,), (0, 1, 2)):
        space = Space("tiny", genes={"a": values, "b": (0,)})
        outcome = search(space, Recorder(), engine=engine, seed=0)
        assert outcome.evaluations == len(values)
    assert not bred


@pytest.mark.parametrize("engine", [ENGINES["nsga2"], ENGINES["pymoo"]], ids=["nsga2", "pymoo"])
def test_three_objectives(engine):
    def evaluate(codes):
        values = np.column_stack([two_goals(codes), (codes[:, -1] - 1.5) ** 2])
        return Scores(values, np.zeros(len(codes)))

    outcome = search(NESTED, evaluate, engine=engine, seed=0)
    assert outcome.found.values.shape[1] == 3
    assert outcome.history[-1].hypervolume > outcome.history[0].hypervolume


@pytest.mark.parametrize("objectives", range(4, 10))
def test_a_reported_hypervolume_is_not_dearer_with_more_objectives(objectives, monkeypatch):
    slices = []
    volume = volumes._volume

    def counted(values, reference):
        slices.append(values.shape[1] == 2)
        return volume(values, reference)

    monkeypatch.setattr(volumes, "_volume", counted)
    assert counted_rows(objectives) <= counted_rows(objectives - 1)
    share = np.random.default_rng(0).random((counted_rows(objectives), objectives))
    front = share / np.linalg.norm(share, axis=1, keepdims=True)  # no row dominates another
    assert volumes.hypervolume(front, np.full(objectives, 2.0)) > 0
    assert 100 < sum(slices) <= SLICES


def test_uniform_scaling_goes_from_the_smallest_to_the_largest():
    codes = scaled(NESTED, 8)
    assert codes[0].tolist() == [0, 0, 0, 0, 0]
    assert codes[-1].tolist() == (NESTED.cardinalities - 1).tolist()
    outcome = search(NESTED, Recorder(), engine=Uniform(steps=8))
    assert len(outcome.history) == 1
    assert outcome.evaluations == len(np.unique(codes, axis=0))


def test_infeasible_rows_come_after_feasible_ones_in_order_of_violation():
    everyone = Population(
        np.arange(4)[:, None],
        np.array([[0.0, 0.0], [3.0, 3.0], [0.0, 0.0], [2.0, 2.0]]),
        np.array([2.0, 0.0, 1.0, 0.0]),
    )
    assert best_first(everyone, 4).tolist() == [3, 1, 2, 0]
    assert best_first(everyone, 3).tolist() == [3, 1, 2]


def test_mutants_differ_and_stay_within_their_genes():
    rng = np.random.default_rng(0)
    codes = NESTED.sample_codes(500, rng)
    for rate in (0.0, 0.2, 1.0):
        mutants = mutated(NESTED, codes, rng, rate=rate)
        assert (mutants >= 0).all()
        assert (mutants < NESTED.cardinalities).all()
        assert (mutants != codes).any(axis=1).all()
    single = mutated(NESTED, codes, rng, rate=0.0)
    assert ((single != codes).sum(axis=1) == 1).all()


def test_a_gene_with_one_value_is_never_changed():
    space = Space("fixed", genes={"a": (7,), "b": (0, 1), "c": (0, 1, 2)})
    codes = space.sample_codes(64, np.random.default_rng(0))
    mutants = mutated(space, codes, np.random.default_rng(1), rate=0.9)
    assert (mutants[:, 0] == 0).all()


def test_every_other_value_can_be_reached_by_mutation():
    space = Space("one", genes={"a": tuple(range(5))})
    codes = np.full((2000, 1), 2)
    reached = mutated(space, codes, np.random.default_rng(0), rate=1.0)
    assert set(reached[:, 0].tolist()) == {0, 1, 3, 4}


def test_children_take_each_gene_from_a_parent():
    rng = np.random.default_rng(0)
    first, second = np.zeros((200, 6), np.int64), np.ones((200, 6), np.int64)
    children = crossed(first, second, rng, share=0.5)
    untouched = (children == 0).all(axis=1).mean()
    assert 0.4 < untouched < 0.6
    assert 0.2 < children.mean() < 0.3


def test_seen_returns_each_row_once_and_no_more_than_asked():
    codes = np.array([[1, 2], [1, 2], [0, 3], [2, 1], [0, 3]])
    seen = Seen()
    assert seen.unseen(hashed(codes), 2).tolist() == [0, 2]
    assert seen.unseen(hashed(codes)).tolist() == [3]
    assert seen.unseen(hashed(codes)).tolist() == []
    assert len(seen) == 3


def test_keys_of_a_whole_space_are_distinct():
    every = np.indices((5,) * 6).reshape(6, -1).T
    assert len(np.unique(hashed(every))) == 5**6


def test_values_that_are_no_numbers_are_never_found():
    def evaluate(codes):
        values = two_goals(codes)
        values[codes[:, 0] == 0] = np.nan
        return Scores(values, np.zeros(len(codes)))

    outcome = search(NESTED, evaluate, engine=ENGINES["nsga2"], seed=0)
    assert (outcome.found.codes[:, 0] > 0).all()


def test_an_evaluation_of_the_wrong_shape_is_refused():
    with pytest.raises(UsageError, match="shape"):
        search(
            NESTED,
            lambda codes: Scores(np.zeros(len(codes)), np.zeros(len(codes))),
            engine=ENGINES["nsga2"],
        )


def test_random_search_reaches_the_small_end_of_a_space_with_networks():
    space = hwnas.space("nano")
    smallest = space.cost([space.smallest()]).macs[0]
    codes = ENGINES["random"].start(space, np.random.default_rng(0))
    assert space.cost(codes).macs.min() < 3 * smallest
