"""The measured loop on enumerated spaces and on spaces with networks."""

import json
import sys

import numpy as np
import pytest

import hwnas
from hwnas.errors import FormatError, HwnasError, MissingPackageError, UsageError
from hwnas.search import Nsga2, hypervolume, loop, search
from hwnas.search.loop import _State, propose
from hwnas.search.problem import Scores
from hwnas.search.ranking import first_front
from hwnas.spaces import Requires, Space

CELL = Space("cell", genes={f"e{i}": ("none", "skip", "conv1", "conv3", "pool") for i in range(5)})
TIMES = np.array([0.0, 0.2, 1.0, 1.9, 0.7])
WORTH = np.array([0.0, 0.3, 0.8, 1.0, 0.1])


class Interrupted(Exception):
    pass


def cell_table(seed=0):
    """Latency adds up with noise; errors have interactions, noise and failures near 90 %."""
    rng = np.random.default_rng(seed)
    every = np.indices((5,) * 5).reshape(5, -1).T
    latency = 2.0 + TIMES[every] @ rng.uniform(0.8, 1.2, 5)
    worth = WORTH[every]
    useful = (
        worth @ rng.uniform(0.7, 1.3, 5) + worth[:, 0] * worth[:, 3] - worth[:, 1] * worth[:, 2]
    )
    error = 6.0 + 30.0 * np.exp(-0.8 * useful)
    latency *= np.exp(0.02 * rng.normal(size=len(every)))
    error *= np.exp(0.01 * rng.normal(size=len(every)))
    failed = (every == 0).all(axis=1) | (rng.random(len(every)) < 0.005)
    return np.stack([latency, np.where(failed, 90.0, error)], axis=1)


class Lookup:
    """Measures by looking up a table, and remembers what was asked."""

    def __init__(self, table, stop_at=10**9):
        self.table, self.rows, self.stop_at = table, [], stop_at

    def __call__(self, archs):
        rows = (CELL.encode(archs) @ 5 ** np.arange(4, -1, -1)).tolist()
        if len(self.rows) + len(rows) > self.stop_at:
            raise Interrupted
        self.rows += rows
        return self.table[rows]


def regret(table, rows):
    reference = table.max(axis=0) + 1e-9
    return 1.0 - hypervolume(table[rows], reference) / hypervolume(table, reference)


@pytest.fixture(scope="module")
def measured():
    table = cell_table()
    lookup = Lookup(table)
    return table, lookup, loop(CELL, lookup, budget=100, seed=1)


def test_the_loop_nears_the_true_front_and_beats_nsga2(measured):
    table, lookup, _ = measured
    evolved = []

    def evaluate(codes):
        evolved.extend((codes @ 5 ** np.arange(4, -1, -1)).tolist())
        return Scores(table[evolved[-len(codes) :]], np.zeros(len(codes)))

    search(CELL, evaluate, engine=Nsga2(population=20, generations=4), seed=1)
    assert len(evolved) == 100
    assert regret(table, lookup.rows) < 0.015
    assert regret(table, lookup.rows) < 0.5 * regret(table, evolved)


def test_nothing_is_measured_twice_and_the_order_is_kept(measured):
    table, lookup, result = measured
    assert len(set(lookup.rows)) == len(lookup.rows) == len(result.evaluated) == 100
    archs = [arch for arch, _ in result.evaluated]
    assert np.array_equal(CELL.encode(archs), result.codes)
    assert np.array_equal(np.array([v for _, v in result.evaluated]), table[lookup.rows])


def test_the_front_is_what_nothing_measured_dominates(measured):
    _, _, result = measured
    front = result.front
    expected = result.values[first_front(result.values)]
    assert np.array_equal(front.values, expected[np.argsort(expected[:, 0])])
    first = front.points[0]
    row = int(first.origin.removeprefix("measured ")) - 1
    assert result.evaluated[row][0] == first.arch
    assert front.provenance["evaluations"] == 100


def test_the_same_seed_measures_the_same_in_the_same_order(measured):
    table, lookup, _ = measured
    again, other = Lookup(table), Lookup(table)
    loop(CELL, again, budget=40, seed=1)
    loop(CELL, other, budget=40, seed=2)
    # the initial design depends on the budget only below twice its size
    assert again.rows == lookup.rows[:40]
    assert other.rows != lookup.rows[:40]


