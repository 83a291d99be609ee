"""Profiling from the command line: `hwnas profile`, `pack` and `profiles`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import hwnas as library
from hwnas.cli import main as command_line
from hwnas.pipeline.rundir import create_run
from hwnas.profiling.checking import check_profile
from hwnas.profiling.locks import device_lock
from hwnas.profiling.machine import device
from hwnas.profiling.profiles import read_profile
from hwnas.profiling.records import arch_digest
from hwnas.testing.profiles import NANO, QUICK, samples_in

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("own_lock")]

LARGEST = library.space("nano").largest()


def test_each_combination_is_measured_once(run, run_json, tmp_path):
    asked = (*NANO, "-n", "3", "--precision", "fp32,int8_dynamic", "--batch", "1,2", *QUICK)
    result = run_json(*asked)
    assert (result["measured"], result["skipped"], result["failed"]) == (12, 0, 0)
    (path,) = (tmp_path / "profiles").iterdir()
    assert path.name == f"{device().name}.jsonl"
    assert result["profile"] == f"profiles/{path.name}"
    found = read_profile(path)
    assert len(found.measured()) == 12
    assert not [line for line in check_profile(found) if "samples" in line]
    assert LARGEST.digest in {arch_digest(record.arch) for record in found.measured()}
    combinations = {(g["settings"]["precision"], g["settings"]["batch"]): g["models"]
                    for g in result["groups"]}  # fmt: skip
    assert combinations == {(p, b): 3 for p in ("fp32", "int8_dynamic") for b in (1, 2)}
    assert run_json(*asked)["measured"] == 0
    child = run(*NANO, "-n", "3", "--batch", "1,4", *QUICK)
    assert "3 measured, 3 there already, 0 failed" in child.stdout
    done, total = child.stderr.splitlines()[-1].split()[0].split("/")
    assert done == total
    assert int(total) >= 3  # what others disturbed is measured once more


def test_another_profile_is_told_at_the_level_of_the_first(run, run_json, tmp_path):
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    run_json(*NANO, "-n", "3", "-o", str(first), *QUICK)
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    # A machine on which all took three times as long.
    for line in lines[1:]:
        for name in ("median_ms", "p90_ms", "p99_ms"):
            line["latency"][name] *= 3
        line["latency"]["scale"] /= 3
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = (*NANO, "-n", "4", "--seed", "1", "-o", str(second), "--beside", str(first), *QUICK)
    for _ in range(2):  # going on changes no level
        run_json(*asked)
        known, told = (
            {r.key: r.latency for r in read_profile(p).measured()} for p in (first, second)
        )
        companions = {latency.companion for latency in told.values()}
        assert len(companions) == 1 == len(companions & {key[0] for key in known})
        (level,) = (latency.median_ms for key, latency in known.items() if key[0] in companions)
        for latency in told.values():
            assert latency.reference_ms / (1 + latency.reference_drift) == pytest.approx(level)
        asked = tuple(part for part in asked if part not in ("--beside", str(first)))
    asked = (*NANO, "-n", "1", "--batch", "2", "-o", str(tmp_path / "third.jsonl"))
    told = run(*asked, "--beside", str(first), *QUICK)
    assert "none of the profiles to measure beside has nano on onnxruntime" in told.stderr
    assert "(fp32, batch 2, one thread)" in told.stderr
    lines[0]["device"]["fingerprint"] = "0" * 64
    first.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = run(*asked, "--beside", str(first), code=2)
    assert "measured on another device" in refused.stderr


def test_throughput_of_workers_on_one_thread_each(run_json):
    result = run_json(*NANO, "-n", "1", "--threads", "1,2", "--workers", "1,2", *QUICK)
    kinds = {(g["settings"]["threads"], g["settings"]["workers"]) for g in result["groups"]}
    assert kinds == {(1, 1), (2, 1), (1, 2)}


def test_a_torch_module_is_measured(run_json):
    result = run_json(*NANO, "-n", "1", "--backend", "torch", *QUICK)
    (group,) = result["groups"]
    assert group["backend"] == "torch"
    assert group["median_ms"] > 0


def start(arguments, folder):
    return subprocess.Popen(
        [sys.executable, "-m", "hwnas", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_records(path, count, process):
    while not path.exists() or path.read_bytes().count(b"\n") < count + 1:
        assert process.poll() is None
        time.sleep(0.01)


LONG = (*NANO, "-n", "12", "-o", "p.jsonl", *QUICK)


def test_kill_and_the_same_command_measures_what_is_missing(run_json, tmp_path):
    import psutil

    path = tmp_path / "p.jsonl"
    process = start(LONG, tmp_path)
    wait_for_records(path, 2, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    psutil.wait_procs(workers, timeout=30)  # killed with their parent
    assert not [worker for worker in workers if worker.is_running()]
    survived = path.read_bytes()
    survived = survived[: survived.rfind(b"\n") + 1]
    there = survived.count(b"\n") - 1
    assert 2 <= there < 12
    result = run_json(*LONG)
    assert (result["skipped"], result["measured"]) == (there, 12 - there)
    assert samples_in(path.read_bytes())[:there] == samples_in(survived)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_ends_with_130_and_leaves_nothing_running(run_json, tmp_path, number):
    import psutil

    process = start(LONG, tmp_path)
    wait_for_records(tmp_path / "p.jsonl", 1, process)
    workers = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1].startswith("error: interrupted; the same command goes on")
    assert not [worker for worker in workers if worker.is_running()]
    assert run_json(*LONG)["skipped"] >= 1


def test_a_busy_machine_is_refused_with_the_numbers(tmp_path, busy_machine, capsys):
    target = str(tmp_path / "p.jsonl")
    assert command_line.main([*NANO, "-n", "1", "-o", target]) == 5
    out, err = capsys.readouterr()
    assert out == ""
    assert "93% busy" in err
    assert "--force" in err
    assert command_line.main([*NANO, "-n", "1", "-o", target, *QUICK]) == 0
    (record,) = read_profile(tmp_path / "p.jsonl").measured()
    assert record.grade in ("C", "D")


def test_a_second_profiler_is_kept_off(run, tmp_path):
    with device_lock(folder=tmp_path / "locks"):
        child = run(*NANO, "-n", "1", "-o", "p.jsonl", *QUICK, code=5)
    assert f"process {os.getpid()}" in child.stderr


def test_too_many_failures_fail_at_the_end_and_can_be_tried_again(run, run_json, tmp_path):
    asked = (*NANO, "-n", "2", "-o", "p.jsonl", *QUICK)
    child = run(*asked, "--timeout", "0.002", "--max-seconds", "0.0005", code=1)
    assert "2 of 2 measurements failed" in child.stderr
    assert child.stderr.count("failed (timeout)") == 2
    assert len(read_profile(tmp_path / "p.jsonl").failed()) == 2
    assert "no result after" in run("profiles", "show", "p.jsonl").stdout
    again = run(*asked, "--json", code=1)
    assert json.loads(again.stdout)["failed"] == 2
    assert "--retry-failures" in again.stderr
    assert run_json(*asked, "--retry-failures")["measured"] == 2


def test_a_pack_is_measured_like_its_space(run, run_json, measured, tmp_path):
    asked = ("--space", "nano", "-n", "3", "-o", "nano.pack", "--precision", "fp32,int8_dynamic")
    packed = run_json("pack", *asked)
    assert (packed["architectures"], packed["models"]) == (3, 6)
    assert packed["size_bytes"] == (tmp_path / "nano.pack").stat().st_size
    result = run_json("profile", "nano.pack", "-o", "q.jsonl", *QUICK)
    assert result["measured"] == 6  # all that it holds, without being told
    both = run_json("profiles", "diff", "p.jsonl", "q.jsonl")
    assert (both["both"], both["only_first"], both["only_second"]) == (3, 0, 3)
    child = run("profile", "nano.pack", "--precision", "int8_static", code=2)
    assert "it has fp32, int8_dynamic, bf16" in child.stderr
    child = run("pack", "--space", "nano", "-o", "x.pack", "--precision", "int4", code=2)
    assert "unknown precision 'int4'" in child.stderr


def test_measuring_a_pack_loads_nothing_that_a_device_lacks(run, tmp_path):
    run("pack", "--space", "nano", "-n", "1", "-o", "nano.pack")
    code = (
        "import sys\nfrom hwnas.cli.main import main\n"
        f"assert main(['profile', 'nano.pack', *{QUICK}]) == 0\n"
        "heavy = {'torch', 'onnx', 'sklearn', 'scipy', 'timm', 'pymoo'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    child = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr


def test_architectures_of_a_file(run, run_json, tmp_path):
    chosen = run("space", "sample", "nano", "-n", "2", "--macs", "1M..2M", "--json").stdout
    (tmp_path / "archs.json").write_text(chosen)
    run_json("profile", "--archs", "archs.json", "-o", "p.jsonl", *QUICK)
    found = {arch_digest(record.arch) for record in read_profile(tmp_path / "p.jsonl").measured()}
    assert found == {entry["digest"] for entry in json.loads(chosen)}


def test_the_profile_of_a_run_is_of_its_space_and_options(run, run_json, tmp_path):
    space = library.space("nano", classes=7, channels=1)
    create_run(tmp_path / "r", of=space, origin={})
    result = run_json("profile", "--run", "r", "-n", "1", "--device", "My Board", *QUICK)
    assert result["profile"] == "r/profiles/my-board.jsonl"
    found = read_profile(tmp_path / "r" / "profiles" / "my-board.jsonl")
    assert found.header.device.name == "My Board"
    (record,) = found.measured()
    assert record.arch["options"] == {"classes": 7, "channels": 1}
    more = ("--classes", "7", "--channels", "1", "-n", "1", "-o", result["profile"], *QUICK)
    assert run_json(*NANO, *more)["measured"] == 0
    assert run_json(*NANO, "-n", "1", "-o", result["profile"], *QUICK)["measured"] == 1


def test_explaining_adds_up(run, run_json, measured, tmp_path):
    found = run_json(*NANO, "--explain", "largest")
    assert found["digest"] == LARGEST.digest
    assert sum(row["ms"] for row in found["rows"]) == pytest.approx(found["total_ms"])
    assert sum(row["share"] for row in found["rows"]) == pytest.approx(1)
    slots = {placed.slot for placed in library.space("nano").network(LARGEST).blocks}
    assert {row["block"] for row in found["rows"]} - {"(runtime)"} == slots
    (tmp_path / "a.json").write_text(json.dumps(LARGEST.to_json()))
    for name in ("a.json", LARGEST.digest[:8]):
        assert run_json("profile", "--explain", name, "-o", "p.jsonl")["digest"] == LARGEST.digest
    assert "share" in run(*NANO, "--explain", "smallest").stdout
    child = run("profile", "--explain", "0123456789", "-o", "p.jsonl", code=2)
    assert "p.jsonl" in child.stderr


def test_explaining_on_a_busy_machine_says_so(busy_machine, capsys):
    assert command_line.main([*NANO, "--explain", "smallest"]) == 0
    assert "caution: the cores are 93% busy" in capsys.readouterr().err


def test_explaining_from_a_pack(run, run_json):
    run("pack", "--space", "nano", "-n", "3", "-o", "nano.pack")
    for end in ("smallest", "largest"):
        digest = getattr(library.space("nano"), end)().digest
        assert run_json("profile", "nano.pack", "--explain", end)["digest"] == digest


def test_profiles_are_listed_and_shown(run, run_json, measured):
    (entry,) = run_json("profiles", "list", ".")
    assert (entry["spaces"], entry["records"]) == (["nano"], 3)
    assert LARGEST.digest[:12] in run("profiles", "show", "p.jsonl", "--all").stdout
    shown = run_json("profiles", "show", "p.jsonl", "--all")
    assert shown["device"]["name"] == device().name
    assert {record["digest"] for record in shown["records"]} >= {LARGEST.digest}
    measured.with_name("broken.jsonl").write_text("{}\n")
    listed = run("profiles", "list", ".").stdout
    assert "unreadable" in listed
    assert "broken.jsonl: " in listed  # and why
    assert run("profiles", "list", "nowhere", code=2).stderr.startswith("error: nowhere")


def test_names_that_the_terminal_has_no_letters_for_are_shown(measured):
    lines = measured.read_text().splitlines()
    header = json.loads(lines[0])
    header["note"] = "Gerät 日"
    measured.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    child = subprocess.run(
        [sys.executable, "-m", "hwnas", "profiles", "show", str(measured)],
        capture_output=True, encoding="iso8859-1", check=False,
        env={**os.environ, "PYTHONIOENCODING": "iso8859-1"},
    )  # fmt: skip
    assert (child.returncode, child.stderr) == (0, "")
    assert "Gerät \\u65e5" in child.stdout


def test_huge_pages_are_told_apart(run, measured):
    edit_settings = json.loads(measured.read_text().splitlines()[1])
    edit_settings["settings"]["pages"] = "huge"
    with measured.open("a") as file:
        file.write(json.dumps(edit_settings) + "\n")
    for shown in (("show", "p.jsonl", "--all"), ("diff", "p.jsonl", "p.jsonl")):
        assert "fp32, huge pages" in run("profiles", *shown).stdout


def edit(path, target, change):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines[1:]:
        change(line["latency"])
    target.write_text("".join(json.dumps(line) + "\n" for line in lines))


def twice(latency):
    latency["samples_ms"] = [2 * ms for ms in latency["samples_ms"]]
    for name in ("median_ms", "p90_ms", "p99_ms"):
        latency[name] *= 2


def slow_median(latency):
    latency["median_ms"] = max(latency["samples_ms"]) / latency["scale"]
    latency["p99_ms"] = latency["median_ms"] * 2


def test_profiles_are_compared_merged_and_checked(run, run_json, measured, tmp_path):
    edit(measured, tmp_path / "slow.jsonl", twice)
    (group,) = run_json("profiles", "diff", "p.jsonl", "slow.jsonl")["groups"]
    assert group["median_ratio"] == pytest.approx(2)
    assert group["spearman"] == pytest.approx(1)
    assert "2.000" in run("profiles", "diff", "p.jsonl", "slow.jsonl").stdout
    run(*NANO, "-n", "2", "--seed", "1", "--batch", "2", "-o", "q.jsonl", *QUICK)
    merged = run_json("profiles", "merge", "p.jsonl", "q.jsonl", "-o", "m.jsonl")
    assert merged["records"] == 5
    for part in ("p.jsonl", "q.jsonl"):
        assert run_json("profiles", "diff", part, "m.jsonl")["only_first"] == 0
    edit(measured, tmp_path / "wrong.jsonl", slow_median)
    child = run("profiles", "check", "p.jsonl", "wrong.jsonl", code=4)
    assert "its samples give" in child.stdout
    assert "wrong.jsonl" in child.stderr
    (tmp_path / "damaged.jsonl").write_text(measured.read_text().replace('"wall"', '"sundial"')
                                            .replace('"thread_cpu"', '"sundial"'))  # fmt: skip
    child = run("profiles", "check", "damaged.jsonl", "p.jsonl", code=4)
    first, second = child.stdout.splitlines()
    assert first.startswith("damaged.jsonl: line 2: latency.clock: ")
    assert second.startswith("p.jsonl: ")
    assert "nowhere" in run("profiles", "check", "p.jsonl", "nowhere.jsonl", code=2).stderr


def test_merging_overwrites_nothing_that_would_be_lost(run, measured, tmp_path):
    (tmp_path / "notes.txt").write_text("mine\n")
    (tmp_path / "folder").mkdir()
    lines = measured.read_text().splitlines(keepends=True)
    (tmp_path / "part.jsonl").write_text("".join(lines[:2]))
    for out, told in (("notes.txt", "no profile"), ("folder", "folder"), ("p.jsonl", "be lost")):
        assert told in run("profiles", "merge", "part.jsonl", "-o", out, code=2).stderr
    assert (tmp_path / "notes.txt").read_text() == "mine\n"
    assert measured.read_text() == "".join(lines)
    for _ in range(2):
        run("profiles", "merge", "part.jsonl", "p.jsonl", "-o", "all.jsonl")


def test_devices_are_compared_but_not_merged(run, run_json, measured, tmp_path):
    lines = measured.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    header["device"].update(fingerprint="0" * 16, name="other-board")
    (tmp_path / "other.jsonl").write_text(json.dumps(header) + "\n" + "".join(lines[1:]))
    found = run_json("profiles", "diff", "p.jsonl", "other.jsonl")
    assert (found["same_device"], found["both"]) == (False, 3)
    child = run("profiles", "merge", "p.jsonl", "other.jsonl", "-o", "m.jsonl", code=1)
    assert "different devices" in child.stderr
    assert not (tmp_path / "m.jsonl").exists()
