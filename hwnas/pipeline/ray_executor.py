"""Tasks on the machines of a Ray cluster, through the interface of `executor`.

Every worker is an actor that runs `start` once and then does one task at a time. A worker that
dies (killed, out of memory, its machine gone) is replaced and its task done again, so nothing is
lost; what kills its workers again and again is given up with an explanation. Workers need hwnas in
the same version; what they work on travels with `start` and with the tasks, so they share no
folders.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import IO, Any, Generic, Literal, cast

from hwnas import __version__
from hwnas.errors import HwnasError, MissingPackageError, UsageError
from hwnas.pipeline.executor import Result, Start, Task

LOCAL = "local"  # in place of an address: a cluster of this machine alone, for this call
_MOST_DEATHS = 3
_GLANCE_S = 1.0
_CLOSING_S = 5.0
_HOW_TO_START = "ray start --head on one machine, ray start --address=... on the others"


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a worker runs: what it takes of a machine. It does tasks of this label only."""

    label: str = ""
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)


# From what the whole cluster has to the workers that are wanted.
Places = Callable[[Mapping[str, float]], Sequence[Place]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Anywhere:
    """As many workers as the cluster has GPUs, or else cores; at most `most`."""

    most: int | None = None
    gpus: bool = False

    def __call__(self, resources: Mapping[str, float]) -> list[Place]:
        """Return the places."""
        kind = "GPU" if self.gpus and resources.get("GPU", 0) >= 1 else "CPU"
        there = max(1, int(resources.get(kind, 0)))
        place = Place(gpus=1.0) if kind == "GPU" else Place()
        return [place] * (there if self.most is None else min(there, self.most))


@dataclass(frozen=True, kw_only=True, slots=True)
class OnDevices:
    """One worker on each of the named devices: machines started with that custom resource.

    A worker takes the whole of it, so one thing at a time runs on a device.
    """

    names: Sequence[str]

    def __call__(self, resources: Mapping[str, float]) -> list[Place]:
        """Return the places; raises UsageError for a device that is not in the cluster."""
        for name in self.names:
            if resources.get(name, 0) < 1:
                raise UsageError(
                    f"no machine of the cluster is the device {name!r}; it has "
                    f"{', '.join(_custom(resources)) or 'none'}",
                    f"on the device: ray start --address=... --resources='{{\"{name}\": 1}}'",
                )
        return [Place(label=name, cpus=0.0, resources={name: 1.0}) for name in self.names]


@dataclass(slots=True)
class _Ticket(Generic[Task]):
    """A task, and how many workers died of it."""

    task: Task
    deaths: int = 0


@dataclass(slots=True)
class _Lane(Generic[Task]):
    """A worker as seen from here. `pending` is the answer that it owes."""

    place: Place
    number: int
    state: Literal["absent", "placing", "preparing", "ready", "working", "gone"] = "absent"
    actor: Any = None
    pending: Any = None
    ticket: _Ticket[Task] | None = None
    since: float = 0.0
    deaths: int = 0


def _no_label(_task: object) -> str:
    return ""


def _ignored(_text: str) -> None:
    return


class Ray(Generic[Task, Result]):
    """Runs tasks on the machines of a Ray cluster; an idle worker gets the next task.

    `label_of` says on which places a task may be done. `patience_s`: how long a machine that has
    left the cluster is waited for.
    """

    def __init__(
        self,
        start: Start[Task, Result],
        *,
        address: str,
        places: Places,
        label_of: Callable[[Task], str] = _no_label,
        note: Callable[[str], None] | None = None,
        patience_s: float = 60.0,
    ) -> None:
        self._start, self._address, self._places = start, address, places
        self._label_of, self._note, self._patience_s = label_of, note or _ignored, patience_s
        self._tasks: dict[str, deque[_Ticket[Task]]] = {}

    def submit(self, task: Task) -> None:
        """Add a task."""
        self._tasks.setdefault(self._label_of(task), deque()).append(_Ticket(task))

    def __iter__(self) -> Iterator[Result]:
        """Yield results as they are ready."""
        if not any(self._tasks.values()):
            return
        with connected(self._address) as ray:
            places = self._places(ray.cluster_resources())
            lanes: list[_Lane[Task]] = [
                _Lane(place=place, number=number) for number, place in enumerate(places)
            ]
            try:
                yield from self._results(ray, lanes, ray.put(self._start))
            finally:
                _end(ray, lanes)

    def _results(self, ray: Any, lanes: "list[_Lane[Task]]", start: Any) -> Iterator[Result]:  # noqa: ANN401
        while True:
            for lane in sorted(lanes, key=lambda lane: lane.state != "ready"):
                self._busy(ray, lane)
            owing = {lane.pending: lane for lane in lanes if lane.pending is not None}
            if not owing:
                break
            ready, _ = ray.wait(list(owing), num_returns=1, timeout=_GLANCE_S)
            for reference in ready:
                yield from self._received(ray, owing[reference], start)
            for lane in lanes:
                self._give_up_waiting(ray, lane)
        left = sum(map(len, self._tasks.values()))
        if left:
            raise HwnasError(
                f"the cluster has lost the machines for {left} tasks",
                "the same command goes on from what is on disk, once they are back",
            )

    def _busy(self, ray: Any, lane: "_Lane[Task]") -> None:  # noqa: ANN401
        """Give an idle worker a task; get a worker where there is a task and none."""
        queue = self._tasks.get(lane.place.label)
        if not queue or lane.pending is not None:
            return
        if lane.state == "absent":
            _place(ray, lane)
        elif lane.state == "ready":
            lane.ticket, lane.state = queue.popleft(), "working"
            lane.pending = lane.actor.do.remote(lane.ticket.task)

    def _received(self, ray: Any, lane: "_Lane[Task]", start: Any) -> Iterator[Result]:  # noqa: ANN401
        """Take what a worker answered, or that it is no more."""
        from ray import exceptions

        try:
            answer = ray.get(lane.pending)
        except (exceptions.RayActorError, exceptions.OutOfMemoryError, exceptions.NodeDiedError,
                exceptions.ObjectLostError) as error:  # fmt: skip
            self._died(ray, lane, str(error))
            return
        except exceptions.ActorUnschedulableError:
            self._leave(ray, lane)
            return
        lane.pending = None
        if isinstance(answer, HwnasError):
            raise answer
        if lane.state == "placing":
            lane.state, lane.pending = "preparing", lane.actor.prepare.remote(start, lane.number)
        elif lane.state == "preparing":
            lane.state = "ready"
        else:
            lane.ticket, lane.state, lane.deaths = None, "ready", 0
            yield answer

    def _died(self, ray: Any, lane: "_Lane[Task]", reason: str) -> None:  # noqa: ANN401
        """Replace a worker that is no more; its task comes first."""
        of_this = lane.ticket.deaths + 1 if lane.ticket else 0
        self._put_back(lane)
        lane.deaths += 1
        where = f" on {lane.place.label}" if lane.place.label else ""
        if max(lane.deaths, of_this) >= _MOST_DEATHS:
            raise HwnasError(
                f"workers{where} die again and again (perhaps memory ran out): "
                f"{' '.join(reason.split())[:300]}",
                "the same command goes on from what is on disk; fewer --workers need less memory",
            )
        self._note(f"a worker{where} has died; its task is done again")
        _dismiss(ray, lane)

    def _give_up_waiting(self, ray: Any, lane: "_Lane[Task]") -> None:  # noqa: ANN401
        if lane.state == "placing" and time.monotonic() - lane.since > self._patience_s:
            self._leave(ray, lane)

    def _leave(self, ray: Any, lane: "_Lane[Task]") -> None:  # noqa: ANN401
        """Do without a place that the cluster does not give."""
        self._put_back(lane)
        _dismiss(ray, lane)
        lane.state = "gone"
        self._note(f"no machine for {lane.place.label or 'one of the workers'}; going on without")

    def _put_back(self, lane: "_Lane[Task]") -> None:
        if lane.ticket is not None:
            lane.ticket.deaths += 1
            self._tasks[lane.place.label].appendleft(lane.ticket)
        lane.ticket = None


class Worker:
    """Lives in a process of the cluster."""

    def __init__(self, version: str) -> None:
        self._theirs = version
        self._work: Callable[[Any], Any] | None = None

    def here(self) -> HwnasError | None:
        """Tell that this worker runs; returns what makes it useless."""
        if self._theirs != __version__:
            return HwnasError(
                f"a machine of the cluster has hwnas {__version__}, this one {self._theirs}",
                f"pip install hwnas=={self._theirs} on all machines",
            )
        return None

    def prepare(self, start: Start[Any, Any], number: int) -> HwnasError | None:
        """Set up what the tasks need; returns why that cannot be."""
        try:
            self._work = start(number)
        except HwnasError as error:
            return error
        return None

    def do(self, task: Any) -> Any:  # noqa: ANN401
        """Return the result of a task, or why it has none."""
        assert self._work is not None
        try:
            return self._work(task)
        except HwnasError as error:
            return error

    def close(self) -> None:
        """Let go of what was set up."""
        close = getattr(self._work, "close", None)
        if close is not None:
            close()


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """Yield the ray module, connected to the cluster at `address` (or to one that is begun here).

    A connection that is there already is used, and left.
    """
    # No figures about this use are sent to Ray's makers unless somebody asks for it.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingPackageError(
            "ray, which is to run the tasks, is not installed", "pip install 'hwnas[ray]'"
        ) from error

    with redirect_stdout(cast("IO[str]", _WithoutRay(sys.stdout))):
        if ray.is_initialized():
            yield ray
            return
        _connect(ray, address)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str) -> None:  # noqa: ANN401
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address == LOCAL:
            ray.init(address=LOCAL, include_dashboard=False, **quiet)
        else:
            ray.init(address=address, **quiet)
    # What it raises for wrong addresses, silent ones and other versions.
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise HwnasError(f"no Ray cluster at {address!r}: {reason}", _HOW_TO_START) from error
    finally:
        # Ray's own would end the process; ours lets go of the workers first.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


