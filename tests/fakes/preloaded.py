"""The tests' side of `forking`: commands in processes forked from one that has loaded torch already."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

SOURCE = Path(__file__).parent.parent.parent / "src"
# Other systems' libraries do not take a fork without a new program in it.
IS_POSSIBLE = sys.platform == "linux"
LONGEST_S = 300.0
Gpucheck = Callable[..., subprocess.CompletedProcess[str]]


class Preloaded:
    """The process that has loaded torch, and forks for each command."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": str(SOURCE), "CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": ""}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("forking.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )

    def python(self, *argv: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
        """Run `python ARGV…` in `cwd`, with `more` in its environment."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        with tempfile.TemporaryDirectory() as folder:
            prints = Path(folder, "stdout"), Path(folder, "stderr")
            asked = {"argv": argv, "prints": list(map(str, prints)), "cwd": str(cwd), "env": {**os.environ, **more}}
            stdin.write(json.dumps(asked).encode() + b"\n")
            stdin.flush()
            if not select.select([stdout], [], [], LONGEST_S)[0]:
                os.killpg(self._process.pid, signal.SIGKILL)
                raise TimeoutError(f"{argv} did not end within {LONGEST_S:g} s")
            code = int(stdout.readline())
            out, err = (path.read_text() for path in prints)
        return subprocess.CompletedProcess(argv, code, out, err)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()
