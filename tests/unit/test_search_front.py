"""Problems, constraints, reach and `front`, on estimates made up for the purpose."""

import numpy as np
import pytest

import hwnas
from hwnas.errors import InfeasibleError, UsageError
from hwnas.predictors import Predictor
from hwnas.predictors.features import features
from hwnas.search import (
    Constraint,
    Estimate,
    Nsga2,
    Objective,
    Problem,
    Quantity,
    exact,
    front,
    predicted,
    reach,
)
from hwnas.search.constraints import probability_at_most
from hwnas.search.problem import tabulated
from hwnas.search.settings import split_settings, with_settings
from hwnas.spaces import Space

SPACE = Space("line", genes={f"g{i}": (1, 2, 3, 4) for i in range(5)})
SMALL = Nsga2(population=48, generations=20)


def uncertain(codes):
    """Latency in ms, 5 to 20, within 10 % for nine in ten."""
    value = (codes + 1.0).sum(axis=1)
    return Estimate(value, 0.9 * value, 1.1 * value)


LATENCY = Quantity(name="latency", of=uncertain, unit="ms")
ACCURACY = Quantity(name="accuracy", of=lambda codes: 60 + 10 * np.sqrt(codes.sum(axis=1)))
KNOWN = (LATENCY, ACCURACY)


def searched(*constraints, **settings):
    return front(
        SPACE, ["latency", "-accuracy"], constraints, quantities=KNOWN, engine=SMALL, **settings
    )


def test_the_front_is_sorted_and_feasible_with_the_asked_probability():
    found = searched(Constraint(quantity="latency", most=11.0))
    latencies = found.values[:, 0]
    assert latencies.tolist() == [5, 6, 7, 8, 9, 10]
    assert all(point.probability >= 0.95 for point in found.points)
    assert (np.diff(found.values[:, 1]) > 0).all()


def test_less_confidence_lets_more_through():
    found = searched(Constraint(quantity="latency", most=11.0, confidence=0.5))
    assert found.values[-1].tolist()[0] == 11.0
    assert found.points[-1].probability == pytest.approx(0.5)


def test_a_lower_bound_on_a_maximised_quantity():
    found = searched(Constraint(quantity="accuracy", least=85.0))
    assert found.values[:, 1].min() >= 85.0


def test_an_impossible_budget_names_the_nearest_possible_one():
    with pytest.raises(InfeasibleError, match=r"latency at most 3ms.*nearest .* 5\.5ms") as caught:
        searched(Constraint(quantity="latency", most=3.0))
    assert caught.value.exit_code == 3
    assert "5.5ms" in caught.value.hint
    assert searched(Constraint(quantity="latency", most=5.5)).points


def test_an_impossible_lower_bound_names_the_nearest_possible_one():
    with pytest.raises(InfeasibleError, match="accuracy at least 120") as caught:
        searched(Constraint(quantity="accuracy", least=120.0))
    nearest = float(str(caught.value).rsplit(" ", 1)[1])
    assert searched(Constraint(quantity="accuracy", least=nearest)).points


def test_a_budget_just_out_of_reach_is_told_from_the_nearest():
    with pytest.raises(InfeasibleError, match=r"at most 5\.4999ms .* nearest .* is 5\.5ms"):
        searched(Constraint(quantity="latency", most=5.4999))
    with pytest.raises(InfeasibleError, match=r"accuracy at most 60 "):
        searched(Constraint(quantity="accuracy", most=-60.0))


def test_constraints_that_exclude_each_other_are_told_apart_from_impossible_ones():
    with pytest.raises(InfeasibleError, match="meets all constraints") as caught:
        searched(
            Constraint(quantity="latency", most=8.0), Constraint(quantity="accuracy", least=95.0)
        )
    assert "asked: 8ms" in str(caught.value)


