"""A headless Chromium for tests, over ChromeDriver's HTTP interface (W3C WebDriver), with Python's library alone."""

from __future__ import annotations

import base64
import json
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
MISSING = None if CHROMIUM and DRIVER else "Chromium or ChromeDriver is not installed"
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)


class Browser:
    """One window."""

    def __init__(self, root: str, session: str) -> None:
        self._base = f"{root}/session/{session}"

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """A page at a window's size, by a reader who likes it light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.devtools("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.requests()  # of the page before
        self._ask("POST", "url", {"url": path.resolve().as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self._ask("POST", "execute/sync", {"script": script, "args": arguments})

    def devtools(self, command: str, parameters: dict[str, Any]) -> Any:
        """A command of the DevTools protocol."""
        return self._ask("POST", "goog/cdp/execute", {"cmd": command, "params": parameters})

    def press(self, *keys: str) -> None:
        """Keys, one after the other."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._ask("POST", "actions", {"actions": [{"type": "key", "id": "keys", "actions": actions}]})

    def console(self) -> list[str]:
        """What was said on the console since the last time."""
        return [entry["message"] for entry in self._ask("POST", "se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """The addresses that were asked for since the last time."""
        entries = self._ask("POST", "se/log", {"type": "performance"})
        messages = [json.loads(entry["message"])["message"] for entry in entries]
        return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        size = self.devtools("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        taken = self.devtools("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(taken["data"]))

    def _ask(self, method: str, what: str, body: dict[str, Any]) -> Any:
        return _ask(method, f"{self._base}/{what}", body)


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of its own, gone afterwards."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        driver = subprocess.Popen([str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        root, session = f"http://127.0.0.1:{port}", None
        try:
            _wait_for(root)
            options = {"binary": CHROMIUM, "args": [*_FLAGS, f"--user-data-dir={folder}", "about:blank"]}
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = _ask("POST", f"{root}/session", {"capabilities": {"alwaysMatch": wanted}})
            session = made["sessionId"]
            yield Browser(root, session)
        finally:
            if session is not None:
                _ask("DELETE", f"{root}/session/{session}", None)
            driver.terminate()
            driver.wait()


def _wait_for(root: str) -> None:
    for _ in range(600):
        try:
            if _ask("GET", f"{root}/status", None)["ready"]:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("ChromeDriver does not answer")


def _ask(method: str, url: str, body: dict[str, Any] | None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"})
    # No proxy stands between this machine and itself.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=120) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise RuntimeError(json.load(error)["value"]["message"]) from error
