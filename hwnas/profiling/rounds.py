"""What of a session to measure once more: only in time does it show what rest is.

Others may use the memory during the first measurements and leave it later. What met a slower memory
than the best measurement of the session did is measured once more, after all the others.
"""

from collections.abc import Sequence

from hwnas.profiling.contention import CONTENTION_LIMIT
from hwnas.profiling.jobs import Job
from hwnas.profiling.records import Key, Pages, Record

# The least of many levels is a little below rest.
_WORSE = 1.5


class Rounds:
    """The measurements of one device in one session; jobs are told apart by their keys."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._records: dict[Key, Record] = {}

    @property
    def measured(self) -> int:
        """How many of the jobs were measured, each counted once."""
        return len(self._records)

    def take(self, record: Record) -> tuple[bool, list[Job]]:
        """Return whether to keep a measurement, and the jobs to do once more.

        The latter come with the last job of the first round. A second measurement is kept unless
        it failed or met a slower memory than the first.
        """
        first = self._records.setdefault(record.key, record)
        if first is not record:
            return _better(record, first), []
        done = len(self._records) == len(self._jobs)
        return True, self._disturbed() if done else []

    def _disturbed(self) -> list[Job]:
        best: dict[Pages, float] = {}
        for record in self._records.values():
            level, pages = _level(record), record.settings.pages
            if level is not None:
                best[pages] = min(level, best.get(pages, level))
        return [
            self._jobs[key]
            for key, record in self._records.items()
            if (level := _level(record)) is not None
            and level > (1 + _WORSE * CONTENTION_LIMIT) * best[record.settings.pages]
        ]


def _better(second: Record, first: Record) -> bool:
    before, now = _level(first), _level(second)
    return now is not None and (before is None or now <= before)


def _level(record: Record) -> float | None:
    return None if record.latency is None else record.latency.memory_ms