class _WithoutRay:
    """Standard output without what Ray's threads print there: it would get into results."""

    def __init__(self, stream: Any) -> None:  # noqa: ANN401 - whatever stdout is
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what is not Ray's."""
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        written: int = self._stream.write(text)
        return written

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._stream, name)


def _place(ray: Any, lane: "_Lane[Any]") -> None:  # noqa: ANN401
    place = lane.place
    make = ray.remote(
        num_cpus=place.cpus, num_gpus=place.gpus, resources=dict(place.resources), max_restarts=0
    )(Worker)
    lane.actor = make.remote(__version__)
    lane.pending, lane.state, lane.since = lane.actor.here.remote(), "placing", time.monotonic()


def _dismiss(ray: Any, lane: "_Lane[Any]") -> None:  # noqa: ANN401
    if lane.actor is not None:
        ray.kill(lane.actor)
    lane.actor, lane.pending, lane.state = None, None, "absent"


def _end(ray: Any, lanes: "Sequence[_Lane[Any]]") -> None:  # noqa: ANN401
    """Let workers that have nothing to do clean up, then end all."""
    from ray import exceptions

    closing = [lane.actor.close.remote() for lane in lanes if lane.state == "ready"]
    with suppress(exceptions.RayError):
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=_CLOSING_S)
    for lane in lanes:
        _dismiss(ray, lane)


def _custom(resources: Mapping[str, float]) -> list[str]:
    usual = ("CPU", "GPU", "memory", "object_store_memory")
    return [name for name in resources if name not in usual and ":" not in name]
