"""A headless Chromium or Chrome, spoken to through two pipes in the DevTools protocol.

Used for pictures of a page and for the tests of its script. No package is needed: commands are
JSON documents that end with a zero byte, written to the browser's third file and read from its
fourth.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hwnas.errors import HwnasError

VARIABLE = "HWNAS_BROWSER"
_NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "headless_shell", "chrome-headless-shell", "microsoft-edge",
)  # fmt: skip
_OPTIONS = (
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars",
    "--no-first-run", "--disable-extensions", "--disable-background-networking",
    "--disable-dev-shm-usage", "--mute-audio",
)  # fmt: skip
# Puts the two pipes where the browser looks for them, then becomes the browser.
_LAUNCHER = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD_CLOEXEC, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""
_PATIENCE_S = 60.0
_KEY_CODES = {
    "Tab": 9, "Enter": 13, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowUp": 38,
    "ArrowRight": 39, "ArrowDown": 40,
}  # fmt: skip


def find_browser() -> str | None:
    """Return the path of a browser: what HWNAS_BROWSER names, else the first that is installed."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


def require_browser() -> str:
    """Return the path of a browser, or raise an error that says how to get one."""
    found = find_browser()
    if found is None:
        named = os.environ.get(VARIABLE)
        what = f"{VARIABLE} is {named!r}, which is no program" if named else "none is installed"
        raise HwnasError(
            f"a picture needs Chromium or Chrome: {what}",
            f"apt-get install chromium, or set {VARIABLE}=/path/to/chrome",
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """What the page is shown on. `scale`: pixels of a picture per pixel of the page."""

    width: int = 1100
    height: int = 900
    scale: float = 1.0
    dark: bool = False


class Browser:
    """One page in a headless browser. `problems`: errors of the console and of scripts."""

    def __init__(self, window: Window = Window()) -> None:
        program = require_browser()
        self._home = tempfile.TemporaryDirectory(
            prefix="hwnas-browser-", ignore_cleanup_errors=True
        )
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.problems: list[str] = []
        self._child = self._start(program)
        try:
            self._attach()
            self.show_on(window)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the browser."""
        self._child.kill()
        self._child.wait()
        os.close(self._write)
        os.close(self._read)
        self._home.cleanup()

    def _attach(self) -> None:
        target = self.send("Target.createTarget", {"url": "about:blank"})["targetId"]
        attached = self.send("Target.attachToTarget", {"targetId": target, "flatten": True})
        self._session = str(attached["sessionId"])
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def show_on(self, window: Window) -> None:
        """Give the page this size and colour scheme."""
        self.send(
            "Emulation.setDeviceMetricsOverride",
            {"width": window.width, "height": window.height, "deviceScaleFactor": window.scale,
             "mobile": False},
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if window.dark else "light"}
        self.send("Emulation.setEmulatedMedia", {"features": [scheme]})

    def open(self, page: Path) -> None:
        """Show an HTML file and wait until its script has run."""
        self.send("Page.navigate", {"url": page.resolve().as_uri()})
        end = time.monotonic() + _PATIENCE_S
        while self.run("document.readyState") != "complete":
            if time.monotonic() > end:
                raise HwnasError(f"{page}: the browser did not finish loading it")
            time.sleep(0.05)

    def run(self, expression: str) -> Any:  # noqa: ANN401 - any JSON value
        """Return the value of a JavaScript expression."""
        found = self.send(
            "Runtime.evaluate",
            {"expression": expression, "returnByValue": True, "awaitPromise": True},
        )
        if "exceptionDetails" in found:
            raise HwnasError(f"{expression}: {_described(found['exceptionDetails'])}")
        return found["result"].get("value")

    def move(self, x: float, y: float) -> None:
        """Move the pointer to a place of the window."""
        self.send("Input.dispatchMouseEvent", {"type": "mouseMoved", "x": x, "y": y})

    def click(self, x: float, y: float) -> None:
        """Click at a place of the window."""
        for kind in ("mousePressed", "mouseReleased"):
            self.send(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1},
            )

    def press(self, key: str) -> None:
        """Press a key such as Tab, Enter or ArrowRight."""
        text = {"text": "\r"} if key == "Enter" else {}
        code = _KEY_CODES.get(key, 0)
        for kind in ("keyDown", "keyUp"):
            parameters = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code}
            self.send(
                "Input.dispatchKeyEvent", {**parameters, **(text if kind == "keyDown" else {})}
            )

    def screenshot(
        self, path: Path, *, area: tuple[float, float, float, float] | None = None
    ) -> None:
        """Write a PNG of the page: of (x, y, width, height), or of all of it."""
        if area is None:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            area = (0.0, 0.0, size["width"], size["height"])
        clip = dict(zip(("x", "y", "width", "height"), area, strict=True)) | {"scale": 1}
        found = self.send(
            "Page.captureScreenshot",
            {"format": "png", "captureBeyondViewport": True, "clip": clip},
        )
        path.write_bytes(base64.b64decode(found["data"]))

    def pdf(self, path: Path) -> None:
        """Write the page as it is printed."""
        found = self.send("Page.printToPDF", {"preferCSSPageSize": True, "printBackground": False})
        path.write_bytes(base64.b64decode(found["data"]))

    def send(self, method: str, parameters: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method}
        message["params"] = parameters or {}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(method)
            if answer.get("id") == self._number:
                break
            self._note(answer)
        if "error" in answer:
            raise HwnasError(f"the browser refuses {method}: {answer['error'].get('message')}")
        result: dict[str, Any] = answer["result"]
        return result

    def _receive(self, method: str) -> dict[str, Any]:
        end = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, end - time.monotonic()))
            piece = os.read(self._read, 1 << 20) if ready else b""
            if not piece:
                raise HwnasError(
                    f"the browser {'went away' if ready else 'does not answer'} at {method}",
                    f"try another one: {VARIABLE}=/path/to/chrome",
                )
            self._buffer += piece
        line, _, self._buffer = self._buffer.partition(b"\0")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        found = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.problems.append(_described(found["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled" and found["type"] == "error":
            self.problems.append(" ".join(str(part.get("value")) for part in found["args"]))
        elif event.get("method") == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.problems.append(str(found["entry"]["text"]))

    def _start(self, program: str) -> "subprocess.Popen[bytes]":
        commands, self._write = os.pipe()
        self._read, answers = os.pipe()
        # Chromium refuses its sandbox to root; the page is our own.
        sandbox = ["--no-sandbox"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
        options = [*_OPTIONS, *sandbox, f"--user-data-dir={self._home.name}", "about:blank"]
        child = subprocess.Popen(  # noqa: S603 - the program was found by us
            [sys.executable, "-c", _LAUNCHER, str(commands), str(answers), program, *options],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        return child


def _described(details: dict[str, Any]) -> str:
    thrown = details.get("exception", {})
    return str(thrown.get("description") or thrown.get("value") or details.get("text"))
