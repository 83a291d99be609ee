"""Processes that measure, where the system or a test stands in their way."""

import subprocess
from typing import Any

import pytest

from hwnas.profiling import remote, throughput
from hwnas.profiling.remote import RemoteWorker, WorkerError
from hwnas.profiling.throughput import measure_throughput


def test_a_process_that_could_not_be_started_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start, tries = remote._start, []

    def start_in_the_end(*what: Any) -> "subprocess.Popen[str]":
        tries.append(what)
        if len(tries) < 3:
            raise OSError(12, "Cannot allocate memory")
        return start(*what)

    monkeypatch.setattr(remote, "_start", start_in_the_end)
    load = {"op": "load", "backend": "onnxruntime"}
    with RemoteWorker() as worker:
        worker.begin(load)  # told by what is asked next
        with pytest.raises(WorkerError, match="can be started: .* Cannot allocate") as refused:
            worker.ask(load, timeout_s=60)
        assert refused.value.kind == "crash"
        assert worker.ask(load, timeout_s=60) == {}
    assert len(tries) == 3


class Recorded:
    """A worker that answers at once, and keeps what it was asked."""

    requests: list[dict[str, Any]] = []

    def __init__(self, **_: Any) -> None:
        self._op = ""

    def __enter__(self) -> "Recorded":
        return self

    def __exit__(self, *_: object) -> None: ...

    def send(self, request: dict[str, Any]) -> None:
        self.requests.append(request)
        self._op = request["op"]

    def receive(self, **_: Any) -> dict[str, Any]:
        if self._op == "prepare":
            return {}
        return {"elapsed_s": 1.0, "own_s": 1.0, "samples_ms": [5.0] * 200, "privilege": "none"}


def test_what_never_rests_has_no_real_time_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "RemoteWorker", Recorded)
    monkeypatch.setattr(Recorded, "requests", [])
    request = {
        "cores": [7, 3, 1], "privileges": ["fifo", "autogroup"],
        "settings": {"threads": 1, "pages": "default"},
    }  # fmt: skip
    found = measure_throughput(request, workers=2, seconds=1.0, timeout_s=9.0)
    assert found.per_s == 400
    assert {tuple(one["privileges"]) for one in Recorded.requests} == {("autogroup",)}
    assert [one["cores"] for one in Recorded.requests] == [[7], [3]] * 2
