"""What ends a training before its time, told with the step and with what is kept of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from hwnas.errors import HwnasError, memory_shortage
from hwnas.training.loader import ReadersEndedError, readers_ended
from hwnas.training.recipe import OptimiserSettings
from hwnas.training.step import NonFiniteLossError


@dataclass(kw_only=True, slots=True)
class Whereabouts:
    """How far a training is: the step it does or does next, and the last one that is kept."""

    step: int
    steps_per_epoch: int
    last_kept: int

    def located(self, error: HwnasError) -> HwnasError:
        """Return the error with the step and the last good checkpoint."""
        where = f"step {self.step} (epoch {self.step // self.steps_per_epoch})"
        return HwnasError(f"{where}: {error.message}; {self.kept()}", error.hint)

    def kept(self) -> str:
        """Return which checkpoint is the last good one."""
        if not self.last_kept:
            return "no checkpoint is kept yet"
        return f"the last good checkpoint is that of step {self.last_kept}"


@contextmanager
def explaining_failures(at: Whereabouts, wanted: OptimiserSettings) -> Iterator[None]:
    """Raise HwnasError where losses are not finite, memory is short, or readers of images end."""
    try:
        yield
    except (NonFiniteLossError, ReadersEndedError) as error:
        raise at.located(error) from error
    except (RuntimeError, MemoryError) as error:
        known = _out_of_memory(error, at, wanted) or readers_ended(error)
        if known is None:
            raise
        raise at.located(known) from error


@contextmanager
def explaining_writes(at: Whereabouts) -> Iterator[None]:
    """Say of what cannot be written which checkpoint is the last good one."""
    try:
        yield
    except HwnasError as error:
        raise HwnasError(
            f"{error.message}; {at.kept()}", f"{error.hint}; then the same command goes on"
        ) from error


def not_finite() -> NonFiniteLossError:
    """Return the error of a step that broke the weights."""
    return NonFiniteLossError(
        "the weights are no longer finite", "lower optimiser.lr, or set optimiser.clip_norm"
    )


def _out_of_memory(
    error: RuntimeError | MemoryError, at: Whereabouts, wanted: OptimiserSettings
) -> HwnasError | None:
    if (said := memory_shortage(error)) is None:
        return None
    size, pieces = wanted.batch_size, wanted.accumulate
    more = next((n for n in range(2 * pieces, size + 1) if size % n == 0), None)
    leaner = (
        f"a batch in more pieces (--set optimiser.accumulate={more}), or a smaller one"
        if more
        else f"a batch of fewer than {size} images (--set optimiser.batch_size=N)"
    )
    if at.last_kept:  # the checkpoint binds both of these
        leaner = (
            "if others use the memory: the same command goes on once they are gone; else, in "
            f"another folder, with these weights as its start (hwnas train --init): {leaner}"
        )
    return HwnasError(f"out of memory ({said})", leaner)
