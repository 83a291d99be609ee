"""Which architectures to measure: spread over old devices' predictions, or where least is known."""

from dataclasses import replace

import numpy as np
import pytest

import hwnas
from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.active import Aim, profile_actively
from hwnas.pipeline.choose import candidates, few, measure_actively
from hwnas.pipeline.fit import LEAST_JUDGED, fold_count
from hwnas.pipeline.measuring import building
from hwnas.predictors import Prediction
from hwnas.predictors.features import features
from hwnas.profiling.jobs import Options
from hwnas.profiling.machine import device
from hwnas.profiling.profiles import Profile, best_records, write_profile
from hwnas.profiling.records import Settings
from hwnas.spaces import Space
from hwnas.testing.profiles import made_up_profile

NANO = hwnas.space("nano")
TABLE = Space("table", genes={f"e{i}": (0, 1, 2) for i in range(3)})


class OldDevice:
    """Says the MACs to a power."""

    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, codes, *, level=0.9):
        value = NANO.cost(codes).macs.astype(float) ** self.power
        return Prediction(value, value, value)


def latency(archs) -> np.ndarray:
    costs = NANO.cost(list(archs))
    return costs.macs / 1e6 + np.sqrt(costs.activations) / 50 + 0.2 * costs.layers


def keeping(values, known=()):
    """Return what measures by `values`, and returns all that it has measured."""
    kept = dict(known)

    def measure(archs):
        kept.update(zip(archs, values(archs), strict=True))
        return dict(kept)

    return measure


def test_few_come_one_from_each_part_of_the_range() -> None:
    chosen = few(NANO, [OldDevice(1.0), OldDevice(0.5)], 12, seed=3)
    assert len(set(chosen)) == 12
    pool = candidates(NANO, np.random.default_rng([3, 31]))
    edges = np.quantile(NANO.cost(pool).macs, np.linspace(0, 1, 13))
    strata = np.searchsorted(edges[1:-1], NANO.cost(chosen).macs, side="right")
    assert sorted(strata) == list(range(12))
    assert not (np.diff(strata) > 0).all()  # in no order


def test_few_depend_on_the_seed_alone_and_avoid_what_is_there() -> None:
    old = [OldDevice(1.0)]
    first = few(NANO, old, 5, seed=1)
    assert first == few(NANO, old, 5, seed=1) != few(NANO, old, 5, seed=2)
    assert not set(first) & set(few(NANO, old, 5, seed=1, without=first))


def test_few_need_old_devices_and_a_space_that_is_large_enough() -> None:
    with pytest.raises(UsageError, match="no old devices"):
        few(NANO, [], 5)
    with pytest.raises(UsageError, match="5000 architectures asked for, nano has"):
        few(NANO, [OldDevice(1.0)], 5000)


def test_active_measuring_stops_when_the_error_is_reached() -> None:
    asked = []

    def values(archs):
        asked.append(list(archs))
        return latency(archs).tolist()

    seen = []
    found = measure_actively(NANO, keeping(values), wanted_mape=6.0, most=60, watch=seen.append)
    assert found.reached
    assert found.rounds[-1].confirmed
    assert found.rounds[-1].mape <= 6.0
    assert tuple(seen) == found.rounds
    assert asked[0] == spread(NANO, 20, seed=0)
    assert len(found.measured) == sum(map(len, asked)) < 60
    others = NANO.sample(200, np.random.default_rng(8), macs=(0, 1e12))
    table = features(NANO, others)
    guess = found.predictor.predict(table.genes, table.costs).mean
    assert np.mean(np.abs(guess / latency(others) - 1)) < 0.1


def test_active_measuring_stops_when_all_is_spent_and_forgets_failures() -> None:
    noise = np.random.default_rng(0)
    failed = []

    def values(archs):
        values = [None if noise.random() < 0.2 else float(noise.uniform(1, 9)) for _ in archs]
        failed.extend(a for a, value in zip(archs, values, strict=True) if value is None)
        return values

    found = measure_actively(NANO, keeping(values), wanted_mape=0.1, most=23, batch=2)
    assert not found.reached
    assert len(found.measured) + len(failed) == 23
    assert failed
    assert not set(failed) & set(found.measured)
    assert [r.rows for r in found.rounds] == sorted(r.rows for r in found.rounds)


def active(known, **how):
    """Return the order in which everything was tried, and what a session found."""
    order = dict(known)

    def measure(archs):
        values = [None if arch.digest[0] in "01" else one for arch, one in
                  zip(archs, latency(archs).tolist(), strict=True)]  # fmt: skip
        order.update(zip(archs, values, strict=True))
        return dict(order)

    found = measure_actively(NANO, measure, wanted_mape=1e-3, known=known, **how)
    return order, found


def test_a_session_that_was_cut_anywhere_goes_on_as_if_it_had_not_been() -> None:
    whole, found = active({}, most=36)
    assert len(whole) == 36
    assert None in whole.values()
    assert set(found.failed) == {arch for arch, value in whole.items() if value is None}
    for cut in (7, 24):
        known = dict(list(whole.items())[:cut])
        again, rest = active(known, most=36)
        assert list(again) == list(whole)
        assert rest.rounds[-1].mape == found.rounds[-1].mape
    shorter, _ = active({}, most=33)
    assert list(active(shorter, most=36)[0]) == list(whole)


