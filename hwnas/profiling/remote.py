"""A worker process as seen by whoever gives it work: ask, with a time limit, and survive it."""

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
from collections import Counter
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from hwnas.errors import HwnasError
from hwnas.io.interpreter import module_command, module_environment
from hwnas.profiling.pages import VARIABLE, page_environment
from hwnas.profiling.records import Pages

_START_S = 60.0


class WorkerError(HwnasError):
    """A request was not answered: the model is at fault, the worker died, or took too long."""

    def __init__(self, kind: Literal["error", "crash", "timeout"], message: str) -> None:
        super().__init__(message)
        self.kind = kind


class RemoteWorker:
    """A worker process with such memory pages, started when first needed and after it died."""

    def __init__(self, *, pages: Pages = "default") -> None:
        self._pages = pages
        self._starting: Future[subprocess.Popen[str]] | None = None
        self._replies: queue.Queue[str | None] = queue.Queue()
        self._begun = 0
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - by __exit__

    def ask(self, request: dict[str, Any], *, timeout_s: float) -> dict[str, Any]:
        """Return the reply to a request. Raises WorkerError."""
        self.settle(timeout_s=timeout_s)
        self.send(request)
        return self.receive(timeout_s=timeout_s)

    def begin(self, request: dict[str, Any]) -> None:
        """Have the process start and prepare something, while others work.

        What goes wrong is told by whatever is asked of it next.
        """
        with suppress(WorkerError):
            self.send(request)
            self._begun += 1

    def settle(self, *, timeout_s: float) -> None:
        """Wait until the process is at rest, so that it does not disturb what is measured now."""
        while self._begun:
            self._begun -= 1
            with suppress(WorkerError):
                self.receive(timeout_s=timeout_s)

    def send(self, request: dict[str, Any]) -> None:
        """Send a request whose reply is fetched with `receive`."""
        process = self._running()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
        except BrokenPipeError as error:
            raise self._crashed() from error

    def receive(self, *, timeout_s: float) -> dict[str, Any]:
        """Return the reply to the request that was sent. Raises WorkerError."""
        try:
            line = self._replies.get(timeout=timeout_s)
        except queue.Empty as error:
            self.stop()
            raise WorkerError("timeout", f"no result after {timeout_s:g} s") from error
        if line is None:
            raise self._crashed()
        reply = json.loads(line)
        if "error" in reply:
            raise WorkerError("error", reply["error"])
        return dict(reply["ok"])

    def stop(self) -> None:
        """End the process, whatever it is doing; where this is interrupted it can be done again."""
        self._begun = 0
        if self._starting is None:
            return
        with suppress(OSError, TimeoutError):  # it could not be started at all
            process = self._starting.result(timeout=_START_S)
            process.kill()
            process.wait()
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # a request that it will not read any more
                process.stdin.close()
        self._starting = None

    def _running(self) -> "subprocess.Popen[str]":
        if self._starting is not None and self._ended(self._starting):
            self.stop()  # it died with nothing to do: no fault of what is asked now
        if self._starting is None:
            self._errors.seek(0)
            self._errors.truncate()
            self._replies = queue.Queue()
            self._starting = Future()
            what = (self._starting, self._errors.fileno(), self._pages, self._replies)
            # Not in the main thread: there an interruption could come between the start of a
            # process and its name.
            threading.Thread(target=_start_and_read, args=what, daemon=True).start()
        try:
            return self._starting.result()
        except OSError as error:  # out of memory or of processes, for now
            raise WorkerError(
                "crash", f"no process to measure in can be started: {error}"
            ) from error

    @staticmethod
    def _ended(starting: "Future[subprocess.Popen[str]]") -> bool:
        try:
            return starting.result().poll() is not None
        except OSError:
            return True

    def _crashed(self) -> WorkerError:
        assert self._starting is not None
        code = self._starting.result().wait()
        self.stop()
        self._errors.seek(0)
        words = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        ending = f"killed by {_signal_name(-code)}" if code < 0 else f"exit code {code}"
        if ending.endswith("SIGKILL"):
            ending += ", perhaps memory ran out"
        last = f": {words[-1][:300]}" if words else ""
        return WorkerError("crash", f"the measuring process died ({ending}){last}")

    def close(self) -> None:
        """End the process, and ask nothing more."""
        self.stop()
        self._errors.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class FreshWorkers:
    """Workers of which a new process takes the place after every so many uses.

    What a model takes depends on the memory that its process happens to get, by a percent or two;
    over many processes that evens out.
    """

    def __init__(self, *, uses: int) -> None:
        self._uses = uses
        self._workers: dict[Pages, RemoteWorker] = {}
        self._used: Counter[Pages] = Counter()

    def worker(self, pages: Pages) -> RemoteWorker:
        """Return the worker for the next use."""
        if pages not in self._workers:
            self._workers[pages] = RemoteWorker(pages=pages)
        worker = self._workers[pages]
        if self._used[pages] % self._uses == 0:
            worker.stop()
        self._used[pages] += 1
        return worker

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers.values():
            worker.close()


def _start(stderr: int, pages: Pages) -> "subprocess.Popen[str]":
    # Its own session: an autogroup of its own, and Ctrl-C reaches only the one that asks.
    return subprocess.Popen(  # noqa: S603 - our own worker
        module_command("hwnas.profiling.worker"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=module_environment(page_environment(pages, others=os.environ.get(VARIABLE))),
        start_new_session=True,
    )


def _start_and_read(
    starting: "Future[subprocess.Popen[str]]",
    stderr: int,
    pages: Pages,
    replies: "queue.Queue[str | None]",
) -> None:
    """Start a process and read from it until it ends, which it does with this thread, too."""
    try:
        process = _start(stderr, pages)
    except OSError as error:
        starting.set_exception(error)
        return
    starting.set_result(process)
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            if line.startswith("{"):  # what an environment prints when Python starts is no reply
                replies.put(line)
    replies.put(None)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
