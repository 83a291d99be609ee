"""What workers of an executor can do in tests: work, refuse, fail, die. Importable by processes."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from hwnas.errors import UsageError


def squaring(number: int) -> Callable[[int], tuple[int, int]]:
    """Return what squares a task and tells who did it."""
    return lambda task: (task * task, os.getpid())


def meeting(number: int, *, folder: Path, most_s: float = 60.0) -> Callable[[int], tuple[int, int]]:
    """Return what squares tasks, the first one when a second worker has come to `folder`."""
    until = time.monotonic() + most_s

    def work(task: int) -> tuple[int, int]:
        (folder / str(os.getpid())).touch()
        while len(list(folder.iterdir())) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        return task * task, os.getpid()

    return work


def refusing(number: int) -> Callable[[int], int]:
    """Return what refuses every task that is not even."""

    def work(task: int) -> int:
        if task % 2:
            raise UsageError(f"{task} is odd", "give even numbers")
        return task

    return work


def not_starting(number: int) -> Callable[[int], int]:
    """Refuse to start."""
    raise UsageError("there is nothing to start with")


def faulty(number: int) -> Callable[[int], int]:
    """Return what has a bug."""
    return lambda task: task // 0


def dying(number: int) -> Callable[[int], int]:
    """Return what is killed by its first task, as by a system without memory."""

    def work(task: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return task

    return work


def dying_once(number: int, *, marker: Path) -> Callable[[int], tuple[int, int]]:
    """Return what squares tasks, and is killed by the task 3 if nobody was before (`marker`)."""

    def work(task: int) -> tuple[int, int]:
        if task == 3 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return task * task, os.getpid()

    return work
