"""`hwnas profile --few` and `--active`: which architectures are measured, and resuming."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import hwnas as library
from hwnas.cli import main as command_line
from hwnas.pipeline.accuracies import spread
from hwnas.pipeline.choose import few
from hwnas.pipeline.fit import sources_from
from hwnas.profiling.profiles import read_profile, write_profile
from hwnas.profiling.records import arch_digest
from hwnas.profiling.sampling import middle_first
from hwnas.testing.profiles import made_up_profile, samples_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_lock")]

QUICK = ("--force", "--no-memory", "--max-seconds", "0.1")
NANO = library.space("nano")


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(capsys):
    def checked(*arguments, code=0):
        assert command_line.main(list(map(str, arguments))) == code, capsys.readouterr().err
        return capsys.readouterr()

    return checked


def old_device(path, name, *, per_layer):
    archs = spread(NANO, 24, seed=1)
    costs = NANO.cost(archs)
    values = costs.macs / 1e6 + np.sqrt(costs.activations) / 50 + per_layer * costs.layers
    write_profile(path, made_up_profile(name, list(zip(archs, values.tolist(), strict=True))))
    return path


@pytest.fixture
def old(tmp_path):
    """Return the profiles of two old devices."""
    return [
        old_device(tmp_path / f"{name}.jsonl", name, per_layer=share)
        for name, share in (("a", 0.2), ("b", 1.0))
    ]


def measured(path):
    return [arch_digest(record.arch) for record in read_profile(path).measured()]


def in_order(archs):
    return [arch.digest for arch in middle_first(NANO, archs)]


def cut(path, architectures):
    """Leave what a kill leaves that comes when so many have been measured.

    What was disturbed is measured once more, so that an architecture can have two lines.
    """
    header, *lines = path.read_bytes().splitlines(keepends=True)
    kept, seen = [header], set()
    for line in lines:
        seen.add(json.dumps(json.loads(line)["arch"]))
        if len(seen) > architectures:
            break
        kept.append(line)
    path.write_bytes(b"".join(kept))


@pytest.mark.usefixtures("modelled_latencies")
def test_few_are_the_same_however_often_it_is_interrupted(run, old, tmp_path):
    ask = ("profile", "--few", 5, "--from", f"{old[0]},{old[1]}", "-o", "p.jsonl", *QUICK, "--json")
    assert json.loads(run(*ask).out)["measured"] == 5
    path = tmp_path / "p.jsonl"
    expected = in_order(few(NANO, sources_from(old, NANO), 5))
    assert measured(path) == expected
    cut(path, 2)
    again = json.loads(run(*ask).out)
    assert (again["skipped"], again["measured"]) == (2, 3)
    assert measured(path) == expected
    other = run(*ask, "--seed", 1).out
    assert json.loads(other)["skipped"] < 5


@pytest.mark.usefixtures("modelled_latencies")
def test_few_of_a_pack_and_a_pack_of_few(run, old, tmp_path):
    run("pack", "--space", "nano", "-n", 12, "-o", "nano.pack")
    choose = ("--few", 4, "--from", old[0])
    run("profile", "nano.pack", *choose, "-o", "p.jsonl", *QUICK)
    whole = {arch_digest(arch) for arch in packed(tmp_path / "nano.pack")}
    assert len(measured(tmp_path / "p.jsonl")) == 4
    assert set(measured(tmp_path / "p.jsonl")) < whole
    run("pack", *choose, "-o", "few.pack")
    chosen = few(NANO, sources_from(old[:1], NANO), 4)
    found = [arch_digest(arch) for arch in packed(tmp_path / "few.pack")]
    assert found == in_order(chosen)


def packed(path):
    from hwnas.profiling.packs import read_pack

    return read_pack(path).archs()


ACTIVE = ("profile", "--space", "nano", "--active", "-o", "p.jsonl", *QUICK)


@pytest.mark.usefixtures("modelled_latencies")
def test_active_stops_at_the_error_and_goes_on_for_a_smaller_one(run, tmp_path):
    path = tmp_path / "p.jsonl"
    found = json.loads(run(*ACTIVE, "--wanted-error", "80%", "--threads", "1,2", "--json").out)
    assert found["reached"]
    assert (found["rows"], found["failed"], found["settings"]["threads"]) == (20, 0, 1)
    assert found["rounds"][-1]["confirmed"]
    assert measured(path) == in_order(spread(NANO, 20, seed=0))
    child = run(*ACTIVE, "--wanted-error", "0.01%", "--most", 24, code=4)
    assert "24 architectures measured with onnxruntime, fp32, threads 1, batch 1" in child.out
    assert "24 architectures: error" in child.out
    assert "10 more would buy about" in child.out
    assert "after 24 architectures measured, not the 0.01 % asked for" in child.err
    assert "--most 124" in child.err
    whole = measured(path)
    assert len(whole) == len(set(whole)) == 24
    cut(path, 21)
    run(*ACTIVE, "--wanted-error", "0.01%", "--most", 24, code=4)
    assert measured(path) == whole
    run(*ACTIVE, "--wanted-error", "80%")
    assert measured(path) == whole


@pytest.mark.usefixtures("modelled_latencies")
def test_active_says_which_setting_it_measures(run):
    child = run(*ACTIVE, "--wanted-error", "80%", "--batch", "2,1", "--most", 12)
    assert "one setting at a time: onnxruntime, fp32, threads 1, batch 2" in child.err


def test_active_after_kill(run, tmp_path):
    path = tmp_path / "p.jsonl"
    asked = [*ACTIVE, "--wanted-error", "80%"]
    process = subprocess.Popen([sys.executable, "-m", "hwnas", *asked], stderr=subprocess.DEVNULL)
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    workers = psutil.Process(process.pid).children(recursive=True)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    psutil.wait_procs(workers, timeout=30)
    before = path.read_bytes()
    before = before[: before.rfind(b"\n") + 1]
    assert before.count(b"\n") < 21
    child = run(*asked)
    there = samples_in(before)
    assert samples_in(path.read_bytes())[: len(there)] == there
    assert measured(path) == in_order(spread(NANO, 20, seed=0))
    assert "20 architectures measured" in child.out


def test_active_within_a_pack_records_failures_and_goes_on(run, tmp_path):
    run("pack", "--space", "nano", "-n", 12, "-o", "nano.pack")
    asked = ("profile", "nano.pack", "--active", "-o", "p.jsonl", "--most", 12, *QUICK)
    child = run(*asked, "--timeout", "0.002", "--max-seconds", "0.0005", code=1)
    assert "only 0 of 12 architectures could be measured" in child.err
    assert len(read_profile(tmp_path / "p.jsonl").failed()) == 12
    run(*asked, "--retry-failures", "--wanted-error", "80%")
    assert set(measured(tmp_path / "p.jsonl")) == {
        arch_digest(arch) for arch in packed(tmp_path / "nano.pack")
    }
    child = run(*asked, "--most", 300, "--wanted-error", "0.001%", code=4)
    assert "not the 0.001 % asked for" in child.err
    assert "hint: nothing is left to measure" in child.err


def test_requests_that_make_no_sense(run, old, tmp_path):
    archs = library.space("nasvit").sample(2, np.random.default_rng(0))
    write_profile(tmp_path / "x.jsonl", made_up_profile("x", [(arch, 1.0) for arch in archs]))
    few_of = ("profile", "--few", 5)
    lines = [json.dumps(arch.to_json()) for arch in spread(NANO, 11, seed=1)]
    (tmp_path / "few.jsonl").write_text("\n".join(lines))
    for arguments, told in (
        (few_of, "--few needs profiles of other devices"),
        (("profile", "--space", "nano", "--from", old[0]), "--from goes with --few"),
        ((*few_of, "--from", "a.jsonl,"), "empty name"),
        ((*few_of, "--from", "none.jsonl"), "none.jsonl: no such file"),
        ((*few_of, "--from", old[0], "-n", 7), "both -n 7 and --few 5"),
        ((*few_of, "--from", old[0], "-o", old[0]), "is both an old profile and the one to write"),
        ((*few_of, "--from", old[0], "--space", "nasvit"),
         "a profile of space 'nano', expected space 'nasvit'"),
        ((*few_of, "--from", old[0], "--space", "nano", "--classes", 7),
         "expected space 'nano' with {\"classes\":7}"),
        ((*few_of, "--from", f"{old[0]},{tmp_path / 'x.jsonl'}"), "accepted: one space at a time"),
        ((*few_of, "--from", tmp_path / "x.jsonl"), "too little to transfer from"),
        (("profile", "--few", 10**6, "--from", old[0]), "architectures asked for, nano has"),
        ((*few_of, "--active", "--space", "nano"), "both --few and --active"),
        (("profile", "--active"), "nothing to measure is named"),
        (("profile", "--active", "--archs", "few.jsonl"), "11 architectures; accepted: from 12"),
        (("profile", "--space", "nano", "--most", 50), "--most goes with --active"),
        ((*ACTIVE, "--wanted-error", "3ms"), "no unit of a share"),
        ((*ACTIVE, "--wanted-error", "0%"), "'0%'; accepted: a share such as 3%"),
        ((*ACTIVE, "--workers", "2"), "2 workers measure throughput"),
        ((*ACTIVE, "--precision", "bf16"), "onnxruntime has no bf16"),
    ):  # fmt: skip
        child = run(*arguments, code=2)
        assert told in child.err
        assert child.out == ""
    child = run(*ACTIVE[: -len(QUICK) - 1], old[0], code=1)
    assert "is a profile of 'a', not of this device" in child.err
