"""The lock of a device, which processes of any user respect and nobody can misuse."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hwnas.errors import HwnasError, UnreliableError
from hwnas.io import lockfile
from hwnas.profiling import locks
from hwnas.profiling.locks import FOLDER_VARIABLE, device_lock
from hwnas.profiling.machine import whole_machine

NOBODY = 65534
FREE, HELD, REFUSED = 0, 1, 2


@pytest.fixture
def shared(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """Return a folder that every user may write to, in place of that for temporary files."""
    tmp_path_factory.getbasetemp()  # made now, in the real one, or it would be lost with this
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        place = Path(folder) / "tmp"
        place.mkdir()
        os.chmod(place, 0o1777)
        monkeypatch.setattr(locks, "whole_machine", lambda: "f")
        monkeypatch.setattr(locks, "SHARED", place)
        monkeypatch.setattr(locks, "user_cache_path", lambda _: Path(folder) / str(os.geteuid()))
        monkeypatch.setattr(tempfile, "tempdir", str(place))
        yield place


def as_another_user(act: Callable[[], int]) -> int:
    """Return what `act` returns in a process of another user, where this one may make such."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            os.umask(0o077)
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            status = act()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def outcome_of_locking() -> int:
    """Return whether the device can be locked."""
    try:
        with device_lock():
            return FREE
    except UnreliableError as error:
        return HELD if str(os.getppid()) in error.message else REFUSED


@pytest.mark.usefixtures("shared")
def test_a_profiler_of_another_user_is_kept_off() -> None:
    with device_lock():
        assert as_another_user(outcome_of_locking) == HELD
    assert as_another_user(outcome_of_locking) == FREE


def test_a_file_that_another_user_made_is_locked(shared: Path) -> None:
    assert as_another_user(outcome_of_locking) == FREE
    (path,) = shared.iterdir()
    assert path.stat().st_mode & 0o777 == 0o666  # in spite of the umask of who made it
    with device_lock():
        assert path.read_text() == str(os.getpid())
        assert as_another_user(outcome_of_locking) == HELD
    os.chmod(path, 0o444)
    with device_lock():
        assert as_another_user(outcome_of_locking) == HELD


@pytest.mark.usefixtures("shared")
def test_a_profiler_on_other_cores_is_kept_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "whole_machine", whole_machine)
    cores = os.sched_getaffinity(0)

    def on_one_core() -> int:
        os.sched_setaffinity(0, [max(cores)])
        return outcome_of_locking()

    with device_lock():
        assert as_another_user(on_one_core) == HELD


def lay_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def lay_hard_link(path: Path, victim: Path) -> None:
    path.hardlink_to(victim)


def lay_dangling_link(path: Path, victim: Path) -> None:
    path.symlink_to(victim.with_name("absent"))


def lay_folder(path: Path, victim: Path) -> None:
    path.mkdir()


def lay_pipe(path: Path, victim: Path) -> None:
    os.mkfifo(path)


@pytest.mark.parametrize("lay", [lay_link, lay_hard_link, lay_dangling_link, lay_folder, lay_pipe])
def test_a_trap_in_the_place_of_the_lock_is_left_alone(
    shared: Path, lay: Callable[[Path, Path], None]
) -> None:
    victim = shared / "victim"
    victim.write_text("precious")
    lay(shared / "hwnas-profiling-f.lock", victim)
    with device_lock():
        assert victim.read_text() == "precious"
        assert not (shared / "absent").exists()
        with pytest.raises(UnreliableError, match="another profiler"), device_lock():
            pass


def test_a_lock_file_that_was_cleared_away_is_made_anew(shared: Path) -> None:
    with device_lock():
        pass
    next(shared.iterdir()).unlink()
    with device_lock():
        assert outcome_of_locking() == REFUSED  # held by this process, not by its parent


def test_what_stands_in_the_file_is_not_believed(shared: Path) -> None:
    (shared / "hwnas-profiling-f.lock").write_text("\x1b[2Jhello")
    with device_lock():
        (shared / "hwnas-profiling-f.lock").write_text("\x1b[2Jhello")
        with pytest.raises(UnreliableError, match=r"\(process unknown\)"), device_lock():
            pass


def test_a_folder_can_be_named(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with device_lock():
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "locks"))
        with device_lock(), device_lock(folder=tmp_path / "more"):
            pass
    (tmp_path / "file").touch()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file" / "locks"))
    with pytest.raises(HwnasError, match="no place for the lock") as raised, device_lock():
        pass
    assert FOLDER_VARIABLE in (raised.value.hint or "")
    assert len(list(shared.iterdir())) == 1


def test_without_a_common_folder_there_is_a_place_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(FOLDER_VARIABLE, raising=False)
    (tmp_path / "file").touch()
    nowhere = tmp_path / "file" / "hwnas"  # no folder can be made in a file, even by root
    monkeypatch.setattr(locks, "SHARED", nowhere)
    monkeypatch.setattr(locks, "user_cache_path", lambda _: nowhere)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        device_lock(),
        pytest.raises(HwnasError, match="another profiler"),
        device_lock(),
    ):
        pass
    monkeypatch.setattr(tempfile, "tempdir", str(nowhere))
    with pytest.raises(HwnasError, match="no place for the lock"), device_lock():
        pass


@pytest.mark.usefixtures("shared")
def test_systems_without_flock_have_a_lock_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockfile, "held", lockfile.held_without_flock)
    told = pytest.raises(UnreliableError, match=f"process {os.getpid()}")
    with device_lock(), told, device_lock():
        pass
    with device_lock():
        pass


HOLDER = """
import os, sys, time
from pathlib import Path
from hwnas.io import lockfile
held = lockfile.held(Path(sys.argv[1]))
if os.fork() == 0:
    print("held", flush=True)
time.sleep(60)
"""


def test_what_was_forked_does_not_keep_a_lock(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "l")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(lockfile.HeldError, match=str(holder.pid)):
                lockfile.held(tmp_path / "l")
            holder.kill()
            holder.wait()
            lockfile.held(tmp_path / "l").close()  # at once, though the forked process lives
        finally:
            os.killpg(holder.pid, signal.SIGKILL)
