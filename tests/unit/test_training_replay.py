"""Batches for several subnets: kept while they are small, made again otherwise."""

from collections.abc import Iterator

import pytest

from hwnas.training.measure import Replay


@pytest.mark.parametrize(("most", "made"), [(100, 1), (5, 3)])
def test_batches_are_the_same_each_time(most: int, made: int) -> None:
    times = []

    def batches() -> Iterator[int]:
        times.append(1)
        yield from (1, 2, 3)

    replay = Replay(batches, size=lambda batch: batch, most=most)
    assert [list(replay) for _ in range(3)] == [[1, 2, 3]] * 3
    assert len(times) == made


def test_a_pass_that_ended_early_is_not_kept() -> None:
    replay = Replay(lambda: iter((1, 2, 3)), size=lambda batch: batch)
    assert next(iter(replay)) == 1
    assert list(replay) == [1, 2, 3]
