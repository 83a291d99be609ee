"""Tasks on a Ray cluster of two machines (both are this one): nothing is lost when workers die."""

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import psutil
import pytest

from hwnas.errors import HwnasError, UnreliableError, UsageError
from hwnas.io import read_journal
from hwnas.pipeline import fleet, measuring
from hwnas.pipeline.accuracies import Work, measure_accuracies
from hwnas.pipeline.ray_executor import Anywhere, OnDevices, Ray, connected
from hwnas.pipeline.rundir import open_run
from hwnas.profiling.jobs import Options, grid
from hwnas.profiling.locks import FOLDER_VARIABLE
from hwnas.profiling.packs import Model, write_pack
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import Settings
from hwnas.spaces import space
from hwnas.testing import workers
from hwnas.testing.runs import small_run

pytestmark = pytest.mark.slow

Hwnas = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the address of a cluster; its two machines keep locks of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        import ray
        from ray.cluster_utils import Cluster

        folders = [str(tmp_path_factory.mktemp("locks")) for _ in range(2)]
        common = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 2, "resources": {"board-a": 1, "board-a2": 1},
                "env_vars": {FOLDER_VARIABLE: folders[0]}, **common,
            },
        )  # fmt: skip
        cluster.add_node(
            num_cpus=0, resources={"board-b": 1}, env_vars={FOLDER_VARIABLE: folders[1]}, **common
        )
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster.address
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("ray") / "run")


