"""Doing many tasks: here, or on several processes. Tasks are submitted, results come as they do.

`start` makes what a worker does with each of its tasks; it runs once per worker, so that what is
slow to set up (weights, images) is set up once. Another executor needs `submit` and iteration.
"""

import signal
from collections import deque
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Protocol, TypeVar

from hwnas.errors import HwnasError

Task = TypeVar("Task")
Result = TypeVar("Result")
Task_contra = TypeVar("Task_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)
Start = Callable[[int], Callable[[Task], Result]]

_PATIENCE_S = 5.0


class Executor(Protocol[Task_contra, Result_co]):
    """What runs tasks."""

    def submit(self, task: Task_contra) -> None:
        """Add a task."""

    def __iter__(self) -> Iterator[Result_co]:
        """Yield the result of every submitted task, in any order; raise what a task raises.

        Tasks that are submitted meanwhile are done, too, unless an executor says otherwise.
        """


class Here(Generic[Task, Result]):
    """Runs tasks one after the other in this process."""

    def __init__(self, start: Start[Task, Result]) -> None:
        self._start = start
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Add a task."""
        self._tasks.append(task)

    def __iter__(self) -> Iterator[Result]:
        """Yield the results in the order of the tasks."""
        work = self._start(0) if self._tasks else None
        while self._tasks and work is not None:
            yield work(self._tasks.popleft())


class Processes(Generic[Task, Result]):
    """Runs tasks on new processes; an idle one gets the next task.

    `start`, tasks and results are pickled between processes of one machine, never to disk. The
    workers end when this process does, however it ends. Tasks are submitted before the iteration.
    """

    def __init__(self, start: Start[Task, Result], *, workers: int) -> None:
        self._start, self._workers = start, workers
        self._tasks: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        """Add a task."""
        self._tasks.append(task)

    def __iter__(self) -> Iterator[Result]:
        """Yield results as they are ready."""
        workers = self._launch(min(self._workers, len(self._tasks)))
        try:
            for connection in workers:
                connection.send(self._tasks.popleft())
            busy = set(workers)
            while busy:
                for ready in wait(list(busy)):
                    assert isinstance(ready, Connection)
                    result: Result = _received(ready, workers[ready])
                    if self._tasks:
                        ready.send(self._tasks.popleft())
                    else:
                        busy.discard(ready)
                    yield result
        finally:
            _end(workers)

    def _launch(self, count: int) -> dict[Connection, BaseProcess]:
        # Spawned, because torch and its threads do not survive a fork.
        context = get_context("spawn")
        workers: dict[Connection, BaseProcess] = {}
        for number in range(count):
            ours, theirs = context.Pipe()
            # Not daemons: those may not have the loading processes that data sets want.
            process = context.Process(target=_serve, args=(theirs, self._start, number))
            process.start()
            theirs.close()
            workers[ours] = process
        return workers


def _serve(connection: Connection, start: Start[Task, Result], number: int) -> None:
    """Run in a worker: do tasks until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal tells all; the parent decides
    try:
        try:
            work = start(number)
        except HwnasError as error:
            connection.recv()
            connection.send(error)
            return
        while True:
            task = connection.recv()
            try:
                answer: Result | HwnasError = work(task)
            except HwnasError as error:
                answer = error
            connection.send(answer)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # nobody wants more


def _received(connection: Connection, process: BaseProcess) -> Any:  # noqa: ANN401 - of any task
    try:
        answer = connection.recv()
    except (EOFError, ConnectionResetError) as error:
        process.join(_PATIENCE_S)
        code = process.exitcode
        if code is not None and code < 0:
            raise HwnasError(
                f"a worker process was ended by signal {-code} (perhaps memory ran out)",
                "the same command goes on from what is on disk; --workers 1 needs least memory",
            ) from error
        raise RuntimeError(f"a worker process ended with exit code {code}") from error
    if isinstance(answer, HwnasError):
        raise answer
    return answer


def _end(workers: dict[Connection, BaseProcess]) -> None:
    for connection in workers:
        connection.close()
    for process in workers.values():
        process.terminate()
    for process in workers.values():
        process.join(_PATIENCE_S)
        if process.exitcode is None:
            process.kill()
            process.join()
