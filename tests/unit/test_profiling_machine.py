import dataclasses
import os
from types import SimpleNamespace

import psutil
import pytest

from hwnas.profiling import machine
from hwnas.profiling.machine import (
    CpuTimes,
    Readings,
    available_cores,
    cgroup_quota,
    conditions_since,
    cpu_times,
    device,
    judge,
    shares_between,
    slug,
)
from hwnas.profiling.privilege import available_privilege, privileged, realtime_share


def cores(*busy):
    """Return shares or seconds by the numbers of the cores."""
    return dict(enumerate(busy))


QUIET = Readings(cores=4, load=0.1, busy_by_core=cores(0.0, 0.02, 0.01, 0.0), steal_share=0.0)


def state(**changes):
    return dataclasses.replace(QUIET, **changes)


def test_a_quiet_machine_is_fine():
    assert judge(QUIET, privilege="none").verdict == "fine"


def test_a_machine_of_which_nothing_can_be_read_is_fine():
    assert judge(Readings(cores=1), privilege="none").verdict == "fine"


@pytest.mark.parametrize(
    ("verdict", "number", "changes"),
    [
        ("refused", "52%", {"busy_by_core": cores(1.0, 0.9, 0.1, 0.08)}),
        ("refused", "5.0%", {"steal_share": 0.05}),
        ("refused", "0.50 cores", {"quota_cores": 0.5}),
        ("degraded", "3.5", {"load": 3.5}),
        ("degraded", "powersave", {"governor": "powersave"}),
        ("degraded", "91 C", {"temperature_c": 91.0}),
        ("degraded", "battery", {"on_battery": True}),
        ("fine", "", {"governor": "performance", "quota_cores": 2.0, "temperature_c": 50.0}),
    ],
)
def test_the_verdict_comes_with_numbers(verdict, number, changes):
    found = judge(state(**changes), privilege="none")
    assert found.verdict == verdict
    assert number in "; ".join(found.reasons)


def test_privilege_makes_a_busy_machine_usable():
    busy = state(busy_by_core=cores(0.9, 0.9, 0.9, 0.9))
    assert judge(busy, privilege="fifo").verdict == "degraded"
    assert judge(busy, privilege="none").verdict == "refused"


def test_more_threads_than_cores_or_quota_are_refused():
    assert judge(QUIET, privilege="fifo", threads=5).verdict == "refused"
    assert judge(state(quota_cores=2.0), privilege="fifo", threads=3).verdict == "refused"


def test_quiet_cores_come_first(monkeypatch):
    monkeypatch.setattr("hwnas.profiling.machine.allowed_cores", lambda: [0, 1, 2, 3])
    found = judge(state(busy_by_core=cores(0.0, 0.9, 0.0, 0.3)), privilege="fifo")
    assert found.quiet_cores == (2, 0, 3, 1)
    monkeypatch.setattr("hwnas.profiling.machine.allowed_cores", lambda: [1, 3])
    assert found.quiet_cores == (3, 1)


def test_cores_that_are_off_leave_gaps_in_the_numbers(monkeypatch):
    on = (0, 2, 4, 6)  # the second threads are off on a machine that counts them in between
    times = [type("Times", (tuple,), {"idle": 9.0})((9.0, float(core))) for core in on]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    table = "cpu  1 2\n" + "".join(f"cpu{core} 1 2\n" for core in on)
    monkeypatch.setattr(machine, "_text", lambda path: table if path.name == "stat" else None)
    assert cpu_times().busy == {core: float(core) for core in on}
    monkeypatch.setattr("hwnas.profiling.machine.allowed_cores", lambda: [4, 6, 8])
    found = judge(state(busy_by_core={0: 0.0, 2: 0.0, 4: 0.9, 6: 0.0}), privilege="fifo")
    assert found.quiet_cores == (6, 4, 8)  # of the last nothing is known


def test_shares_between_two_readings():
    before = CpuTimes(busy=cores(10.0, 5.0), steal=0.0, total=40.0, at=100.0)
    after = CpuTimes(busy=cores(12.0, 5.5), steal=0.4, total=48.0, at=104.0)
    busy, steal = shares_between(before, after)
    assert busy == pytest.approx(cores(0.5, 0.125))
    assert steal == pytest.approx(0.05)