def test_a_resumed_loop_equals_the_uninterrupted_one(measured, tmp_path):
    table, lookup, result = measured
    journal = tmp_path / "loop.jsonl"
    first = Lookup(table, stop_at=55)
    with pytest.raises(Interrupted):
        loop(CELL, first, budget=100, seed=1, journal=journal)
    second = Lookup(table)
    resumed = loop(CELL, second, budget=100, seed=1, journal=journal)
    assert first.rows + second.rows == lookup.rows
    assert np.array_equal(resumed.values, result.values)
    third = Lookup(table)
    loop(CELL, third, budget=100, seed=1, journal=journal)
    assert third.rows == []


@pytest.mark.parametrize(("budgets", "batch", "seed"), [((10, 40), 5, 0), ((10, 30), 10, 1)])
def test_a_larger_budget_measures_nothing_again(budgets, batch, seed, tmp_path):
    space = Space("small", genes={f"g{i}": (0, 1, 2) for i in range(5)})
    weights = np.random.default_rng(seed).random(5)

    def measure(archs):
        share = space.encode(archs) @ weights
        return np.stack([share, np.exp(-share)], axis=1)

    for budget in budgets:
        result = loop(space, measure, budget=budget, batch=batch, seed=seed,
                      journal=tmp_path / "loop.jsonl")  # fmt: skip
        assert len(np.unique(result.codes, axis=0)) == len(result.codes) == budget


def test_a_journal_with_a_torn_line_is_continued(tmp_path):
    table = cell_table()
    journal = tmp_path / "loop.jsonl"
    loop(CELL, Lookup(table), budget=40, seed=1, journal=journal)
    content = journal.read_bytes()
    journal.write_bytes(content[:-30])
    lookup = Lookup(table)
    with pytest.warns(UserWarning, match="not written whole"):
        resumed = loop(CELL, lookup, budget=40, seed=1, journal=journal)
    assert len(lookup.rows) == 10
    assert len(resumed.evaluated) == 40
    assert journal.read_bytes() == content


def test_a_journal_of_another_loop_is_refused(tmp_path):
    journal = tmp_path / "loop.jsonl"
    loop(CELL, Lookup(cell_table()), budget=4, batch=4, seed=1, journal=journal)
    with pytest.raises(UsageError, match="seed"):
        loop(CELL, Lookup(cell_table()), budget=4, batch=4, seed=2, journal=journal)
    other = Space("cell", genes={**CELL.genes, "more": (0, 1)})
    with pytest.raises(UsageError, match="space"):
        loop(other, Lookup(cell_table()), budget=4, batch=4, seed=1, journal=journal)


DAMAGED = {
    "no-values": {"codes": [[0, 0, 0, 0, 0]]},
    "another-space": {"codes": [[1]], "values": [[1, 2]]},
    "no-value-of-a-gene": {"codes": [[0, 0, 0, 0, 5]], "values": [[1, 2]]},
    "negative": {"codes": [[0, 0, 0, 0, -1]], "values": [[1, 2]]},
    "fractions": {"codes": [[0, 0, 0, 0, 0.5]], "values": [[1, 2]]},
    "text": {"codes": [[0, 0, 0, 0, 0]], "values": [["a", "b"]]},
    "three-objectives": {"codes": [[0, 0, 0, 0, 0]], "values": [[1, 2, 3]]},
    "fewer-values": {"codes": [[0, 0, 0, 0, 0], [1, 0, 0, 0, 0]], "values": [[1, 2]]},
    "scalar": {"codes": 3, "values": 4},
}


