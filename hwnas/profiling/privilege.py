"""Scheduling privileges that keep other processes out of a measurement.

In order of preference: SCHED_FIFO on every thread and affinity to as many cores as the model has
threads; a better nice value of the whole session's autogroup; nothing. Everything is put back at
the end. A plain nice value is no help where autogroups are enabled: it ranks only within a session.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hwnas.profiling.records import Privilege

_TASKS = Path("/proc/self/task")
_AUTOGROUP = Path("/proc/self/autogroup")
_KERNEL = Path("/proc/sys/kernel")
_FIFO_PRIORITY = 5
_AUTOGROUP_NICE = -20


@dataclass(frozen=True, kw_only=True, slots=True)
class Held:
    """The privilege that is in force. `rest_share`: how much of the time must be left to others.

    A real-time thread that never rests is stopped by the kernel for the remainder of each second,
    in the middle of a run.
    """

    privilege: Privilege
    cores: tuple[int, ...] = ()
    rest_share: float = 0.0


@contextmanager
def privileged(
    *,
    threads: int = 1,
    cores: Sequence[int] = (),
    allowed: Sequence[Privilege] = ("fifo", "autogroup"),
) -> Iterator[Held]:
    """Hold the best of the `allowed` privileges and yield which one it is.

    `cores` are preferred for real-time threads; by default the last ones, as interrupts tend to
    be served by the first. Threads that start inside the block inherit the privilege.
    """
    with ExitStack() as undo:
        held = Held(privilege="none")
        if "fifo" in allowed and hasattr(os, "sched_setscheduler") and _TASKS.is_dir():
            chosen = _cores(threads, cores)
            if _attempt(lambda stack: _hold_fifo(stack, chosen), undo):
                held = Held(privilege="fifo", cores=chosen, rest_share=_rest_share())
        if held.privilege == "none" and "autogroup" in allowed and _attempt(_hold_autogroup, undo):
            held = Held(privilege="autogroup")
        yield held


def available_privilege() -> Privilege:
    """Return the privilege that a measurement would get here, by trying."""
    with privileged() as held:
        return held.privilege


def realtime_share(kernel: Path = _KERNEL) -> float:
    """Return the share of each period that the kernel lets real-time threads have."""
    try:
        runtime = int((kernel / "sched_rt_runtime_us").read_text())
        period = int((kernel / "sched_rt_period_us").read_text())
    except (OSError, ValueError):
        return 1.0
    return 1.0 if runtime < 0 or period <= 0 else runtime / period


def _rest_share() -> float:
    # Without throttling (a share of 1) the rest is all that others get on this core.
    return max(0.0, 1.0 - realtime_share()) + 0.02


def _attempt(hold: Callable[[ExitStack], None], undo: ExitStack) -> bool:
    """Run `hold`; keep its undo steps if it succeeded, else take them at once."""
    with ExitStack() as steps:
        try:
            hold(steps)
        except OSError:
            return False
        undo.push(steps.pop_all())
        return True


def _cores(threads: int, preferred: Sequence[int]) -> tuple[int, ...]:
    allowed = sorted(os.sched_getaffinity(0))
    usable = [core for core in preferred if core in allowed]
    others = [core for core in reversed(allowed) if core not in usable]
    return tuple((usable + others)[:threads])


def _hold_fifo(undo: ExitStack, cores: tuple[int, ...]) -> None:
    done: set[int] = set()
    undo.callback(_demote_newcomers, done, sorted(os.sched_getaffinity(0)))
    while waiting := _thread_ids() - done:  # a thread may start while we walk the list
        for tid in waiting:
            done.add(tid)
            with suppress(ProcessLookupError):
                _hold_fifo_of(tid, cores, undo)


def _hold_fifo_of(tid: int, cores: tuple[int, ...], undo: ExitStack) -> None:
    policy, param = os.sched_getscheduler(tid), os.sched_getparam(tid)
    affinity = os.sched_getaffinity(tid)
    os.sched_setscheduler(tid, os.SCHED_FIFO, os.sched_param(_FIFO_PRIORITY))
    undo.callback(_restore, tid, policy, param, affinity)
    os.sched_setaffinity(tid, cores)


def _demote_newcomers(known: set[int], affinity: Sequence[int]) -> None:
    """Put threads that started under the privilege, and inherited it, back to normal."""
    for tid in _thread_ids() - known:
        with suppress(ProcessLookupError):
            if os.sched_getscheduler(tid) == os.SCHED_FIFO:
                _restore(tid, os.SCHED_OTHER, os.sched_param(0), set(affinity))


def _restore(tid: int, policy: int, param: "os.sched_param", affinity: set[int]) -> None:
    with suppress(ProcessLookupError):
        os.sched_setscheduler(tid, policy, param)
        os.sched_setaffinity(tid, affinity)


def _thread_ids() -> set[int]:
    return {int(entry.name) for entry in _TASKS.iterdir()}


def _hold_autogroup(undo: ExitStack) -> None:
    if (_KERNEL / "sched_autogroup_enabled").read_text().strip() != "1":
        raise OSError("autogroups are not enabled")
    before = _AUTOGROUP.read_text().split()[-1]
    _AUTOGROUP.write_text(str(_AUTOGROUP_NICE))
    undo.callback(_restore_autogroup, before)


def _restore_autogroup(nice: str) -> None:
    with suppress(OSError):
        _AUTOGROUP.write_text(nice)
