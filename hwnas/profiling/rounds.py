"""What of a session to measure once more: only in time does it show what rest is.

Others may use the memory or the core during the first measurements and leave them later. What met a
slower machine than the best measurement of the session did is measured once more, after all the
others.
"""

from collections.abc import Hashable, Sequence

from hwnas.profiling.contention import CONTENTION_LIMIT, CORE_LIMIT
from hwnas.profiling.jobs import Job
from hwnas.profiling.records import Key, Record

# The least of many levels is a little below rest.
_WORSE = 1.5
# How much slower than at rest something may be, by what shows it.
_Witness = tuple[float, Hashable]


class Rounds:
    """The measurements of one device in one session; jobs are told apart by their keys."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = {job.key: job for job in jobs}
        self._records: dict[Key, Record] = {}
        self._rest: dict[_Witness, float] = {}

    @property
    def measured(self) -> int:
        """How many of the jobs were measured, each counted once."""
        return len(self._records)

    def take(self, record: Record) -> tuple[bool, list[Job]]:
        """Return whether to keep a measurement, and the jobs to do once more.

        The latter come with the last job of the first round. A second measurement is kept unless
        it failed or met a slower machine than the first.
        """
        for witness, level in _levels(record).items():
            self._rest[witness] = min(level, self._rest.get(witness, level))
        first = self._records.setdefault(record.key, record)
        if first is not record:
            failed = record.latency is None
            return not failed and self._disturbance(record) <= self._disturbance(first), []
        if len(self._records) < len(self._jobs):
            return True, []
        disturbed = [key for key, one in self._records.items() if self._disturbance(one) > 1]
        return True, [self._jobs[key] for key in disturbed]

    def _disturbance(self, record: Record) -> float:
        """Return how far from rest the machine was; above 1 is too far."""
        return max(
            (
                (level / self._rest[witness] - 1) / (_WORSE * witness[0])
                for witness, level in _levels(record).items()
            ),
            default=0.0,
        )


def _levels(record: Record) -> dict[_Witness, float]:
    """Return how long that took, beside a measurement, which only others slow down."""
    latency, settings = record.latency, record.settings
    if latency is None or latency.companion is not None:  # which met the same
        return {}
    levels: dict[_Witness, float | None] = {
        (CONTENTION_LIMIT, settings.pages): latency.memory_ms,
        (CORE_LIMIT, (record.backend, settings.threads, settings.pages)): latency.reference_ms,
    }
    return {witness: level for witness, level in levels.items() if level}