def test_reach_is_the_range_of_every_quantity():
    problem = Problem(space=SPACE, quantities=KNOWN, objectives=(Objective(quantity="latency"),))
    ranges = reach(problem)
    assert (ranges["latency"].low, ranges["latency"].high) == (5.0, 20.0)
    assert ranges["accuracy"].low == 60.0


def test_a_front_says_how_it_was_found():
    found = searched(Constraint(quantity="latency", most=11.0), provenance={"device": "here"})
    assert found.provenance["device"] == "here"
    assert found.provenance["evaluations"] > 48
    assert found.hypervolume > 0


def test_the_knee_of_a_front_is_one_of_its_points():
    found = searched()
    assert 0 < found.knee < len(found.points) - 1


@pytest.mark.parametrize("engine", ["nsga2", "pymoo", "paper", "random", "uniform"])
def test_every_engine_can_be_named(engine):
    tiny = Space("tiny", genes={"a": (1, 2, 3), "b": (1, 2)})
    found = front(tiny, ["latency", "-accuracy"], quantities=KNOWN, engine=engine)
    assert found.values[0, 0] == 2.0
    assert found.points[0].origin == found.provenance["engine"]


def test_names_that_are_not_known_are_refused():
    with pytest.raises(UsageError, match="latency"):
        front(SPACE, ["latenzy"], quantities=KNOWN)
    with pytest.raises(UsageError, match="engine"):
        front(SPACE, ["latency"], quantities=KNOWN, engine="nsga")
    with pytest.raises(UsageError, match="objective"):
        front(SPACE, ["-"], quantities=KNOWN)
    with pytest.raises(UsageError, match="twice"):
        front(SPACE, ["latency", "-latency"], quantities=KNOWN)
    with pytest.raises(UsageError, match="at least one objective"):
        front(SPACE, [], quantities=KNOWN)
    with pytest.raises(UsageError, match="one name"):
        front(SPACE, ["latency"], quantities=(LATENCY, LATENCY))


@pytest.mark.parametrize(
    "bounds", [{"most": 1.0, "least": 2.0}, {"most": float("nan")}, {"confidence": 1.0}]
)
def test_bounds_that_make_no_sense_are_refused(bounds):
    with pytest.raises(UsageError):
        Constraint(quantity="latency", **bounds)


def test_the_ends_of_an_interval_are_quantiles_of_the_probability():
    mean, low, high = np.array([10.0]), np.array([9.0]), np.array([13.0])
    for limit, share in ((13.0, 0.95), (9.0, 0.05), (10.0, 0.5), (1e9, 1.0), (-1e9, 0.0)):
        found = probability_at_most(limit, mean, low, high, level=0.9)[0]
        assert found == pytest.approx(share, abs=1e-6)


def test_feasible_is_the_same_by_violation_and_by_probability():
    rng = np.random.default_rng(0)
    mean = rng.uniform(5, 15, 400)
    low, high = mean - rng.uniform(0.1, 3, 400), mean + rng.uniform(0.1, 3, 400)
    for constraint in (
        Constraint(quantity="q", most=11.0, confidence=0.9),
        Constraint(quantity="q", least=8.0, confidence=0.7),
    ):
        by_violation = constraint.violation(mean, low, high, level=0.9) == 0
        by_probability = constraint.probability(mean, low, high, level=0.9) >= constraint.confidence
        assert np.array_equal(by_violation, by_probability)
        assert 0.1 < by_violation.mean() < 0.9


def test_exact_values_meet_a_bound_or_do_not():
    mean = np.array([1.0, 2.0, 3.0])
    inside = Constraint(quantity="q", most=2.0, least=2.0).probability(mean, mean, mean, level=0.9)
    assert inside.tolist() == [0.0, 1.0, 0.0]


def test_costs_are_exact_quantities():
    space = hwnas.space("nano")
    found = front(
        space,
        ["macs", "-params"],
        quantities=(exact(space, "macs"), exact(space, "params")),
        engine=SMALL,
    )
    assert found.values[0, 0] == space.cost([space.smallest()]).macs[0]
    interval = found.points[0].quantities["macs"]
    assert interval.low == interval.value == interval.high


