"""A small HTTP service around an exported model. Needs the light install only.

    python server.py ARTIFACT --port 8080
    python server.py FAMILY --budget 5ms
    curl --data-binary @image.png localhost:8080/classify

It refuses to start with files that are not those of the manifest, answers 503 instead of letting
a queue grow, and 4xx with a reason for what is no image. For the open internet put it behind a
proxy that speaks TLS.
"""

import argparse
import io
import json
import signal
import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnxruntime
from PIL import Image

from hwnas.errors import HwnasError, UsageError
from hwnas.export.artifact import ModelEntry, read_manifest, verify
from hwnas.export.family import FAMILY_FILE, choose_member
from hwnas.export.metadata import read_metadata
from hwnas.io import digest_file
from hwnas.io.units import DURATION_MS, parse

MOST_PIXELS = 50_000_000
TOP = 5
SOCKET_SECONDS = 10.0


class BadImageError(Exception):
    """What was sent is no image that can be classified."""


class Classifier:
    """A model file, verified and warmed up."""

    def __init__(self, model: Path, *, threads: int = 1) -> None:
        self.path = model
        self.entry: ModelEntry = verify(model.parent).model(model.name)
        about = read_metadata(model)
        if about is None:
            raise HwnasError(f"{model} carries no metadata of hwnas", "hwnas export")
        self.about, self.sha256 = about, digest_file(self.path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(self.path), options)
        self._input = self._session.get_inputs()[0].name
        side = about.preprocessing.crop
        blank = Image.new(about.preprocessing.channels, (side, side))
        for _ in range(3):
            self._run(about.preprocessing.square(blank))

    def classify(self, content: bytes) -> dict[str, Any]:
        """Return the likeliest classes of an encoded image."""
        square = self.about.preprocessing.square(opened(content))
        start = time.perf_counter()
        logits = self._run(square)
        took = (time.perf_counter() - start) * 1e3
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        best = np.argsort(-shares)[:TOP]
        names = self.about.classes
        return {
            "class": names[best[0]],
            "top": [{"class": names[k], "probability": float(shares[k])} for k in best],
            "model_ms": round(took, 4),
        }

    def _run(self, square: np.ndarray) -> np.ndarray:
        batch = self.about.feed(square[None])
        if self.about.batch is not None:
            batch = np.repeat(batch, self.about.batch, axis=0)
        (logits,) = self._session.run(None, {self._input: batch})
        return np.asarray(logits[0], np.float64)


def chosen_model(folder: Path, budget: str | None) -> Path:
    """Return the model to serve: that of an artifact, or of a family the best within a budget."""
    if not (folder / FAMILY_FILE).is_file():
        if budget is not None:
            raise UsageError(f"{folder} is no family to choose from", "leave --budget out")
        return folder / read_manifest(folder).recommended
    if budget is None:
        raise UsageError(f"{folder} holds a family of models", "add --budget 5ms")
    member = choose_member(folder, latency_ms=parse(budget, DURATION_MS))
    return folder / member.file


def opened(content: bytes) -> Image.Image:
    """Return an image, decoded; raises BadImageError."""
    try:
        image = Image.open(io.BytesIO(content))
        if image.width * image.height > MOST_PIXELS:
            raise BadImageError(f"the image has {image.width} x {image.height} pixels")
        image.load()
    except BadImageError:
        raise
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadImageError(f"not an image that can be read: {error}") from error
    if image.mode in ("I", "F"):
        raise BadImageError("images with 32 bits per pixel have no known range")
    return image


class Service(ThreadingHTTPServer):
    """Runs the model on `workers` threads; at most `waiting` more requests wait for one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self,
        address: tuple[str, int],
        classifier: Classifier,
        *,
        workers: int = 1,
        waiting: int = 16,
        most_bytes: int = 10_000_000,
    ) -> None:
        super().__init__(address, Handler)
        self.classifier, self.most_bytes = classifier, most_bytes
        self.capacity = workers + waiting
        self._places = threading.BoundedSemaphore(self.capacity)
        self._pool = ThreadPoolExecutor(workers)

    def submit(self, content: bytes) -> "Future[dict[str, Any]] | None":
        """Hand an image to a worker; None if too many are waiting."""
        if not self._places.acquire(blocking=False):
            return None
        future = self._pool.submit(self.classifier.classify, content)
        future.add_done_callback(lambda _: self._places.release())
        return future

    def health(self) -> dict[str, Any]:
        """Return what is served."""
        model = self.classifier
        return {
            "status": "ok",
            "model": model.path.name,
            "sha256": model.sha256,
            "classes": len(model.about.classes),
            "promised": model.entry.latency,
        }

    def server_close(self) -> None:
        """Stop, after what is being run."""
        super().server_close()
        self._pool.shutdown()


class Handler(BaseHTTPRequestHandler):
    """GET /health and POST /classify."""

    server: Service
    protocol_version = "HTTP/1.1"
    timeout = SOCKET_SECONDS  # a client that sends nothing gives its thread back
    # Head and body in one packet: else the second waits for the first to be confirmed.
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(HTTPStatus.OK, self.server.health())
        else:
            self.refuse(HTTPStatus.NOT_FOUND, "GET /health, POST /classify")

    def do_POST(self) -> None:
        if self.path != "/classify":
            self.refuse(HTTPStatus.NOT_FOUND, "GET /health, POST /classify")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.refuse(HTTPStatus.LENGTH_REQUIRED, "send Content-Length")
        elif int(length) > self.server.most_bytes:
            reason = f"{length} bytes; accepted: up to {self.server.most_bytes}"
            self.refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, reason)
        else:
            self.classify(self.rfile.read(int(length)))

    def classify(self, content: bytes) -> None:
        future = self.server.submit(content)
        if future is None:
            self.answer(
                HTTPStatus.SERVICE_UNAVAILABLE,
                {"error": f"{self.server.capacity} requests are waiting"},
                {"Retry-After": "1"},
            )
            return
        try:
            self.answer(HTTPStatus.OK, future.result())
        except BadImageError as error:
            self.answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})

    def refuse(self, status: HTTPStatus, reason: str) -> None:
        """Answer without having read the body, after which the connection is of no more use."""
        self.close_connection = True
        self.answer(status, {"error": reason}, {"Connection": "close"})

    def answer(
        self, status: HTTPStatus, document: dict[str, Any], headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing of single requests."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="an artifact or a family")
    parser.add_argument("--budget", help="of a family: latency of a run, such as 5ms")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="0: any that is free")
    parser.add_argument("--workers", type=int, default=1, help="images classified at once")
    parser.add_argument("--threads", type=int, default=1, help="threads per image")
    parser.add_argument("--waiting", type=int, default=16, help="requests that may wait")
    asked = parser.parse_args()
    try:
        classifier = Classifier(chosen_model(asked.folder, asked.budget), threads=asked.threads)
    except HwnasError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    address = (asked.host, asked.port)
    with Service(address, classifier, workers=asked.workers, waiting=asked.waiting) as service:

        def stop(_number: int, _frame: FrameType | None) -> None:
            threading.Thread(target=service.shutdown).start()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        print(f"http://{asked.host}:{service.server_port}", flush=True)
        service.serve_forever(poll_interval=0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
