"""Peak memory of models, each in a process of its own that has run nothing else.

A process takes about as long to start as a small model to measure. So the next one is started while
the next model is built, and waits.
"""

from contextlib import ExitStack
from typing import Any

from hwnas.profiling.records import Memory, Pages
from hwnas.profiling.remote import RemoteWorker

Kind = tuple[str, Pages]


class Footprints:
    """Measures peak memory; of its processes the next one is kept ready."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._kind: Kind | None = None
        self._process = ExitStack()
        self._worker: RemoteWorker | None = None

    def start(self, backend: str, pages: Pages) -> None:
        """Begin to start a process that runs one model on a backend, unless one is there."""
        if self._kind == (backend, pages):
            return
        self.close()
        self._kind = (backend, pages)
        self._worker = self._process.enter_context(RemoteWorker(pages=pages))
        self._worker.begin({"op": "load", "backend": backend})

    def settle(self) -> None:
        """Wait until the process is at rest, so that it does not disturb what is measured now."""
        if self._worker is not None:
            self._worker.settle(timeout_s=self._timeout_s)

    def measure(self, request: dict[str, Any]) -> Memory:
        """Return the peak memory of the model of a request. Raises WorkerError."""
        self.start(request["backend"], request["settings"]["pages"])
        assert self._worker is not None
        try:
            reply = self._worker.ask({**request, "op": "memory"}, timeout_s=self._timeout_s)
        finally:
            self.close()
        return Memory(**reply)

    def close(self) -> None:
        """End the process."""
        self._process.close()
        self._kind = self._worker = None