@pytest.fixture
def run_folder(trained: Path, tmp_path: Path) -> Path:
    """Return a run of which no accuracies are known."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


def submitted(executor, tasks):
    for task in tasks:
        executor.submit(task)
    return executor


def kill_a_worker() -> None:
    """Kill one worker of the cluster that this process began."""
    for process in psutil.Process().children(recursive=True):
        if process.cmdline()[:1] and process.cmdline()[0].startswith("ray::Worker"):
            os.kill(process.pid, signal.SIGKILL)
            return
    raise AssertionError("no worker is there")


def test_every_task_is_done_once_and_shared(address: str, tmp_path: Path) -> None:
    executor = Ray(
        partial(workers.meeting, folder=tmp_path), address=address, places=Anywhere(most=2)
    )
    results = list(submitted(executor, range(12)))
    assert sorted(value for value, _ in results) == [n * n for n in range(12)]
    processes = {process for _, process in results}
    assert len(processes) == 2
    assert os.getpid() not in processes


def test_the_task_of_a_killed_worker_is_done_again(address: str, tmp_path: Path) -> None:
    told: list[str] = []
    executor = Ray(
        partial(workers.dying_once, marker=tmp_path / "marker"),
        address=address, places=Anywhere(most=2), note=told.append,
    )  # fmt: skip
    results = list(submitted(executor, range(8)))
    assert sorted(value for value, _ in results) == [n * n for n in range(8)]
    assert told == ["a worker has died; its task is done again"]


def test_what_ray_prints_is_no_result(address: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connected(address):
        theirs = threading.Thread(target=print, args=("of Ray",), name="ray_listen_errors")
        theirs.start()
        theirs.join()
        print("of ours")
    assert capsys.readouterr().out == "of ours\n"


def test_what_always_kills_its_worker_is_given_up(address: str) -> None:
    with pytest.raises(HwnasError, match="die again and again"):
        list(submitted(Ray(workers.dying, address=address, places=Anywhere(most=1)), [1]))


@pytest.mark.parametrize("start", [workers.squaring, workers.not_starting])
def test_no_tasks_need_no_cluster(start: Callable[..., object]) -> None:
    assert list(Ray(start, address="nowhere:1", places=Anywhere())) == []


def test_refusals_and_bugs_come_back(address: str) -> None:
    with pytest.raises(UsageError, match="3 is odd") as caught:
        list(submitted(Ray(workers.refusing, address=address, places=Anywhere(most=1)), [2, 3]))
    assert caught.value.hint == "give even numbers"
    with pytest.raises(ZeroDivisionError):
        list(submitted(Ray(workers.faulty, address=address, places=Anywhere(most=1)), [1]))
    with pytest.raises(UsageError, match="no machine .* 'board-c'; it has board-"):
        list(
            submitted(
                Ray(workers.squaring, address=address, places=OnDevices(names=["board-c"])), [1]
            )
        )


def test_the_command_line_uses_a_cluster(hwnas: Hwnas, address: str, run_folder: Path) -> None:
    fit = ("fit", "--run", str(run_folder), "-n", "10", "--quick", "--json", "--quiet")
    child = hwnas(*fit, "--ray", address)
    assert (child.returncode, child.stderr) == (0, "")
    (fitted,) = json.loads(child.stdout)["predictors"]
    assert fitted["rows"] == 10
    child = hwnas(*fit[:4], "12", *fit[5:], "--ray", "nowhere:1x")
    assert (child.returncode, child.stdout) == (1, "")
    assert child.stderr.startswith("error: no Ray cluster at 'nowhere:1x'")


def test_accuracies_are_those_measured_here(
    address: str, run_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(run_folder)
    killed: list[bool] = []

    def kill_once(_: object) -> None:
        if not killed:
            kill_a_worker()
            killed.append(True)

    monkeypatch.chdir(tmp_path)  # nothing may depend on where this process is
    found = measure_accuracies(run, 8, work=Work(ray=address, workers=2, watch=kill_once))
    assert killed
    digests = [line["digest"] for line in read_journal(run_folder / "accuracies.jsonl")[1:]]
    assert len(digests) == len(set(digests)) == 8
    (run_folder / "accuracies.jsonl").unlink()
    here = measure_accuracies(run, 8, work=Work(workers=1))
    assert {e.arch: e.accuracy for e in found} == {e.arch: e.accuracy for e in here}


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    source = measuring.from_space(space("nano"), 3)
    path = tmp_path / "nano.pack"
    models = [
        Model(arch=arch, onnx=source.provide(arch, Settings(precision="fp32")))
        for arch in source.archs
    ]
    write_pack(path, models)
    return path


def test_a_fleet_measures_all_on_each_device(
    hwnas: Hwnas, address: str, options: Options, pack: Path, tmp_path: Path
) -> None:
    jobs = grid(measuring.from_pack(pack).archs)
    killed: list[str] = []

    def kill_once(progress: fleet.FleetProgress) -> None:
        if not killed:
            kill_a_worker()
            killed.append(progress.device)

    def session(**more):
        return fleet.profile_fleet(
            pack, jobs, devices=["board-a", "board-b"], folder=tmp_path / "profiles",
            address=address, options=replace(options, lock_folder=None), **more,
        )  # fmt: skip

    outcomes = session(progress=kill_once)
    fleet.conclude(outcomes, len(jobs))
    assert killed
    assert [(o.device, o.measured, o.skipped, o.failed) for o in outcomes] == [
        ("board-a", 3, 0, 0), ("board-b", 3, 0, 0),
    ]  # fmt: skip
    for outcome in outcomes:
        profile = read_profile(outcome.profile)
        assert profile.header.device.name == outcome.device
        assert set(profile.records) == {job.key for job in jobs}
        assert len(profile.measured()) == 3
    # The command line finds all of it there.
    again = hwnas(
        "fleet", str(pack), "--devices", "board-a,board-b", "--ray", address, "--out",
        str(tmp_path / "profiles"), "--json",
    )  # fmt: skip
    assert again.returncode == 0, again.stderr
    assert [(o["measured"], o["skipped"]) for o in json.loads(again.stdout)] == [(0, 3), (0, 3)]
    wrong = hwnas("fleet", str(pack), "--devices", "board-c", "--ray", address, "--json")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "'board-c'" in wrong.stderr


def test_two_names_of_one_device_do_not_measure_at_once(
    address: str, options: Options, pack: Path, tmp_path: Path
) -> None:
    jobs = grid(measuring.from_pack(pack).archs)
    outcomes = fleet.profile_fleet(
        pack, jobs, devices=["board-a", "board-a2"], folder=tmp_path, address=address,
        options=replace(options, lock_folder=None),
    )  # fmt: skip
    assert sorted(outcome.measured for outcome in outcomes) == [0, 3]
    with pytest.raises(UnreliableError, match="another profiler is measuring"):
        fleet.conclude(outcomes, len(jobs))
