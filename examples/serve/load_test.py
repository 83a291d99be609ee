"""How a service stands up to several clients at once: latency, throughput, and what was promised.

    python load_test.py http://127.0.0.1:8080 image.png --clients 4 --seconds 10

Every client sends its next request when the answer to the last one has come.
"""

import argparse
import http.client
import json
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np


@dataclass
class Seen:
    """What one client saw: milliseconds of whole requests and of the model, and failures."""

    requests_ms: list[float] = field(default_factory=list)
    model_ms: list[float] = field(default_factory=list)
    busy: int = 0
    failed: int = 0


def ask(place: str, path: str, body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    """Return status and answer of one request on its own connection."""
    connection = http.client.HTTPConnection(place, timeout=30)
    try:
        return send(connection, path, body)
    finally:
        connection.close()


def send(
    connection: http.client.HTTPConnection, path: str, body: bytes | None
) -> tuple[int, dict[str, Any]]:
    connection.request("GET" if body is None else "POST", path, body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def client(place: str, body: bytes, seen: Seen, until: float) -> None:
    connection = http.client.HTTPConnection(place, timeout=30)
    while time.perf_counter() < until:
        start = time.perf_counter()
        try:
            status, document = send(connection, "/classify", body)
        except (OSError, http.client.HTTPException):
            seen.failed += 1
            connection.close()
            continue
        if status == http.client.OK:
            seen.requests_ms.append((time.perf_counter() - start) * 1e3)
            seen.model_ms.append(document["model_ms"])
        elif status == http.client.SERVICE_UNAVAILABLE:
            seen.busy += 1
            time.sleep(0.01)
        else:
            seen.failed += 1
    connection.close()


def load(place: str, body: bytes, *, clients: int, seconds: float) -> dict[str, Any]:
    """Return what `clients` at once saw for `seconds`."""
    ask(place, "/classify", body)
    seen = [Seen() for _ in range(clients)]
    start = time.perf_counter()
    threads = [
        threading.Thread(target=client, args=(place, body, one, start + seconds)) for one in seen
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    requests = np.array([ms for one in seen for ms in one.requests_ms] or [np.nan])
    model = np.array([ms for one in seen for ms in one.model_ms] or [np.nan])
    done = sum(len(one.requests_ms) for one in seen)
    return {
        "clients": clients,
        "requests": done,
        "per_s": done / elapsed,
        "request_p50_ms": float(np.percentile(requests, 50)),
        "request_p99_ms": float(np.percentile(requests, 99)),
        "model_p50_ms": float(np.percentile(model, 50)),
        "model_p99_ms": float(np.percentile(model, 99)),
        "busy": sum(one.busy for one in seen),
        "failed": sum(one.failed for one in seen),
    }


def compared(found: dict[str, Any], promised: dict[str, Any] | None) -> str:
    """Return a sentence on what the manifest promises for this model."""
    if not promised:
        return "the manifest promises no latency"
    ratio = found["model_p50_ms"] / promised["median_ms"]
    return (
        f"promised {promised['median_ms']:.3f} ms on {promised.get('device', 'unknown')}; "
        f"the model takes {found['model_p50_ms']:.3f} ms here, {ratio:.2f} times that"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("image", type=Path)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    place = urlsplit(asked.url).netloc
    body = asked.image.read_bytes()
    _, health = ask(place, "/health")
    found = load(place, body, clients=asked.clients, seconds=asked.seconds)
    if asked.json:
        print(json.dumps({**found, "promised": health["promised"]}))
    else:
        print(f"{found['clients']} clients: {found['requests']} answers, {found['per_s']:.1f}/s")
        for what in ("request", "model"):
            p50, p99 = found[f"{what}_p50_ms"], found[f"{what}_p99_ms"]
            print(f"{what}: p50 {p50:.3f} ms, p99 {p99:.3f} ms")
        print(f"turned away (503): {found['busy']}; failed: {found['failed']}")
        print(compared(found, health["promised"]))
    return 1 if found["failed"] or not found["requests"] else 0


if __name__ == "__main__":
    sys.exit(main())
