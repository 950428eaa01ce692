"""Whatever ends a search, nothing of it stays: the real command and its real children, on Linux.

Each case waits for what the command says or writes, then sends a signal. None asserts a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

pytestmark = [pytest.mark.skipif(sys.platform != "linux", reason="limits and signals of Linux"), pytest.mark.slow]

SOURCE = Path(__file__).parents[2] / "src"
# All processes of a search carry it in their environment.
MARKER = "LEFT_BEHIND"
# A child imports torch, on a loaded machine for a minute; a test that waits for longer has failed.
PATIENCE_S = 150.0
# Some sizes to search, and none that takes long.
LARGEST = 16
TRIALS = "gpucheck.batch_size.trial;"
# A shell ignores SIGINT for what it runs in the background, these tests perhaps.
_BOOT = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from gpucheck.cli.app import main
sys.exit(main())
"""


class Search:
    """`gpucheck find-batch-size mlp --json`, with folders of its own and a marker on its processes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.work, self.temporary = folder / "work", folder / "tmp"
        self.work.mkdir(exist_ok=True)
        self.temporary.mkdir(exist_ok=True)
        self.mark = uuid.uuid4().hex
        arguments = ["find-batch-size", "mlp", "--device", "cpu", "--json"]
        arguments += ["--memory-limit", "256MiB", "--max-batch-size", str(LARGEST), "--time-budget", "5m", *options]
        environment = {
            **os.environ,
            MARKER: self.mark,
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(SOURCE),
            "PYTHONDONTWRITEBYTECODE": "1",
            # On a loaded machine two threads that wait for each other take many times one's time.
            "OMP_NUM_THREADS": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *arguments],
            cwd=self.work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.said: list[str] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._out: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)

    def _read(self) -> None:
        assert self.process.stdout is not None
        self._out.append(self.process.stdout.read())

    def wait_for(self, what: Callable[[], Any]) -> Any:
        """What `what` returns, once that is true; fails where the command ends before, or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not (found := what()):
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.words}"
            assert time.monotonic() < deadline, f"waited too long: {self.words}"
            time.sleep(0.01)
        return found

    @property
    def words(self) -> str:
        return "".join(self.said)

    def says(self, words: str) -> bool:
        return any(words in line for line in list(self.said))

    def processes(self) -> list[psutil.Process]:
        """Every living process of this search."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARKER) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def child(self, module: str, but: int | None = None) -> psutil.Process | None:
        """The child that runs `module`, if there is one; with `but`, another than that."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if module in " ".join(process.cmdline()) and process.pid != but:
                    return process
        return None

    def end(self) -> tuple[int, str]:
        """Exit status and stdout; nothing is left of the search."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._listener.join(PATIENCE_S)
        deadline = time.monotonic() + (PATIENCE_S if status == -signal.SIGKILL else 0)
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert left == []
        assert [path.name for path in self.temporary.iterdir()] == []
        assert [path.name for path in self.work.iterdir()] == []
        assert "Traceback" not in self.words
        return status, self._out[0]

    def answer(self) -> tuple[int, dict[str, Any], dict[str, Any]]:
        """Exit status, `results.find_batch_size` and the summary of the report."""
        status, out = self.end()
        report = json.loads(out)
        return status, report["results"]["find_batch_size"], report["summary"]


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Callable[..., Search]]:
    started: list[Search] = []

    def start(*options: str) -> Search:
        started.append(Search(tmp_path, *options))
        return started[-1]

    yield start
    for one in started:
        for process in one.processes():  # of a test that failed
            with contextlib.suppress(psutil.Error):
                process.kill()
        one.process.wait()


Moment = Callable[[Search], Any]
MOMENTS: dict[str, Moment] = {
    "while the first child starts": lambda s: s.child(TRIALS),
    "in a trial": lambda s: s.says("best so far"),  # the second: the first has passed
}


@pytest.mark.parametrize(
    ("number", "status", "moment"),
    [
        (signal.SIGINT, 130, "while the first child starts"),
        (signal.SIGTERM, 143, "in a trial"),
    ],
)
def test_a_signal_leaves_the_report_so_far(
    number: signal.Signals, status: int, moment: str, search: Callable[..., Search]
) -> None:
    running = search()
    running.wait_for(lambda: MOMENTS[moment](running))
    running.process.send_signal(number)
    code, found, summary = running.answer()
    assert code == status
    assert (summary["exit"], summary["complete"]) == (status, False)
    assert running.says("this is the report so far")
    assert found["confirmed"] is False
    if moment == "while the first child starts":
        assert (found["max_batch_size"], found["at_least"], found["trials"]) == (None, None, [])
    else:  # what is larger was not found out
        assert found["max_batch_size"] is None
        assert found["at_least"] >= 1


def test_children_that_are_killed_cost_time_and_not_the_answer(search: Callable[..., Search]) -> None:
    """The first child for trials at its start, and the one that is to confirm."""
    running = search("--quick")
    first = running.wait_for(lambda: running.child(TRIALS))
    first.kill()
    second = running.wait_for(lambda: running.child(TRIALS, but=first.pid))
    running.wait_for(lambda: running.says("best so far"))
    running.wait_for(lambda: running.child(TRIALS, but=second.pid)).kill()
    code, found, _ = running.answer()
    assert (code, found["confirmed"], found["at_least"]) == (0, True, LARGEST)
    assert {trial["outcome"] for trial in found["trials"]} == {"fits"}


@pytest.mark.parametrize("moment", ["in a trial"])
def test_children_end_by_themselves_where_the_command_is_killed(moment: str, search: Callable[..., Search]) -> None:
    running = search()
    running.wait_for(lambda: MOMENTS[moment](running))
    running.process.kill()
    assert running.end() == (-signal.SIGKILL, "")