def test_predictors_see_the_columns_of_the_space_once():
    space = hwnas.space("nano")
    calls = []

    class Linear:
        def __init__(self, weight):
            self.weight = weight

        def predict(self, genes, costs, *, level):
            calls.append((genes, costs, level))
            value = self.weight * costs[:, 0]
            return value, 0.9 * value, 1.1 * value

    quantities = predicted(space, {"a": Linear(1.0), "b": Linear(-2.0)}, units={"a": "ms"})
    codes = space.sample_codes(5, np.random.default_rng(0))
    first, second = (quantity.estimate(codes) for quantity in quantities)
    assert np.allclose(second.mean, -2 * first.mean)
    assert calls[0][0] is calls[1][0]
    assert calls[0][1] is calls[1][1]
    assert calls[0][2] == 0.9
    assert [quantity.unit for quantity in quantities] == ["ms", ""]
    assert np.array_equal(calls[0][0], features(space, codes).genes)


def test_one_end_of_a_predicted_interval_is_met_with_the_asked_probability():
    rng = np.random.default_rng(0)
    codes = SPACE.sample_codes(120, rng)
    found = features(SPACE, codes)
    late = np.where(rng.random(len(codes)) < 0.08, rng.uniform(0.5, 1.0, len(codes)), 0.0)
    y = (codes + 1.0).sum(axis=1) * (1.0 + late) * rng.normal(1.0, 0.01, len(codes))
    predictor = Predictor.fit(found.genes, found.costs, y)
    shown = predictor.predict(found.genes, found.costs).high
    assert predictor.prob_at_most(found.genes, found.costs, shown).max() < 0.92
    (quantity,) = predicted(SPACE, {"latency": predictor})
    mean, low, high = quantity.estimate(codes)
    limits = predictor.prob_at_most(found.genes, found.costs, high)
    assert np.abs(limits - 0.95).max() < 0.02
    assert np.abs(predictor.prob_at_most(found.genes, found.costs, low) - 0.05).max() < 0.02
    assert ((low <= mean) & (mean <= high)).all()


def test_a_table_is_a_quantity():
    every = np.indices((4,) * 5).reshape(5, -1).T[::-1]
    values = np.arange(len(every), dtype=float)
    quantity = tabulated(SPACE, "measured", every, values)
    assert quantity.estimate(every[[3, 900, 17]]).mean.tolist() == [3.0, 900.0, 17.0]


def test_what_a_table_lacks_is_said():
    every = np.indices((4,) * 5).reshape(5, -1).T
    quantity = tabulated(SPACE, "measured", every[1:-1], np.arange(len(every) - 2.0))
    for missing in (0, -1):
        with pytest.raises(UsageError, match="the table of measured lacks 1 of 2 architectures"):
            quantity.estimate(every[[5, missing]])


def test_deployment_settings_are_searched_with_the_network():
    space = hwnas.space("nano")
    wide = with_settings(space, {"threads": (1, 2, 4), "precision": ("fp32", "int8")})
    threads, precision = (wide.columns[f"run.{name}"] for name in ("threads", "precision"))

    def latency(codes):
        speedup = np.array([1.0, 1.8, 1.5])[codes[:, threads]] * (1 + codes[:, precision])
        return wide.cost(codes).macs / speedup

    quantities = (Quantity(name="latency", of=latency), exact(wide, "params"))
    found = front(wide, ["latency", "-params"], quantities=quantities, engine=SMALL)
    for point in found.points[:5]:
        arch, settings = split_settings(space, point.arch)
        assert settings == {"threads": 2, "precision": "int8"}
        assert space.cost([arch]).params[0] == point.quantities["params"].value


def test_a_setting_without_values_is_refused():
    with pytest.raises(UsageError, match="threads"):
        with_settings(SPACE, {"threads": ()})
