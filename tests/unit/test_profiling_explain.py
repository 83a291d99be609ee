"""The cost of the runtime's timers is taken off fairly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hwnas.profiling.explain import _relief

TIMES = st.lists(st.floats(0, 100), min_size=1, max_size=30)


@given(TIMES, st.floats(0, 1))
def test_what_is_left_adds_up(timed, share):
    wanted = share * sum(timed)
    relief = _relief(timed, wanted)
    left = [max(ms - relief, 0.0) for ms in timed]
    assert sum(left) == pytest.approx(wanted, abs=1e-6)


@given(TIMES, st.floats(0, 100))
def test_nothing_is_added(timed, more):
    assert _relief(timed, sum(timed) + more) == 0


def test_many_small_nodes_lose_what_the_timers_cost():
    assert _relief([1.005] + [0.005] * 100, 1.0) == pytest.approx(0.005)
