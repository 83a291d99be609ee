"""What a device installs and does: the wheel with its requirements alone measures and validates."""

import json
import os
import subprocess
import sys
import time
import venv

import pytest

from hwnas.profiling.locks import FOLDER_VARIABLE
from hwnas.profiling.profiles import read_profile
from hwnas.testing.exported import write_artifact, write_images

pytestmark = pytest.mark.slow

LIMIT_MB = 200  # of the installed environment
MODELS = 4
ABSENT = ("torch", "onnx", "sklearn", "timm")


def run(command, *, cwd, home):
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    child = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        env={**variables, "XDG_CACHE_HOME": str(home), FOLDER_VARIABLE: str(home)},
        check=False,
        timeout=600,  # an index may be slow
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def megabytes(folder):
    """Return the size of what is on the disk, each file once."""
    files = {(s.st_dev, s.st_ino): s.st_size for s in map(os.lstat, every_file(folder))}
    return sum(files.values()) / 2**20


def every_file(folder):
    return [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]


def validated(command, tmp_path, home):
    """Examine an artifact with everything that can be asked, and return the verdict."""
    made = write_artifact(tmp_path / "artifact")
    images = write_images(made, tmp_path / "images")
    asked = ("--data", images, "--min-accuracy", "0.99", "--max-latency", "10s", "--max-p99", "60s",
             "--max-memory", "1GB", "--max-size", "40MB", "--max-seconds", "0.3", "--json",
             "--quiet", "--junit", "verdict.xml")  # fmt: skip
    return json.loads(run([command, "validate", made.folder, *asked], cwd=tmp_path, home=home))


def test_a_device_measures_a_pack_and_validates_a_model(hwnas, wheel, tmp_path, capsys):
    packed = hwnas(
        "pack", "--space", "nano", "-n", str(MODELS), "--precision", "fp32,int8_dynamic",
        "-o", str(tmp_path / "nano.pack"),
    )  # fmt: skip
    assert packed.returncode == 0, packed.stderr
    start = time.perf_counter()
    venv.create(tmp_path / "device", with_pip=False)
    python = tmp_path / "device" / "bin" / "python"
    home = tmp_path / "home"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    run([*pip, wheel], cwd=tmp_path, home=home)
    installed = time.perf_counter()
    asked = ("nano.pack", "--force", "--max-seconds", "0.2")
    run([tmp_path / "device" / "bin" / "hwnas", "profile", *asked], cwd=tmp_path, home=home)
    done = time.perf_counter()
    verdict = validated(tmp_path / "device" / "bin" / "hwnas", tmp_path, home)
    size = megabytes(tmp_path / "device")
    with capsys.disabled():
        print(
            f"\nlight install: {size:.0f} MB; installing {installed - start:.1f} s, "
            f"measuring {2 * MODELS} models {done - installed:.1f} s"
        )
    assert size < LIMIT_MB
    (path,) = (tmp_path / "profiles").iterdir()
    assert len(read_profile(path).measured()) == 2 * MODELS
    assert verdict["state"] == "passed"
    passed = {gate["name"] for gate in verdict["gates"] if gate["state"] == "passed"}
    assert passed >= {"hashes", "parity", "accuracy", "p50", "p99", "memory", "size"}
    assert (tmp_path / "verdict.xml").is_file()
    code = f"from importlib.util import find_spec; print([*map(find_spec, {ABSENT})])"
    assert run([python, "-c", code], cwd=tmp_path, home=home).strip() == str([None] * len(ABSENT))
