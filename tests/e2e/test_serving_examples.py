"""The examples of serving an exported model: each is run, against real files and real sockets."""

import http.client
import io
import json
import re
import runpy
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from hwnas.export.family import Family, Member, write_family
from hwnas.testing.exported import CLASSES, MODEL_FILE, change_weight, write_artifact, write_images

LATENCY = {"median_ms": 0.2, "p99_ms": 0.3, "threads": 1, "batch": 1, "grade": "A", "device": "d"}


def start(root, *arguments):
    script = root / "examples" / "serve" / "server.py"
    return subprocess.Popen(
        [sys.executable, str(script), *map(str, arguments), "--port", "0"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def stop(process):
    process.terminate()
    try:
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("exported")
    return write_artifact(folder / "artifact", crop=24, latency=LATENCY)


@pytest.fixture(scope="module")
def pictures(exported, tmp_path_factory):
    return write_images(exported, tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="module")
def place(root, exported):
    process = start(root, exported.folder)
    yield process.stdout.readline().strip().removeprefix("http://")
    stop(process)


def request(place, method, path, body=None, headers=None):
    connection = http.client.HTTPConnection(place, timeout=30)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), dict(answer.headers)
    finally:
        connection.close()


def run(*arguments):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, check=False
    )


# --- ten lines


@pytest.mark.parametrize("name", CLASSES)
def test_ten_lines_name_the_class(root, exported, pictures, name):
    script = root / "examples" / "onnxruntime_ten_lines.py"
    picture = next((pictures / name).iterdir())
    child = run(script, exported.model, picture)
    assert (child.returncode, child.stdout) == (0, f"{name}\n"), child.stderr


@pytest.mark.parametrize(
    ("shape", "depth"), [((90, 161, 3), np.uint8), ((90, 161), np.uint16)], ids=str
)
def test_ten_lines_prepare_images_as_hwnas_does(
    root, exported, tmp_path, monkeypatch, shape, depth
):
    most = np.iinfo(depth).max
    photo = Image.fromarray(np.random.default_rng(0).integers(0, most, shape, depth))
    photo.save(tmp_path / "photo.png")
    monkeypatch.setattr(sys, "argv", ["script", str(exported.model), str(tmp_path / "photo.png")])
    left = runpy.run_path(str(root / "examples" / "onnxruntime_ten_lines.py"))["x"]
    about = exported.metadata
    assert np.allclose(left, about.feed(about.preprocessing.square(photo)[None]), atol=1e-6)


def test_ten_lines_need_nothing_of_hwnas(root):
    text = (root / "examples" / "onnxruntime_ten_lines.py").read_text()
    imported = set(re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE))
    assert imported == {"json", "sys", "numpy", "onnxruntime", "PIL"}


def test_ten_lines_say_what_they_cannot_do(root, tmp_path):
    made = write_artifact(tmp_path / "scaling", images=20)
    picture = next(write_images(made, tmp_path / "images").glob("*/*.png"))
    child = run(root / "examples" / "onnxruntime_ten_lines.py", made.model, picture)
    assert child.returncode == 1
    assert "--embed-preprocessing" in child.stderr


# --- service


def test_the_service_tells_what_it_serves(place, exported):
    status, health, _ = request(place, "GET", "/health")
    assert (status, health["status"], health["classes"]) == (200, "ok", len(CLASSES))
    assert health["model"] == MODEL_FILE
    assert health["promised"]["median_ms"] == LATENCY["median_ms"]


def test_images_are_classified(place, pictures):
    for picture in sorted(pictures.glob("*/*.png"))[::9]:
        status, answer, _ = request(place, "POST", "/classify", picture.read_bytes())
        assert (status, answer["class"]) == (200, picture.parent.name)
        assert sum(one["probability"] for one in answer["top"]) == pytest.approx(1)
        assert answer["model_ms"] > 0


