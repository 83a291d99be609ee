"""Work side by side on a CPU: a few threads of Python, among which torch's threads are divided.

Small networks gain little from several threads in one operator, as these wait for each other at the
end of each; least of all on a machine where others take a core from time to time. Whole networks
side by side wait once.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TypeVar

import torch

T = TypeVar("T")


class Streams:
    """Runs a few jobs at the same time; as many as torch has threads at most."""

    def __init__(self, count: int) -> None:
        threads = torch.get_num_threads()
        self.count = min(count, threads)
        self._pool = ThreadPoolExecutor(
            self.count, initializer=torch.set_num_threads, initargs=(threads // self.count,)
        )

    def results(self, jobs: Sequence[Callable[[], T]], *, sizes: Sequence[float]) -> Iterator[T]:
        """Yield what the jobs return, in their order; none runs any more when this ends.

        The largest ones begin first, so that none is left alone at the end.
        """
        order = sorted(range(len(jobs)), key=lambda place: -sizes[place])
        futures = {place: self._pool.submit(jobs[place]) for place in order}
        try:
            for place in range(len(jobs)):
                yield futures[place].result()
        finally:
            for future in futures.values():
                future.cancel()
            wait(futures.values())
