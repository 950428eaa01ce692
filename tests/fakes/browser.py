"""A headless Chromium behind chromedriver, spoken to with the standard library alone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
WHY_NOT = (
    "" if CHROMIUM and DRIVER else "no chromium with chromedriver on this machine (Debian: chromium chromium-driver)"
)
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")


class Browser:
    """One session: it opens pages, runs scripts in them, and tells what they sent and complained about."""

    def __init__(self, port: int) -> None:
        self.base = f"http://127.0.0.1:{port}"
        options = {"binary": CHROMIUM, "args": list(FLAGS)}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{made['sessionId']}"

    def _call(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=120) as answer:
            return json.load(answer)["value"]

    def cdp(self, command: str, **params: Any) -> Any:
        """A command of Chromium's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": params})

    def open(self, page: Path, width: int = 1280, height: int = 900, *, dark: bool = False) -> None:
        """Open a file in a window of this size and colour scheme."""
        self._call("POST", "/se/log", {"type": "performance"})
        self._call("POST", "/se/log", {"type": "browser"})
        self.cdp(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.cdp("Emulation.setEmulatedMedia", media="", features=[scheme])
        self._call("POST", "/url", {"url": page.as_uri()})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def later(self, script: str) -> Any:
        """What a script hands to the function that is its last argument."""
        return self._call("POST", "/execute/async", {"script": script, "args": []})

    def requests(self) -> list[str]:
        """The addresses that the page asked for since it was opened."""
        rows = [json.loads(row["message"])["message"] for row in self._call("POST", "/se/log", {"type": "performance"})]
        return [row["params"]["request"]["url"] for row in rows if row["method"] == "Network.requestWillBeSent"]

    def complaints(self) -> list[str]:
        """What stands in the console."""
        return [row["message"] for row in self._call("POST", "/se/log", {"type": "browser"})]

    def picture(self, path: Path) -> None:
        """The whole page as a PNG."""
        shot = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot["data"]))

    def paper(self, path: Path) -> None:
        """The page as it is printed."""
        printed = self.cdp("Page.printToPDF", preferCSSPageSize=True, printBackground=True)
        path.write_bytes(base64.b64decode(printed["data"]))


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser until the block ends; what it writes lies in the folder."""
    assert DRIVER is not None
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": str(folder)}
    with subprocess.Popen(
        [DRIVER, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as driver:
        assert driver.stdout is not None
        session = None
        try:
            port = next(
                int(found[1]) for line in driver.stdout if (found := re.search(r"successfully on port (\d+)", line))
            )
            session = Browser(port)
            yield session
        finally:
            if session is not None:
                session._call("DELETE", "")
            driver.terminate()
