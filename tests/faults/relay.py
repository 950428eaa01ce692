"""Stands between a child and its parent, and breaks off after so many lines of the child's, as `HOW` says.

It leaves a file in FOLDER as it does: python relay.py HOW LINES FOLDER PROGRAM…
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

how, lines, folder, *argv = sys.argv[1:]
out = sys.stdout.buffer


def started() -> tuple[IO[bytes], Callable[[], int]]:
    """The child's output, and what waits for its end. One that loads torch is forked, where this process was too."""
    if "torch" not in sys.modules:
        child = subprocess.Popen(argv, stdout=subprocess.PIPE)
        assert child.stdout is not None
        return child.stdout, child.wait
    from __main__ import become

    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(write, 1)
        os.closerange(read, write + 1)
        become(argv)
    os.close(write)
    return os.fdopen(read, "rb"), lambda: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


said, wait = started()
for number, line in enumerate(said):
    if number >= int(lines):
        with open(os.path.join(folder, str(os.getpid())), "w"):
            pass
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "hang":
            time.sleep(3600)
        if how == "half a line":
            out.write(line[: len(line) // 2])
            out.flush()
        if how in ("half a line", "exit"):
            # Its own child goes with its group, as that of a process that dies.
            os._exit(0 if how == "half a line" else 3)
        line = b"\xff\x00 {not a word of it\n"
    out.write(line)
    out.flush()
sys.exit(wait())