def encoded(pixels, kind="PNG"):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def test_other_sizes_and_colours_are_accepted(place):
    photo = np.random.default_rng(0).integers(0, 256, (90, 160, 3)).astype(np.uint8)
    for kind in ("PNG", "JPEG", "WEBP"):
        assert request(place, "POST", "/classify", encoded(photo, kind))[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "told"),
    [
        ("POST", "/classify", b"no image", {}, 400, "not an image"),
        ("POST", "/classify", b"", {}, 400, "not an image"),
        ("POST", "/classify", encoded(np.zeros((64, 64), np.uint8))[:-30], {}, 400, "not an image"),
        ("POST", "/classify", encoded(np.zeros((64, 64), np.int32), "TIFF"), {}, 400, "32 bits"),
        ("POST", "/classify", None, {"Content-Length": "99999999"}, 413, "accepted: up to"),
        ("POST", "/classify", None, {"Transfer-Encoding": "chunked"}, 411, "Content-Length"),
        ("POST", "/classify", None, {"Content-Length": "-3"}, 411, "Content-Length"),
        ("POST", "/elsewhere", b"", {}, 404, "POST /classify"),
        ("GET", "/classify", None, {}, 404, "GET /health"),
    ],
)
def test_what_is_no_image_gets_a_reason(place, method, path, body, headers, status, told):
    found, answer, _ = request(place, method, path, body, headers)
    assert found == status
    assert told in answer["error"]


def test_a_bomb_is_not_unpacked(place):
    black = Image.new("1", (20_000, 20_000))
    content = io.BytesIO()
    black.save(content, "PNG")
    assert len(content.getvalue()) < 100_000
    status, answer, _ = request(place, "POST", "/classify", content.getvalue())
    assert status == 400
    assert "20000" in answer["error"] or "pixels" in answer["error"]


def test_the_queue_is_bounded(root, exported, pictures, monkeypatch):
    monkeypatch.syspath_prepend(str(root / "examples" / "serve"))
    import server

    classifier = server.Classifier(exported.model)
    released = threading.Event()

    def slow(_content):
        assert released.wait(30)
        return {"class": "bag"}

    monkeypatch.setattr(classifier, "classify", slow)
    service = server.Service(("127.0.0.1", 0), classifier, workers=1, waiting=2)
    thread = threading.Thread(target=service.serve_forever, args=(0.05,))
    thread.start()
    place = f"127.0.0.1:{service.server_port}"
    try:
        with ThreadPoolExecutor(8) as clients:
            asked = [clients.submit(request, place, "POST", "/classify", b"x") for _ in range(8)]
            # Five are turned away while three wait, which nobody lets go on yet.
            while sum(one.done() for one in asked) < 5:
                released.wait(0.01)
            refused = [one.result() for one in asked if one.done()]
            assert request(place, "GET", "/health")[0] == 200
            released.set()
            statuses = sorted(one.result()[0] for one in asked)
        assert statuses == [200] * 3 + [503] * 5
        assert all(headers["Retry-After"] for _, _, headers in refused)
    finally:
        released.set()
        service.shutdown()
        thread.join()
        service.server_close()


def test_changed_files_are_not_served(root, tmp_path):
    made = write_artifact(tmp_path / "artifact", images=20)
    change_weight(made.model)
    process = start(root, made.folder)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 4
    assert f"{MODEL_FILE} was changed" in errors


# --- families


def member(folder: Path, name: str, latency_ms: float, accuracy: float) -> Member:
    made = write_artifact(folder / name, crop=24, images=20)
    return Member(
        file=f"{name}/{MODEL_FILE}", digest=made.metadata.digest, sha256="", size_bytes=0,
        budgets=(), accuracy=accuracy, latency_ms=latency_ms, measured=True, precision="fp32",
        promised={},
    )  # fmt: skip


def test_a_budget_chooses_from_a_family(root, tmp_path, monkeypatch):
    members = (member(tmp_path, "small", 1.0, 0.8), member(tmp_path, "large", 4.0, 0.9))
    write_family(tmp_path, Family(
        space="nano", device="d", budgets={}, members=members, versions={}, created="now",
    ))  # fmt: skip
    monkeypatch.syspath_prepend(str(root / "examples" / "serve"))
    import server

    chosen = {budget: server.chosen_model(tmp_path, budget) for budget in ("2ms", "5ms")}
    assert [path.parent.name for path in chosen.values()] == ["small", "large"]
    process = start(root, tmp_path, "--budget", "0.5ms")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 3
    assert "no member within 0.5 ms" in errors


# --- load


def test_the_load_test_reports_and_compares(root, place, pictures):
    script = root / "examples" / "serve" / "load_test.py"
    picture = next((pictures / "bag").iterdir())
    asked = (f"http://{place}", picture, "--clients", "2", "--seconds", "1")
    child = run(script, *asked, "--json")
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    assert found["failed"] == 0
    assert found["requests"] > 0
    assert found["per_s"] > 0
    assert found["model_p50_ms"] <= found["request_p50_ms"] <= found["request_p99_ms"]
    text = run(script, *asked).stdout
    assert "request: p50" in text
    assert re.search(r"promised 0\.200 ms on d; the model takes \d+\.\d+ ms here", text)
