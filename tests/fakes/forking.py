"""Runs commands in processes forked from one that has loaded torch already: gpucheck, torchrun, and what they start.

What a command starts runs in a fork that was made before the command began, and waits: it has nothing of the command's
own process. A program reads the hook as Python reads it, and its import of torch is the one that calls it; only loading
takes no time. What differs from a fresh process: torch._dynamo is loaded (a dry run loads it at its start, the first
optimizer does otherwise), the interpreter's options are those of this process, and at its end nothing is freed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import itertools
import json
import os
import signal
import site
import socket
import subprocess
import sys
import traceback
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

SOURCE = str(Path(__file__).parent.parent.parent / "src")
# Modules that are run with `-m`, and how many processes each starts that are forked for it.
COMMANDS = {"gpucheck": 1, "torch.distributed.run": 3}
MODEL = "gpucheck.program.placement"
# How the program of this process has ended; empty until then, and where a signal ends it.
STATUS: list[int] = []


class Ready(SourceFileLoader):
    """A finder of torch where it is loaded already, once: its import runs none of torch's code."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__("torch", str(module.__file__))
        self.module, self.spec = module, module.__spec__

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name == "torch" and "torch" not in sys.modules else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def get_code(self, fullname: str) -> CodeType:
        assert self.spec is not None
        self.module.__spec__, self.module.__loader__ = self.spec, self.spec.loader
        sys.meta_path.remove(self)
        return compile("", "torch", "exec")


def load() -> None:
    """Load what the commands and a dry run load before the program's own lines, and then hide torch."""
    for name in ("cli.app", "cli.run", "cli.health", "program.run.command", "program.command", "program.placement"):
        importlib.import_module(f"gpucheck.{name}")
    for name in importlib.import_module("gpucheck.program.run.dry")._EARLY:
        importlib.import_module(name)
    importlib.import_module("gpucheck.work.target").import_compiler()
    sys.meta_path.insert(0, Ready(sys.modules.pop("torch")))
    gc.collect()
    gc.freeze()


def serve() -> dict[str, Any] | None:
    """Fork for each line and say how the fork ended; in the fork, return what the line asks for."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            asked = dict(json.loads(line))
            given = os.open(os.devnull, os.O_RDONLY)
            take((given, *(os.open(path, os.O_CREAT | os.O_WRONLY) for path in asked["prints"])))
            return asked
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return None


def take(streams: Iterable[int]) -> None:
    """Make these the standard streams."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        if stream > 2:
            os.close(stream)


def begin(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Run what is asked for. In a fork that something else is to run in, return what that is."""
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *BASE]
    argv = asked["argv"]
    if argv[0] != "-m" or argv[1] not in COMMANDS:
        run(argv)
        return None
    waiting: list[tuple[int, socket.socket]] = []
    for _ in range(COMMANDS[argv[1]]):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            for _, other in waiting:
                other.close()
            ours.close()
            return awaited(theirs)
        theirs.close()
        waiting.append((pid, ours))
    subprocess.Popen = forked(waiting)  # type: ignore[misc, assignment]
    code = 99
    try:
        module = importlib.import_module("gpucheck.cli.app" if argv[1] == "gpucheck" else argv[1])
        code = module.main(argv[2:])
    except SystemExit as ended:
        code = int(ended.code or 0)
    except Exception:  # noqa: BLE001 (of torchrun, where a rank failed)
        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def forked(waiting: list[tuple[int, socket.socket]]) -> type[subprocess.Popen[Any]]:
    """A `subprocess.Popen` that lets the forks that wait run commands, programs, and the child that loads a model."""

    class Forked(subprocess.Popen[Any]):
        def _execute_child(self, args: list[str], *rest: Any) -> None:
            # Options of the interpreter stand first, as -u and -B do where the environment has them.
            argv = list(itertools.dropwhile(lambda one: one == sys.executable or one in ("-u", "-B"), args))
            is_module = argv[0] in ("-c", "-m") and (argv[1] in COMMANDS or MODEL in argv[1])
            if not argv[0].endswith(".py") and not is_module:
                super()._execute_child(args, *rest)  # type: ignore[misc]
                return
            (cwd, env), ends = rest[4:6], rest[9:15]
            stdin, _, _, stdout, _, stderr = ends
            given = [number if end == -1 else end for number, end in enumerate((stdin, stdout, stderr))]
            self.pid, to = waiting.pop()
            self._child_created = True
            with to:
                socket.send_fds(to, [b"."], given)
                to.sendall(json.dumps({"argv": argv, "cwd": cwd or os.getcwd(), "env": env}).encode())
            self._close_pipe_fds(*ends)  # type: ignore[attr-defined]

    return Forked


def awaited(of: socket.socket) -> dict[str, Any]:
    """Wait in the fork for what it is to run. The fork leads its own process group, and ends with the command."""
    child._preparation(signal.pthread_sigmask(signal.SIG_BLOCK, ()), leads=True)()
    said, streams, *_ = socket.recv_fds(of, 1, 3)
    if not said:  # the command started nothing
        os._exit(0)
    take(streams)
    with of, of.makefile("rb") as lines:
        return dict(json.load(lines))


def run(argv: list[str]) -> None:
    """Do with the arguments `-c CODE …` or `FILE …` what Python does with them, and end this process as it would."""
    site.execsitecustomize()
    first, *arguments = argv
    sys.modules["__main__"] = main = ModuleType("__main__")
    if first == "-c":
        source, *arguments = arguments
        sys.path.insert(0, "")
        code = compile(source, "<string>", "exec")
    else:
        path = os.path.abspath(first)
        sys.path.insert(0, os.path.dirname(os.path.realpath(first)))
        loader = SourceFileLoader("__main__", path)
        vars(main).update(__file__=path, __loader__=loader, __cached__=None, __annotations__={})
        code = compile(Path(first).read_bytes(), path, "exec")
    sys.argv = [first, *arguments]
    try:
        exec(code, vars(main))
        STATUS.append(0)
    except SystemExit as ended:
        STATUS.append(ended.code if isinstance(ended.code, int) else int(ended.code is not None))
        raise
    except Exception as error:  # noqa: BLE001 (as Python itself does, which would show this file's lines as well)
        error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        sys.excepthook(type(error), error, error.__traceback__)
        STATUS.append(1)
        sys.exit(1)


def leave() -> None:
    """End when all of the program's own has ended: to free what torch has here takes as long as the program."""
    if STATUS:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(STATUS[-1])


if __name__ == "__main__":
    BASE = [one for one in sys.path[1:] if one != SOURCE]
    atexit.register(leave)  # the first is the last that runs
    load()
    from gpucheck.machine import child

    asked = serve()
    while asked is not None:
        asked = begin(asked)
