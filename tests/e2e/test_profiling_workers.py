"""The processes in which models are measured."""

import sys
import time

import psutil
import pytest

from hwnas.profiling.backends import BuildCall
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.profiles import (
    read_profile,
)
from hwnas.profiling.remote import RemoteWorker
from hwnas.testing.onnx_models import TOY_ARCHS as ARCHS
from hwnas.testing.onnx_models import provide_toy as provide
from hwnas.testing.onnx_models import toy_arch as arch
from hwnas.testing.onnx_models import write_conv_stack

pytestmark = pytest.mark.slow


def with_changes(options, **changes):
    import dataclasses

    return dataclasses.replace(options, **changes)


def test_a_worker_that_died_idle_costs_nothing(tmp_path, options):
    path = write_conv_stack(tmp_path / "m.onnx", width=8)
    request = {
        "op": "memory", "backend": "onnxruntime", "settings": {}, "model": {"path": str(path)}
    }  # fmt: skip
    with RemoteWorker() as worker:
        before = worker.ask(request, timeout_s=120)
        (process,) = [
            child for child in psutil.Process().children() if "worker" in " ".join(child.cmdline())
        ]
        process.kill()
        process.wait(timeout=30) if process.is_running() else None
        assert set(worker.ask(request, timeout_s=120)) == set(before)


def test_what_was_begun_is_no_answer_to_what_is_asked(tmp_path):
    path = write_conv_stack(tmp_path / "m.onnx", width=8)
    request = {
        "op": "memory", "backend": "onnxruntime", "settings": {}, "model": {"path": str(path)}
    }  # fmt: skip
    nowhere = {"model": {"path": str(tmp_path / "nowhere.onnx")}, "network": "", "latency_ms": 1.0}
    with RemoteWorker() as worker:
        worker.begin({"op": "load", "backend": "onnxruntime"})
        worker.begin({**request, "op": "companion", "companion": nowhere})
        assert set(worker.ask(request, timeout_s=120)) == {"peak_mb", "before_mb"}
        worker.begin({"op": "nothing of the kind"})  # ends the process
        assert set(worker.ask(request, timeout_s=120)) == {"peak_mb", "before_mb"}
        worker.begin({"op": "load", "backend": "onnxruntime"})
        worker.stop()
        assert set(worker.ask(request, timeout_s=120)) == {"peak_mb", "before_mb"}


def workers_of_ours():
    """Return the measuring processes of this one."""
    children = psutil.Process().children()
    while [child for child in children if child.is_running() and not command_of(child)]:
        time.sleep(0.01)  # one that has just been started has no command for a moment
    return [child for child in children if "hwnas.profiling.worker" in command_of(child)]


def command_of(process):
    try:
        return "ended" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return "ended"


def test_each_model_has_a_process_for_its_memory_that_starts_while_it_is_built(tmp_path, options):
    path, there = tmp_path / "p.jsonl", []

    def watching(arch, settings):
        there.append({(child.pid, child.create_time()) for child in workers_of_ours()})
        return provide(arch, settings)

    options = with_changes(options, memory=True)
    jobs = grid([arch(192), arch(4)])
    profile(jobs, provide=watching, output=path, options=options)
    assert there[0]
    assert there[1] - there[0]
    assert not workers_of_ours()
    large, small = (record.memory for record in read_profile(path).records.values())
    assert small.peak_mb < large.peak_mb


def test_the_memory_of_one_runtime_has_no_other_in_it(tmp_path, options):
    path = tmp_path / "p.jsonl"
    call = BuildCall(target="hwnas.testing.modules:small_convnet", argument={"width": 8})
    jobs = grid(ARCHS[:2], backends=["onnxruntime", "torch"])
    profile(
        jobs, provide=provide, provide_module=lambda arch, settings: call, output=path,
        options=with_changes(options, memory=True),
    )  # fmt: skip
    before = {"onnxruntime": [], "torch": []}
    for record in read_profile(path).measured():
        before[record.backend].append(record.memory.before_mb)
    assert len(before["torch"]) == len(before["onnxruntime"]) == 2
    assert max(before["onnxruntime"]) < min(before["torch"])


def test_a_date_that_jumps_keeps_no_worker_waiting(tmp_path, options, monkeypatch):
    path, real = tmp_path / "p.jsonl", time.time
    monkeypatch.setattr(time, "time", lambda: real() + 36000)  # the workers have another date
    options = with_changes(options, throughput_s=0.3)
    profile(grid(ARCHS[:1], workers=(2,)), provide=provide, output=path, options=options)
    (record,) = read_profile(path).records.values()
    assert record.failure is None


def test_files_beside_whoever_measures_stand_in_for_nothing(tmp_path, options, monkeypatch):
    for name in ("random", "queue", "psutil"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not the one that was meant')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [part for part in sys.path if part])
    profile(grid(ARCHS[:1]), provide=provide, output=tmp_path / "p.jsonl", options=options)
    assert not read_profile(tmp_path / "p.jsonl").failed()


def test_what_python_prints_when_it_starts_is_no_reply(tmp_path, options, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("print('welcome to this machine')\n")
    monkeypatch.syspath_prepend(tmp_path)
    profile(grid(ARCHS[:1]), provide=provide, output=tmp_path / "p.jsonl", options=options)
    assert not read_profile(tmp_path / "p.jsonl").failed()