def test_our_own_work_is_not_held_against_the_machine():
    before = CpuTimes(busy=cores(10.0, 5.0), steal=0.0, total=40.0, at=100.0)
    after = CpuTimes(busy=cores(13.0, 6.0), steal=0.0, total=48.0, at=104.0)
    assert shares_between(before, after, own_seconds=3.0)[0] == pytest.approx(cores(0.0, 0.25))
    assert shares_between(before, after, own_seconds=9.0)[0] == pytest.approx(cores(0.0, 0.0))


def test_this_machine_can_be_read():
    conditions = conditions_since(cpu_times(), own_seconds=0.0)
    assert 0.0 <= conditions.busy_share <= 1.0
    here = device()
    assert here.cores == available_cores() >= 1
    assert here.memory_mb > 0
    assert here.fingerprint == device(name="other").fingerprint
    assert device(name="other").name == "other"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Intel(R) Xeon(R) CPU E5-2670 v3 @ 2.30GHz", "intel-xeon-e5-2670-v3"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763-64-core"),
        ("Raspberry Pi 4 Model B Rev 1.4", "raspberry-pi-4-model-b-rev-1-4"),
        ("", "device"),
    ],
)
def test_device_names_are_file_names(text, name):
    assert slug(text) == name


def test_cgroup_quotas_of_both_kinds(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/jobs/one\n")
    inner = tmp_path / "fs" / "jobs" / "one"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("150000 100000\n")
    assert cgroup_quota(tmp_path / "fs", membership) == 1.5
    (inner / "cpu.max").write_text("max 100000\n")
    assert cgroup_quota(tmp_path / "fs", membership) is None
    membership.write_text("3:cpu,cpuacct:/box\n")
    old = tmp_path / "fs" / "cpu" / "box"
    old.mkdir(parents=True)
    (old / "cpu.cfs_quota_us").write_text("50000")
    (old / "cpu.cfs_period_us").write_text("100000")
    assert cgroup_quota(tmp_path / "fs", membership) == 0.5
    (old / "cpu.cfs_quota_us").write_text("-1")
    assert cgroup_quota(tmp_path / "fs", membership) is None


def test_no_cgroups_no_quota(tmp_path):
    assert cgroup_quota(tmp_path / "no", tmp_path / "none") is None


def test_the_share_of_real_time_threads(tmp_path):
    assert realtime_share(tmp_path) == 1.0
    (tmp_path / "sched_rt_period_us").write_text("1000000")
    (tmp_path / "sched_rt_runtime_us").write_text("950000")
    assert realtime_share(tmp_path) == pytest.approx(0.95)
    (tmp_path / "sched_rt_runtime_us").write_text("-1")
    assert realtime_share(tmp_path) == 1.0


def scheduling():
    return os.sched_getscheduler(0), os.sched_getaffinity(0)


def test_privilege_is_given_back():
    before = scheduling()
    with privileged() as held:
        inside = scheduling()
        assert (inside[0] == os.SCHED_FIFO) == (held.privilege == "fifo")
        if held.privilege == "fifo":
            assert inside[1] == set(held.cores)
            assert 0 < held.rest_share < 0.5
    assert scheduling() == before


def test_threads_born_under_privilege_lose_it():
    import threading

    seen, born, ended = [], threading.Event(), threading.Event()

    def live():
        born.set()
        ended.wait()
        seen.append(scheduling())

    before = scheduling()
    with privileged():
        thread = threading.Thread(target=live)
        thread.start()
        born.wait()
    ended.set()
    thread.join()
    assert seen == [before]


def test_privilege_is_given_back_after_an_error():
    before = scheduling()
    with pytest.raises(RuntimeError), privileged():
        raise RuntimeError
    assert scheduling() == before


def test_no_privilege_is_asked_for_none():
    before = scheduling()
    with privileged(allowed=()) as held:
        assert held.privilege == "none"
        assert scheduling() == before


def test_without_permission_the_next_one_is_tried(monkeypatch):
    def refuse(*_):
        raise PermissionError

    before = scheduling()
    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with privileged(allowed=("fifo",)) as held:
        assert held.privilege == "none"
    assert scheduling() == before


def test_the_autogroup_is_second_best_and_given_back(monkeypatch, tmp_path):
    group = tmp_path / "autogroup"
    group.write_text("/autogroup-7 nice 3\n")
    (tmp_path / "sched_autogroup_enabled").write_text("1\n")
    monkeypatch.setattr("hwnas.profiling.privilege._AUTOGROUP", group)
    monkeypatch.setattr("hwnas.profiling.privilege._KERNEL", tmp_path)
    with privileged(allowed=("autogroup",)) as held:
        assert held.privilege == "autogroup"
        assert group.read_text() == "-20"
    assert group.read_text() == "3"
    (tmp_path / "sched_autogroup_enabled").write_text("0\n")
    with privileged(allowed=("autogroup",)) as held:
        assert held.privilege == "none"


def test_trying_does_not_change_anything():
    before = scheduling()
    assert available_privilege() in ("fifo", "autogroup", "none")
    assert scheduling() == before


def test_only_the_cores_that_we_may_use_count():
    # Others' work on other cores of the host, and our own two cores busy among idle ones.
    host = state(cores=2, busy_by_core=cores(0.9, 0.9, 0.9, 0.0, 0.0, 0.9), allowed=(3, 4))
    assert judge(host, privilege="none").verdict == "fine"
    host = state(cores=2, busy_by_core=cores(*(0.0,) * 62, 0.9, 0.9), allowed=(62, 63))
    assert judge(host, privilege="none").verdict == "refused"


def test_a_core_that_went_off_in_between_leaves_the_shares_unknown(monkeypatch):
    before = CpuTimes(busy=cores(10.0, 5.0), steal=0.0, total=40.0, at=100.0)
    after = CpuTimes(busy=cores(12.0), steal=0.4, total=48.0, at=104.0)
    assert shares_between(before, after) == ({}, 0.0)
    monkeypatch.setattr(machine, "cpu_times", lambda: after)
    found = conditions_since(before, own_seconds=0.0)
    assert (found.busy_share, found.steal_share) == (None, None)


@pytest.mark.parametrize(
    "error", [PermissionError(), NotImplementedError(), FileNotFoundError(), AttributeError()]
)
def test_what_a_system_does_not_tell_is_unknown(monkeypatch, error):
    def refuse(*_, **__):
        raise error

    for name in ("cpu_times", "cpu_freq", "sensors_temperatures", "sensors_battery"):
        monkeypatch.setattr(psutil, name, refuse, raising=False)
    monkeypatch.setattr(os, "getloadavg", refuse, raising=False)
    found = machine.read_machine(window_s=0.0)
    assert found.busy_share is found.frequency_mhz is found.temperature_c is found.load is None
    assert not found.on_battery
    conditions_since(cpu_times(), own_seconds=1.0)


def test_the_conditions_of_a_record_are_those_of_its_time(monkeypatch):
    now = {"temperature": 50.0}
    sensor = SimpleNamespace
    monkeypatch.setattr(
        psutil, "sensors_temperatures",
        lambda: {"cpu": [sensor(current=now["temperature"]), sensor(current=None)]}, raising=False,
    )  # fmt: skip
    before = cpu_times()
    assert conditions_since(before, own_seconds=0.0).temperature_c == 50.0
    now["temperature"] = 80.0
    assert conditions_since(before, own_seconds=0.0).temperature_c == 80.0


def test_the_limit_of_a_group_above_counts(tmp_path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/pods/one/main\ngarbage\n")
    inner = tmp_path / "fs" / "pods" / "one" / "main"
    inner.mkdir(parents=True)
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("50000 100000\n")
    (inner.parent.parent / "cpu.max").write_text("400000 100000\n")
    assert cgroup_quota(tmp_path / "fs", membership) == 0.5
    (inner.parent / "cpu.max").write_text("??? 100000\n")
    assert cgroup_quota(tmp_path / "fs", membership) == 4.0
