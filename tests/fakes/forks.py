"""Children that begin with torch loaded, forked from one process that has it, in place of fresh interpreters (Linux).

Importing torch takes seconds of a processor, and few tests that start children ask anything of that. What is forked is
a child of this process like any other: with an id, a group, pipes and an end.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpucheck.machine import child

PROGRAM = Path(__file__).with_name("fork_server.py")
_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
# These load torch. What begins as another program is started as it is.
LOADS_TORCH = (
    *("gpucheck.batch_size.trial", "gpucheck.program.placement", "gpucheck.bench.collective.rank", "bad_rank"),
    *("gpucheck.bench.concurrent", "gpucheck.cli.app", "gpucheck.stress.device"),
    *("Probe torch in the diagnosed interpreter", "torch.distributed.run", "pinned.py"),
)


class Server:
    """The process that has torch loaded."""

    def __init__(self) -> None:
        self._asking, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, str(PROGRAM), str(theirs.fileno())]
        self._process = subprocess.Popen(
            argv, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
        )
        theirs.close()
        self._prctl = ctypes.CDLL(None).prctl
        self._lock = threading.Lock()
        self._asking.recv(32)  # nobody's time runs while it loads

    def fork(self, argv: Sequence[str], environment: Mapping[str, str], streams: Sequence[int]) -> int:
        """The process id of a new child of this process. Raises OSError where the server is gone."""
        asked = {"argv": list(argv), "environment": dict(environment), "folder": os.getcwd()}
        with self._lock:
            # No longer than it takes: what others leave behind is not for this process to wait for.
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
            try:
                socket.send_fds(self._asking, [json.dumps(asked).encode()], list(streams))
                return int(self._asking.recv(32) or b"0") or self._gone()
            finally:
                self._prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def _gone(self) -> int:
        raise OSError(f"the server of forks has ended with {self._process.wait(10.0)}")

    def close(self) -> None:
        self._asking.close()
        self._process.wait(60.0)


class Forked(subprocess.Popen[bytes]):
    """A child that is forked: as any other but for its start."""

    def __init__(
        self, server: Server, argv: Sequence[str], environment: Mapping[str, str], stdin: int = subprocess.DEVNULL
    ) -> None:
        self._server = server
        super().__init__(argv, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(environment))

    def _execute_child(self, *given: Any) -> None:
        theirs = [given[place] for place in (10, 13, 15)]  # the child's ends of stdin, stdout and stderr
        try:
            self.pid = self._server.fork(given[0], given[6], theirs)
            self._child_created = True
        finally:
            self._closed_child_pipe_fds = True
            for number in theirs:
                os.close(number)


def popen(server: Server) -> Callable[..., subprocess.Popen[bytes]]:
    """As `child._popen` starts a process, with those forked that load torch."""
    real = child._popen

    def start(argv: Sequence[str], env: Mapping[str, str] | None, *, wants_stdin: bool) -> subprocess.Popen[bytes]:
        if not any(word in text for text in argv for word in LOADS_TORCH):
            return real(argv, env, wants_stdin=wants_stdin)
        with child.signals_held():
            stdin = subprocess.PIPE if wants_stdin else subprocess.DEVNULL
            process = Forked(server, argv, os.environ if env is None else env, stdin)
            child._STARTED.add(process)
        return process

    return start


@pytest.fixture(scope="session")
def fork_server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def forked_children(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that load torch are forked, where the system can: elsewhere they begin as everywhere."""
    if sys.platform == "linux":
        monkeypatch.setattr(child, "_popen", popen(request.getfixturevalue("fork_server")))


@pytest.fixture
def run_forked(request: pytest.FixtureRequest) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`subprocess.run` for a program that loads torch and whose words are kept as text: forked where the system can."""
    if sys.platform != "linux":
        return subprocess.run
    server: Server = request.getfixturevalue("fork_server")

    def run(
        argv: Sequence[str], *, env: Mapping[str, str] = os.environ, timeout: float | None = None, **_: Any
    ) -> subprocess.CompletedProcess[str]:
        with Forked(server, argv, env) as process:
            try:
                out, err = process.communicate(timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(argv, process.returncode, out.decode(), err.decode())

    return run
