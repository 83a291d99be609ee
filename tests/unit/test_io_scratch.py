"""Temporary folders: killed sessions leave nothing behind for long, living ones are left alone."""

import os
import signal
import subprocess
import sys
import tempfile

import pytest

from hwnas.io.scratch import scratch_folder

CHILD = """
import signal
from hwnas.io.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "model.onnx").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    signal.pause()
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Let temporary files be made in a folder of this test, here and in child processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_folder_is_there_for_as_long_as_it_is_used(place):
    with scratch_folder() as one, scratch_folder() as other:
        (one / "file").touch()
        assert one != other
        assert not list(other.iterdir())
    assert not list(place.iterdir())


def test_what_a_killed_session_left_is_removed_and_a_living_one_keeps_its_folder(place):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    children = [
        subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True,
                         env=environment)
        for _ in range(2)
    ]  # fmt: skip
    try:
        killed, living = (child.stdout.readline().strip() for child in children)
        children[0].send_signal(signal.SIGKILL)
        children[0].wait()
        (place / "hwnas-scratch-file").touch()
        (place / "hwnas-other").mkdir()
        with scratch_folder() as ours:
            assert {str(path) for path in place.iterdir()} == {
                living, str(ours), str(place / "hwnas-scratch-file"), str(place / "hwnas-other")
            }  # fmt: skip
            assert os.listdir(living) == ["model.onnx"]
        assert killed not in map(str, place.iterdir())
    finally:
        for child in children:
            child.kill()
            child.communicate()
