"""Tasks on processes of their own: results, refusals, bugs, and workers that are killed."""

import os

import pytest

from hwnas.errors import HwnasError, UsageError
from hwnas.pipeline.executor import Here, Processes
from hwnas.testing import workers


def submitted(executor, tasks):
    for task in tasks:
        executor.submit(task)
    return executor


def test_here_works_in_this_process() -> None:
    results = list(submitted(Here(workers.squaring), range(3)))
    assert results == [(0, os.getpid()), (1, os.getpid()), (4, os.getpid())]


def test_processes_do_every_task_once_and_share_them() -> None:
    results = list(submitted(Processes(workers.squaring, workers=2), range(8)))
    assert sorted(value for value, _ in results) == [n * n for n in range(8)]
    processes = {process for _, process in results}
    assert len(processes) == 2
    assert os.getpid() not in processes


@pytest.mark.parametrize("start", [workers.squaring, workers.not_starting])
def test_no_tasks_start_nothing(start) -> None:
    assert list(Processes(start, workers=2)) == []
    assert list(Here(start)) == []


def test_what_a_worker_refuses_is_raised_as_it_was() -> None:
    with pytest.raises(UsageError, match="3 is odd") as caught:
        list(submitted(Processes(workers.refusing, workers=1), [2, 3, 4]))
    assert caught.value.hint == "give even numbers"
    with pytest.raises(UsageError, match="nothing to start with"):
        list(submitted(Processes(workers.not_starting, workers=1), [1]))


def test_a_killed_worker_is_explained() -> None:
    with pytest.raises(HwnasError, match="ended by signal 9") as caught:
        list(submitted(Processes(workers.dying, workers=1), [1]))
    assert "--workers 1" in caught.value.hint


def test_a_bug_in_a_worker_is_a_bug_here(capfd) -> None:
    with pytest.raises(RuntimeError, match="exit code 1"):
        list(submitted(Processes(workers.faulty, workers=1), [1]))
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_workers_end_with_whoever_stops_listening() -> None:
    results = iter(submitted(Processes(workers.squaring, workers=1), range(4)))
    _, worker = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)