def test_what_is_told_anew_later_is_what_counts() -> None:
    kept = {}

    def measure(archs):
        for arch in kept:  # the level of the device becomes better known
            kept[arch] *= 1.02
        kept.update(zip(archs, latency(archs).tolist(), strict=True))
        return dict(kept)

    found = measure_actively(NANO, measure, wanted_mape=1e-3, most=36)
    assert dict(found.measured) == kept
    assert not np.allclose(list(kept.values()), latency(kept))


def test_poor_measurements_do_not_count_where_enough_others_are_there() -> None:
    def poor(archs):
        return {arch for arch in archs if arch.digest[0] in "01234"}

    def session(known):
        kept = dict(known)

        def measure(archs):
            wild = [5.0 if poor([arch]) else 1.0 for arch in archs]
            kept.update(zip(archs, (latency(archs) * wild).tolist(), strict=True))
            return dict(kept)

        how = {"wanted_mape": 1e-3, "most": 30, "known": known, "unreliable": lambda: poor(kept)}
        return kept, measure_actively(NANO, measure, **how)

    kept, found = session({})
    assert set(found.left_out) == poor(kept)
    assert set(found.measured) == set(kept) - poor(kept)
    assert [now.rows + now.left_out for now in found.rounds] == [20, 30]
    assert found.rounds[-1].left_out == len(poor(kept)) > 0
    assert found.failed == ()
    again, _ = session(dict(list(kept.items())[:25]))
    assert list(again) == list(kept)
    few = dict(list(kept.items())[:20])
    found = measure_actively(NANO, keeping(latency), wanted_mape=1e-3, most=20, known=few,
                             unreliable=lambda: few)  # fmt: skip
    assert dict(found.measured) == few


def test_what_a_profile_holds_counts_by_its_grade(tmp_path) -> None:
    archs = spread(NANO, 20, seed=0)
    made = made_up_profile("x", list(zip(archs, latency(archs).tolist(), strict=True)), space=NANO)
    records = list(made.records.values())
    graded = [*(replace(record, grade="D") for record in records[:6]), *records[6:]]
    header = replace(made.header, device=device())
    write_profile(tmp_path / "p.jsonl", Profile(header=header, records=best_records(graded)))
    found = profile_actively(NANO, building(), backend="onnxruntime", settings=Settings(),
                             output=tmp_path / "p.jsonl", aim=Aim(mape=1e-3, most=12),
                             options=Options(lock_folder=tmp_path))  # fmt: skip
    assert list(found.left_out) == archs[:6]
    assert list(found.measured) == archs[6:]


def test_rounds_tell_what_is_known_and_what_more_would_buy() -> None:
    _, found = active({}, most=32)
    assert [now.rows + now.failed for now in found.rounds] == [20, 30, 32]
    assert all(now.gain >= 0 for now in found.rounds)
    first = found.rounds[0]
    expected = first.mape * (1 - (first.rows / (first.rows + 10)) ** 0.5)
    assert first.gain == pytest.approx(expected)


def test_everything_that_is_known_counts() -> None:
    archs = spread(NANO, 40, seed=5)
    known = dict(zip(archs, latency(archs).tolist(), strict=True))
    order, found = active(known, most=30)
    assert order == known
    assert found.rounds[0].rows + found.rounds[0].failed == 40


def test_active_measuring_keeps_to_a_pool() -> None:
    pool = spread(NANO, 27, seed=4)
    order, found = active({}, most=100, among=pool)
    assert list(order)[:20] == pool[:20]
    assert set(order) == set(pool)
    assert sum(value is not None for value in order.values()) == len(found.measured)


def test_few_keep_to_a_pool() -> None:
    pool = spread(NANO, 30, seed=4)
    chosen = few(NANO, [OldDevice(1.0)], 6, among=pool)
    assert len(set(chosen)) == 6
    assert set(chosen) < set(pool)
    with pytest.raises(UsageError, match="31 architectures asked for, nano has 30 to choose of"):
        few(NANO, [OldDevice(1.0)], 31, among=pool)


def test_a_space_that_is_used_up_ends_it() -> None:
    def values(archs):
        return [1.0 + 3 * arch["e0"] + arch["e1"] ** 2 + 0.1 * arch["e2"] for arch in archs]

    found = measure_actively(TABLE, keeping(values), wanted_mape=1e-9, most=100, batch=10)
    assert len(found.measured) == 27
    assert found.used_up


def test_an_error_is_known_of_so_many_architectures_or_more() -> None:
    assert fold_count(LEAST_JUDGED) > 0 == fold_count(LEAST_JUDGED - 1)
    pool = spread(NANO, LEAST_JUDGED, seed=4)
    found = measure_actively(NANO, keeping(latency), wanted_mape=80.0, among=pool)
    assert found.reached
    assert found.used_up
    with pytest.raises(UsageError, match="11 architectures to choose of; accepted: from 12"):
        measure_actively(NANO, keeping(latency), wanted_mape=80.0, among=pool[1:])
    with pytest.raises(UsageError, match="at most 11; accepted: .* at least 12 architectures"):
        measure_actively(NANO, keeping(latency), wanted_mape=80.0, most=11)


def test_what_cannot_be_measured_is_explained() -> None:
    with pytest.raises(HwnasError, match="only 0 of 20 architectures could be measured"):
        measure_actively(NANO, keeping(lambda archs: [None] * len(archs)), wanted_mape=1.0)
    with pytest.raises(UsageError, match="an error above"):
        measure_actively(NANO, keeping(lambda archs: [1.0] * len(archs)), wanted_mape=0.0)
