"""Profiling real (small) models in real processes: resume, crashes, locks, packs."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from hwnas.errors import HwnasError, UnreliableError, UsageError
from hwnas.profiling.backends import BuildCall
from hwnas.profiling.checking import check_profile
from hwnas.profiling.driver import grid, profile
from hwnas.profiling.locks import device_lock
from hwnas.profiling.machine import device
from hwnas.profiling.profiles import (
    read_profile,
    write_profile,
)
from hwnas.testing.onnx_models import TOY_ARCHS as ARCHS
from hwnas.testing.onnx_models import provide_toy as provide
from hwnas.testing.onnx_models import toy_arch as arch
from hwnas.testing.profiles import samples_in

pytestmark = pytest.mark.slow


def with_changes(options, **changes):
    import dataclasses

    return dataclasses.replace(options, **changes)


def test_measuring_writes_a_sound_profile(tmp_path, options):
    seen = []
    path = tmp_path / "p.jsonl"
    options = with_changes(options, memory=True, note="a test")
    jobs = grid(ARCHS[:2], threads=(1, 2), batches=(1, 3))
    outcome = profile(jobs, provide=provide, output=path, options=options, progress=seen.append)
    found = read_profile(path)
    assert outcome.measured == len(found.measured()) == len(jobs) == 8
    assert found.header.note == "a test"
    assert found.header.device == device()
    assert {record.key for record in found.records.values()} == {job.key for job in jobs}
    assert not [line for line in check_profile(found) if "samples" in line]
    # What others disturbed is measured once more.
    assert [step.done for step in seen] == list(range(1, len(seen) + 1))
    assert 8 <= len(seen) <= 16
    assert seen[-1].eta_s == 0
    for record in found.records.values():
        assert record.grade in "ABCD"
        assert record.memory.peak_mb > record.memory.before_mb
        expected = record.settings.batch * 1e3 / record.latency.median_ms
        assert record.throughput_per_s == pytest.approx(expected)


def test_peak_memory_is_not_that_of_whoever_measures(tmp_path, options):
    path = tmp_path / "p.jsonl"
    options = with_changes(options, memory=True)
    ballast = bytearray(b"x" * (500 << 20))
    profile(grid(ARCHS[:1]), provide=provide, output=path, options=options)
    (record,) = read_profile(path).records.values()
    assert record.memory.peak_mb < len(ballast) / 2**20


def test_larger_models_take_longer(tmp_path, options):
    path = tmp_path / "p.jsonl"
    profile(grid([arch(4), arch(96)]), provide=provide, output=path, options=options)
    small, large = (record.latency.median_ms for record in read_profile(path).records.values())
    assert large > 2 * small


def test_what_is_recorded_is_not_measured_again(tmp_path, options):
    path, asked = tmp_path / "p.jsonl", []

    def counting(arch, settings):
        asked.append(arch["digest"])
        return provide(arch, settings)

    profile(grid(ARCHS[:2]), provide=counting, output=path, options=options)
    # What others disturbed is asked for once more, in its own session only.
    assert set(asked) == {one["digest"] for one in ARCHS[:2]}
    before = path.read_bytes()
    asked.clear()
    outcome = profile(grid(ARCHS[:3]), provide=counting, output=path, options=options)
    assert (outcome.measured, outcome.skipped) == (1, 2)
    first, last = ARCHS[0]["digest"], ARCHS[2]["digest"]
    assert set(asked) == {first, last}  # what is new, and the companion that it is measured beside
    there = samples_in(before)
    assert samples_in(path.read_bytes())[: len(there)] == there
    latencies = {one.arch["digest"]: one.latency for one in read_profile(path).measured()}
    assert latencies[first].companion is None
    assert latencies[last].companion == first
    assert latencies[last].reference_ms / (1 + latencies[last].reference_drift) == pytest.approx(
        latencies[first].median_ms
    )


def test_pages_are_a_setting_of_the_process_that_measures(tmp_path, options):
    from pathlib import Path

    from hwnas.profiling.pages import TUNABLE, huge_pages_problem

    told, path = [], tmp_path / "p.jsonl"

    def watch(_progress):
        workers = psutil.Process().children()
        told.extend(Path(f"/proc/{worker.pid}/environ").read_text() for worker in workers)

    jobs = grid(ARCHS[:1], pages=("default", "huge"))
    problem = huge_pages_problem()
    if problem is not None:
        with pytest.raises(HwnasError, match="no huge pages") as caught:
            profile(jobs, provide=provide, output=path, options=options)
        assert problem in caught.value.message
        return
    profile(jobs, provide=provide, output=path, options=options, progress=watch)
    assert {job.key for job in jobs} == set(read_profile(path).records)
    assert {TUNABLE in environment for environment in told} == {True, False}


def test_throughput_of_two_processes(tmp_path, options):
    path = tmp_path / "p.jsonl"
    options = with_changes(options, throughput_s=0.3)
    profile(grid(ARCHS[:1], workers=(2,)), provide=provide, output=path, options=options)
    (record,) = read_profile(path).records.values()
    assert record.settings.workers == 2
    assert record.throughput_per_s > 0
    assert record.latency.n <= 300


def test_a_torch_module_is_measured(tmp_path, options):
    path = tmp_path / "p.jsonl"
    call = BuildCall(target="hwnas.testing.modules:small_convnet", argument={"width": 8})
    jobs = grid(ARCHS[:1], backends=["torch"])
    profile(jobs, provide=lambda arch, settings: call, output=path, options=options)
    (record,) = read_profile(path).records.values()
    assert record.latency is not None
    assert record.latency.reference_ms > 0


@pytest.mark.parametrize(
    ("target", "kind", "words"),
    [
        ("os:abort_", "crash", "abort_"),
        ("hwnas.testing.faults:abort", "crash", "SIGABRT"),
        ("hwnas.testing.faults:hang", "timeout", "10 s"),
        ("hwnas.testing.faults:refuse", "error", "on purpose"),
    ],
)
def test_a_failing_model_is_recorded_and_the_others_measured(
    tmp_path, options, target, kind, words
):
    path = tmp_path / "p.jsonl"
    options = with_changes(options, timeout_s=10.0 if kind == "timeout" else 120.0)
    bad = grid([arch(99)], backends=["torch"])

    def sometimes(arch, settings):
        if arch["genes"]["width"] == 99:
            return BuildCall(target=target, argument={})
        return provide(arch, settings)

    outcome = profile(bad + grid(ARCHS), provide=sometimes, output=path, options=options)
    found = read_profile(path)
    (failed,) = found.failed()
    assert (outcome.failed, len(found.measured())) == (1, len(ARCHS))
    assert failed.failure.kind == kind
    assert words in failed.failure.reason


def test_a_model_that_cannot_be_built_is_recorded(tmp_path, options):
    path = tmp_path / "p.jsonl"

    def sometimes(arch, settings):
        if arch == ARCHS[0]:
            raise ValueError("no such\nblock")
        return provide(arch, settings)

    profile(grid(ARCHS), provide=sometimes, output=path, options=options)
    (failed,) = read_profile(path).failed()
    assert (failed.failure.kind, failed.failure.reason) == ("build", "no such block")


def test_too_many_failures_are_an_error_after_all_is_recorded(tmp_path, options):
    path = tmp_path / "p.jsonl"

    def garbage(arch, settings):
        return b"no model" if arch == ARCHS[0] else provide(arch, settings)

    with pytest.raises(HwnasError, match="1 of 3 measurements failed"):
        profile(grid(ARCHS[:3]), provide=garbage, output=path, options=options)
    found = read_profile(path)
    assert len(found.measured()) == 2
    assert found.failed()[0].failure.kind == "error"
    retry = with_changes(options, retry_failures=True)
    outcome = profile(grid(ARCHS[:3]), provide=provide, output=path, options=retry)
    assert (outcome.measured, outcome.failed) == (1, 0)


def test_a_precision_that_the_backend_lacks_is_refused_before_measuring(tmp_path, options):
    path = tmp_path / "p.jsonl"
    with pytest.raises(UsageError, match="bf16"):
        profile(grid(ARCHS, precisions=["bf16"]), provide=provide, output=path, options=options)
    assert not path.exists()


def test_a_second_profiler_is_kept_off(tmp_path, options):
    with (
        device_lock(folder=options.lock_folder),
        pytest.raises(UnreliableError, match=rf"another profiler .* {os.getpid()}"),
    ):
        profile(grid(ARCHS), provide=provide, output=tmp_path / "p.jsonl", options=options)


def test_a_busy_machine_is_refused_with_numbers_unless_forced(tmp_path, options, busy_machine):
    path, jobs = tmp_path / "p.jsonl", grid(ARCHS[:1])
    polite = with_changes(options, force=False)
    with pytest.raises(UnreliableError, match="93%") as raised:
        profile(jobs, provide=provide, output=path, options=polite)
    assert "--force" in raised.value.hint
    profile(jobs, provide=provide, output=path, options=options)
    (record,) = read_profile(path).records.values()
    assert record.grade in "CD"
    assert any("forced although the cores are 93% busy" in reason for reason in record.reasons)


SCRIPT = """
import sys
from pathlib import Path
from hwnas.profiling.driver import Options, grid, profile
from hwnas.profiling.measure import Plan
from hwnas.testing.onnx_models import TOY_ARCHS, provide_toy
profile(
    grid(TOY_ARCHS),
    provide=provide_toy,
    output=Path(sys.argv[1]),
    options=Options(force=True, memory=False,
                    plan=Plan(min_runs=9, max_runs=18, max_s=0.5, patience_s=0.5),
                    lock_folder=Path(sys.argv[2])),
)
"""


def children_of(process):
    import psutil

    return psutil.Process(process.pid).children(recursive=True)


def test_kill_and_resume_measures_only_what_is_missing(tmp_path, options):
    path = tmp_path / "p.jsonl"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(path), str(options.lock_folder)], env=environment
    )
    while not path.exists() or path.read_bytes().count(b"\n") < 3:
        assert process.poll() is None
        time.sleep(0.01)
    workers = children_of(process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    survived = path.read_bytes()
    survived = survived[: survived.rfind(b"\n") + 1]
    done = survived.count(b"\n") - 1
    assert 2 <= done < len(ARCHS)
    for worker in workers:
        worker.wait(timeout=30)  # killed with its parent, so it cannot disturb what follows
    outcome = profile(grid(ARCHS), provide=provide, output=path, options=options)
    assert (outcome.skipped, outcome.measured) == (done, len(ARCHS) - done)
    assert samples_in(path.read_bytes())[:done] == samples_in(survived)
    assert len(read_profile(path).measured()) == len(ARCHS)


def test_a_torn_line_costs_one_measurement(tmp_path, options):
    path = tmp_path / "p.jsonl"
    profile(grid(ARCHS[:2]), provide=provide, output=path, options=options)
    write_profile(path, read_profile(path))  # one line each, also for what was measured twice
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.warns(UserWarning, match="not written whole"):
        outcome = profile(grid(ARCHS[:2]), provide=provide, output=path, options=options)
    assert (outcome.skipped, outcome.measured) == (1, 1)
    assert len(read_profile(path).measured()) == 2


@pytest.mark.parametrize("size", [0, 10])
def test_a_torn_header_is_written_again(tmp_path, options, size):
    path = tmp_path / "p.jsonl"
    profile(grid(ARCHS[:1]), provide=provide, output=path, options=options)
    path.write_bytes(path.read_bytes()[:size])
    profile(grid(ARCHS[:1]), provide=provide, output=path, options=options)
    assert len(read_profile(path).measured()) == 1


def test_a_profile_that_cannot_be_read_or_written_is_explained(tmp_path, options):
    for place in (tmp_path, tmp_path / "file" / "p.jsonl"):
        (tmp_path / "file").touch()
        with pytest.raises(HwnasError, match=r"cannot be read|cannot write"):
            profile(grid(ARCHS[:1]), provide=provide, output=place, options=options)
