"""Fetching from a server on this machine that delivers, lies, stalls, breaks off and recovers."""

import gzip
import hashlib
import struct
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from hwnas.errors import HwnasError
from hwnas.training import builtin
from hwnas.training import fetch as fetching
from hwnas.training.data import DataSettings, load_data
from hwnas.training.fetch import Published, fetch

CONTENT = bytes(range(256)) * 9000
HINT = "get it another way"


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {"/file.bin": CONTENT}
        self.behaviours: list[str] = []
        self.requests = 0
        self.released = threading.Event()

    def published(self, name="file.bin", content=CONTENT) -> Published:
        return Published(
            url=f"http://127.0.0.1:{self.server_port}/{name}",
            md5=hashlib.md5(content).hexdigest(),
        )


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server = self.server
        server.requests += 1
        behaviour = server.behaviours.pop(0) if server.behaviours else "deliver"
        content = server.files.get(self.path)
        if behaviour == "refuse" or content is None:
            self.send_error(503 if behaviour == "refuse" else 404)
            return
        if behaviour == "lie":
            content = content[:-1] + b"?"
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if behaviour in ("stall", "break"):
            self.wfile.write(content[: len(content) // 2])
            self.wfile.flush()
            if behaviour == "stall":
                server.released.wait(20)
            return
        self.wfile.write(content)


@pytest.fixture
def server():
    server = Server()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.released.set()
    server.shutdown()
    thread.join()
    server.server_close()


def left_in(folder):
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_a_file_is_fetched_once_and_progress_is_told(server, tmp_path):
    seen = []
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        path = fetch(
            server.published(), folder, hint=HINT, progress=lambda *news: seen.append(news)
        )
    assert path.read_bytes() == CONTENT
    assert server.requests == 1
    assert seen[-1] == ("fetching file.bin", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in seen] == sorted({done for _, done, _ in seen})
    assert left_in(folder) == ["file.bin"]


def test_another_content_is_refused_and_not_kept(server, tmp_path):
    server.behaviours = ["lie"]
    with pytest.raises(HwnasError, match="expected " + server.published().md5) as caught:
        fetch(server.published(), tmp_path, hint=HINT)
    assert caught.value.hint == HINT
    assert server.requests == 1
    assert left_in(tmp_path) == []


@pytest.mark.parametrize(
    ("behaviour", "said"),
    [("break", "ended after|reset|closed"), ("stall", "timed out"), ("refuse", "answers 503")],
)
def test_a_transfer_that_fails_is_tried_again_then_explained(server, tmp_path, behaviour, said):
    server.behaviours = [behaviour]
    path = fetch(server.published(), tmp_path, hint=HINT, timeout_s=0.3)
    assert path.read_bytes() == CONTENT
    assert server.requests == 2
    path.unlink()
    server.behaviours = [behaviour] * fetching.ATTEMPTS
    with pytest.raises(HwnasError, match=said) as caught:
        fetch(server.published(), tmp_path, hint=HINT, timeout_s=0.3)
    assert server.published().url in caught.value.message
    assert caught.value.hint == HINT
    assert left_in(tmp_path) == []


def test_a_server_that_is_not_there_is_explained(tmp_path):
    nowhere = Published(url="http://127.0.0.1:1/file.bin", md5="")
    with pytest.raises(HwnasError, match=r"cannot fetch http://127\.0\.0\.1:1/file\.bin"):
        fetch(nowhere, tmp_path, hint=HINT)


def test_a_folder_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(HwnasError, match="cannot write"):
        fetch(server.published(), tmp_path / "taken" / "deeper", hint=HINT)


def test_a_full_disk_is_not_taken_for_the_network(server, tmp_path, monkeypatch):
    def full(out, chunk):
        raise fetching._DiskError(OSError(28, "No space left on device"))

    monkeypatch.setattr(fetching, "_write", full)
    with pytest.raises(HwnasError, match="no space left"):
        fetch(server.published(), tmp_path, hint=HINT)
    assert server.requests == 1
    assert left_in(tmp_path) == []


def test_processes_that_want_the_same_file_fetch_it_once(server, tmp_path):
    found = []
    threads = [
        threading.Thread(
            target=lambda: found.append(fetch(server.published(), tmp_path, hint=HINT))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [tmp_path / "file.bin"] * 4
    assert server.requests == 1


def test_fashion_mnist_is_fetched_into_the_cache(server, tmp_path, monkeypatch):
    labels = np.repeat(np.arange(10, dtype=np.uint8), 3)
    images = np.random.default_rng(0).integers(256, size=(30, 28, 28), dtype=np.uint8)
    sums = {}
    for name in builtin.FASHION_FILES:
        array = images if "images" in name else labels
        header = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        content = gzip.compress(header + array.tobytes())
        server.files[f"/{name}.gz"] = content
        sums[name] = hashlib.md5(content).hexdigest()
    monkeypatch.setattr(builtin, "FASHION_FILES", sums)
    monkeypatch.setattr(builtin, "_FASHION_SITE", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr(builtin, "DEBIAN", tmp_path / "absent")
    monkeypatch.setattr(builtin, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.delenv(builtin.VARIABLE, raising=False)
    for _ in range(2):
        data = load_data(DataSettings(name="fashion-mnist"))
        assert [len(data.train), len(data.heldout), len(data.test)] == [20, 10, 30]
    assert server.requests == 4