@pytest.mark.parametrize("record", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_journal_is_refused(record, tmp_path):
    journal = tmp_path / "loop.jsonl"
    loop(CELL, Lookup(cell_table()), budget=4, batch=4, seed=1, journal=journal)
    first, *_ = journal.read_text().splitlines()
    content = f"{first}\n{json.dumps(record)}\n"
    journal.write_text(content)
    with pytest.raises(FormatError, match="line 2: is damaged"):
        loop(CELL, Lookup(cell_table()), budget=4, batch=4, seed=1, journal=journal)
    assert journal.read_text() == content


def test_a_journal_that_two_loops_wrote_is_refused(tmp_path):
    journal = tmp_path / "loop.jsonl"
    loop(CELL, Lookup(cell_table()), budget=4, batch=4, seed=1, journal=journal)
    first, batch, *_ = journal.read_text().splitlines()
    journal.write_text(f"{first}\n{batch}\n{batch}\n")
    with pytest.raises(FormatError, match="two loops"):
        loop(CELL, Lookup(cell_table()), budget=20, batch=4, seed=1, journal=journal)


def test_a_folder_is_no_journal(tmp_path):
    with pytest.raises(HwnasError, match="cannot write"):
        loop(CELL, Lookup(cell_table()), budget=4, journal=tmp_path)


def test_failed_measurements_are_kept_and_worked_around(tmp_path):
    table = cell_table()
    table[np.random.default_rng(0).random(len(table)) < 0.2] = [3.0, np.inf]
    lookup = Lookup(table)
    journal = tmp_path / "loop.jsonl"
    result = loop(CELL, lookup, budget=60, seed=0, journal=journal)
    failed = np.isnan(result.values[:, 1])
    assert 0 < failed.sum() < 30
    assert np.isfinite(result.front.values).all()
    again = loop(CELL, lookup, budget=60, seed=0, journal=journal)
    assert np.array_equal(again.values, result.values, equal_nan=True)


def test_everything_may_fail():
    result = loop(CELL, lambda archs: np.full((len(archs), 2), np.nan), budget=30)
    assert len(result.evaluated) == 30
    assert result.front.points == ()
    assert result.front.hypervolume == 0.0


def test_a_constant_objective_does_no_harm():
    table = cell_table()
    table[:, 0] = 7.0
    lookup = Lookup(table)
    loop(CELL, lookup, budget=60, seed=0)
    assert table[lookup.rows, 1].min() <= np.sort(table[:, 1])[30]


def test_a_space_smaller_than_the_budget_is_measured_whole():
    tiny = Space("tiny", genes={"a": (0, 1, 2), "b": (0, 1)}, requires={"b": Requires("a", (1, 2))})
    result = loop(tiny, lambda archs: [[a["a"], -a["b"]] for a in archs], budget=200, batch=2)
    assert len({arch.digest for arch, _ in result.evaluated}) == tiny.count() == 5


@pytest.mark.parametrize("objectives", [1, 3])
def test_any_number_of_objectives(objectives):
    names = tuple(f"goal{i}" for i in range(objectives))
    weights = np.random.default_rng(0).normal(size=(5 * 5, objectives))

    def measure(archs):
        return np.eye(5)[CELL.encode(archs)].reshape(len(archs), -1) @ weights

    result = loop(CELL, measure, minimise=names, budget=60, seed=0)
    every = measure(CELL.decode(np.indices((5,) * 5).reshape(5, -1).T))
    reference = every.max(axis=0)
    found, best = (hypervolume(values, reference) for values in (result.values, every))
    assert found > 0.95 * best


def test_a_space_with_networks_uses_costs_and_reaches_both_ends():
    space = hwnas.space("nano")

    def measure(archs):
        costs = space.cost(archs)
        latency = costs.macs / 1e6 + 0.3 * costs.layers
        return np.stack([latency, 20.0 - 5 * np.log(costs.params / 1e5)], axis=1)

    result = loop(space, measure, budget=50, seed=0)
    low, high = measure([space.smallest(), space.largest()])[:, 0]
    assert result.values[:, 0].min() <= low
    assert result.values[:, 0].max() >= 0.8 * high
    random = measure(space.sample(50, np.random.default_rng(0)))
    reference = np.maximum(result.values, random).max(axis=0)
    assert hypervolume(result.values, reference) > 1.05 * hypervolume(random, reference)


def test_a_space_too_large_to_list_is_searched():
    space = Space("large", genes={f"g{i}": tuple(range(6)) for i in range(12)})
    prices = np.cumsum(np.random.default_rng(0).random((12, 6)), axis=1)

    def measure(archs):
        codes = space.encode(archs)
        price = prices[np.arange(12), codes].sum(axis=1)
        return np.stack([price, -np.sqrt(codes).sum(axis=1)], axis=1)

    result = loop(space, measure, budget=60, seed=0)
    random = measure(space.sample(1000, np.random.default_rng(0)))
    reference = np.maximum(result.values.max(axis=0), random.max(axis=0))
    assert hypervolume(result.values, reference) > hypervolume(random, reference)


def test_own_features_are_used():
    rng = np.random.default_rng(0)
    secret = rng.random((5,) * 5)

    def features(archs):
        return secret[tuple(CELL.encode(archs).T)][:, None]

    def measure(archs):
        value = features(archs)[:, 0]
        return np.stack([value, (1.0 - value) ** 2], axis=1)

    with_it = loop(CELL, measure, budget=50, features=features, seed=0)
    without = loop(CELL, measure, budget=50, seed=0)
    reference = np.array([1.0, 1.0])
    assert hypervolume(with_it.values, reference) > hypervolume(without.values, reference)
    with pytest.raises(UsageError, match="features"):
        loop(CELL, measure, budget=50, features=lambda archs: np.zeros(len(archs)))


def test_progress_counts_measurements_and_never_shrinks_at_a_fixed_reference():
    table = cell_table()
    seen = []
    loop(CELL, Lookup(table), budget=40, batch=10, seed=0, report=seen.append)
    assert [progress.evaluations for progress in seen] == [10, 20, 30, 40]
    assert all(progress.feasible == progress.evaluations for progress in seen)
    assert seen[-1].hypervolume > 0


def test_a_batch_is_spread_over_different_architectures():
    state = _State(CELL, 2, None)
    lookup = Lookup(cell_table())
    codes = CELL.sample_codes(30, np.random.default_rng(0))
    state.add(codes, lookup(CELL.decode(codes)))
    batch = propose(state, 10, np.random.default_rng(0))
    assert len(np.unique(batch, axis=0)) == 10
    assert not (batch[:, None] == codes).all(axis=2).any()


@pytest.mark.parametrize(
    "settings",
    [
        {"budget": 0}, {"budget": 30.0}, {"budget": "30"}, {"batch": 0}, {"seed": -1},
        {"minimise": ()}, {"minimise": ("a", "a")}, {"minimise": "error"},
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_are_refused(settings):
    with pytest.raises(UsageError, match="accepted"):
        loop(CELL, Lookup(cell_table()), **settings)


def test_measurements_of_the_wrong_shape_are_refused():
    with pytest.raises(UsageError, match=r"\(10,\)"):
        loop(CELL, lambda archs: np.zeros(len(archs)), budget=20)


@pytest.mark.parametrize(
    "row",
    [["a", "b"], {"latency": 1.0, "error": 2.0}, [1j, 2.0]],
    ids=["text", "names", "complex"],
)
def test_measurements_that_are_no_numbers_are_refused_and_not_kept(row, tmp_path):
    journal = tmp_path / "loop.jsonl"
    with pytest.raises(UsageError, match=r"no array of numbers; accepted: \(10, 2\)"):
        loop(CELL, lambda archs: [row for _ in archs], budget=20, journal=journal)
    with pytest.raises(UsageError, match="no array of numbers"):
        loop(CELL, lambda archs: [[1.0, 2.0], *([3.0] for _ in archs[1:])], budget=20)
    resumed = loop(CELL, Lookup(cell_table()), budget=20, journal=journal)
    assert len(resumed.evaluated) == 20


def test_numbers_of_numpy_are_as_good_as_others(tmp_path):
    genes = {f"e{i}": np.arange(5) for i in range(5)}
    measured = []
    for values in (genes, {gene: tuple(range(5)) for gene in genes}):
        space = Space("cell", genes=values)
        journal = tmp_path / f"{len(measured)}.jsonl"
        measure = Lookup(cell_table())
        result = loop(space, lambda archs, s=space, m=measure: m(CELL.decode(s.encode(archs))),
                      budget=np.int64(30), seed=np.int64(3), journal=journal)  # fmt: skip
        measured.append(([arch.digest for arch, _ in result.evaluated], journal.read_bytes()))
    assert measured[0] == measured[1]


def test_large_alphabets_of_numbers_are_searched():
    space = Space("wide", genes={f"width{i}": tuple(range(1, 161)) for i in range(4)})

    def measure(archs):
        share = space.encode(archs) / 159
        return np.stack([share.sum(axis=1), (1.0 - share).prod(axis=1)], axis=1)

    result = loop(space, measure, budget=40, seed=0)
    random = measure(space.sample(40, np.random.default_rng(0)))
    reference = np.array([4.0, 1.0])
    assert hypervolume(result.values, reference) > hypervolume(random, reference)


def test_a_light_installation_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(MissingPackageError, match="scipy"):
        loop(CELL, Lookup(cell_table()))
