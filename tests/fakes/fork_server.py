"""A process that has loaded torch and becomes what it is asked for: `python fork_server.py SOCKET` (Linux).

One message in for each child: a line of JSON, with its stdin, stdout and stderr. One out: its process id. It is forked
twice, and the process between is gone by then: the child is the subreaper's, which is whoever asks (forks.py).
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import signal
import socket
import sys
from typing import Any, NoReturn

LONGEST = 2**20
# What Python finds without PYTHONPATH, and without this file's folder.
_GIVEN = os.environ.get("PYTHONPATH", "").split(os.pathsep)
_FOUND = [folder for folder in sys.path[1:] if folder not in _GIVEN]


def become(argv: list[str]) -> NoReturn:
    """Do what a fresh interpreter with this command line does, to the end of this process.

    That of a program and of a module is Python's own, of -c a shorter one.
    """
    path = os.environ.get("PYTHONPATH")
    found = [*(path.split(os.pathsep) if path else ()), *_FOUND]
    if argv[1] == "-c":
        sys.argv, sys.path[:] = ["-c", *argv[3:]], ["", *found]
        try:
            exec(compile(argv[2], "<forked>", "exec"), {"__name__": "__main__"})
        except SystemExit as ended:
            end(ended.code)
        end(0)
    sys.argv = argv[2:] if argv[1] in ("-S", "-m") else argv[1:]
    if argv[1] == "-m":
        sys.path[:] = [os.getcwd(), *found]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        sys.exit()
    sys.path[:] = [os.path.dirname(sys.argv[0]), *found]
    with open(sys.argv[0], encoding="utf-8") as file:
        exec(compile(file.read(), sys.argv[0], "exec"), {"__name__": "__main__", "__file__": sys.argv[0]})
    sys.exit()


def end(code: object) -> NoReturn:
    """End as Python does with what `sys.exit` was given, but for clearing up torch's modules, which takes as long."""
    if isinstance(code, str):
        sys.stderr.write(f"{code}\n")
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody may read it any more
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def start(asked: dict[str, Any], streams: list[int]) -> None:
    """In the new process: leave what is the server's, and begin."""
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, 256)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    become(asked["argv"])


def serve(asking: socket.socket) -> None:
    """Fork for each message, until nobody asks any more. First word that it is ready."""
    asking.send(b"ready")
    while True:
        message, streams, _, _ = socket.recv_fds(asking, LONGEST, 3)
        if not message:
            return
        heard, told = os.pipe()
        between = os.fork()
        if between == 0:
            child = os.fork()
            if child == 0:
                start(json.loads(message), streams)
            os.write(told, str(child).encode())
            os._exit(0)
        os.waitpid(between, 0)
        asking.send(os.read(heard, 32))
        for number in (heard, told, *streams):
            os.close(number)


if __name__ == "__main__":
    import torch._dynamo  # noqa: F401 - with all of torch; what makes an optimizer or fake tensors loads it

    gc.freeze()  # no child looks for garbage in what is here already
    serve(socket.socket(fileno=int(sys.argv[1])))
    os._exit(0)  # clearing up takes long, and nobody waits for anything of it
