"""The commands of scripts/: each prepares what it needs, then becomes its command."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import contextmanager
from typing import Callable, Iterator, List, Mapping, Optional, Sequence

from .common import COULD_NOT_PREPARE, ENVIRONMENTS, INTERRUPTED, ROOT, TERMINATED, WINDOWS, Terminated, Trouble, say
from .interpreter import choose
from .layers import is_ready, layer_folder, layer_python
from .lock import locked, mark_in_use

# One more than there are processors, for tests that wait; more than four would not make the slowest file shorter.
# A worker that is lost to a test that hung is not replaced: the next one would run that test again.
WORKERS = min((os.cpu_count() or 1) + 1, 4)
IN_PARALLEL = ("-n", str(WORKERS), "--dist", "loadfile", "--max-worker-restart=0")
# Whoever waits reads first how long; by whether slow tests run too.
TAKES = {
    False: "the quick set of tests takes about 5 minutes on 2 cores (--all, every slow test too: about 13)",
    True: "all tests take about 13 minutes on 2 cores",
}
TYPED = ("src", "scripts", "tests", "benchmarks")
RUNNER = os.path.join(ROOT, "scripts", "bootstrap", "run_gpucheck.py")


def gpucheck(arguments: Sequence[str]) -> int:
    """scripts/gpucheck: the command, in the caller's folder."""
    return _guarded(lambda: become([prepare(os.environ, sys.executable), RUNNER, *arguments]))


def test(arguments: Sequence[str]) -> int:
    """scripts/test: the tests, some at a time, or what the arguments select, from the project's folder."""
    if set(arguments) <= {"--all"}:
        say(TAKES[bool(arguments)])
    return _guarded(lambda: become(_pytest(prepare(os.environ, sys.executable, dev=True), arguments), ROOT))


def check(arguments: Sequence[str]) -> int:
    """scripts/check, the gate: linter, format, types, tests; stops at the first that fails and names it.

    The arguments go to the tests. Types are checked beside them.
    """
    return _guarded(lambda: _check(prepare(os.environ, sys.executable, dev=True), arguments))


def _pytest(python: str, arguments: Sequence[str]) -> List[str]:
    # A debugger, or a number of processes that was asked for, goes first.
    alone = any(one in ("--pdb", "-s") or one.startswith(("-n", "--numprocesses")) for one in arguments)
    return [python, "-m", "pytest", "--durations=10", *(() if alone else IN_PARALLEL), *arguments]


def _check(python: str, arguments: Sequence[str]) -> int:
    import subprocess

    for name in ("ruff check", "ruff format --check"):
        print("== " + name, flush=True)
        code = subprocess.call([python, "-m", *name.split(), "."], cwd=ROOT)
        if code:
            return _failed(name, code)
    tests = " ".join(["scripts/test", *arguments])
    print("== {}; beside it mypy --strict".format(tests), flush=True)
    # Where nothing is kept of an earlier run, types take one processor a quarter of a minute.
    types = subprocess.Popen(
        [python, "-m", "mypy", "--strict", *TYPED], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    running = subprocess.Popen([sys.executable, os.path.join(ROOT, "scripts", "test"), *arguments], cwd=ROOT)
    try:
        said = types.communicate()[0].decode("utf-8", "replace")
        if types.returncode:
            running.send_signal(signal.SIGTERM if WINDOWS else signal.SIGINT)
        code = running.wait()
    finally:  # Ctrl-C may have reached this process alone
        for one in (types, running):
            one.terminate()
    print("== mypy --strict\n" + said, end="", flush=True)
    if types.returncode:
        return _failed("mypy --strict", types.returncode)
    if code:
        return _failed(tests, code)
    print("check: all passed", flush=True)
    return 0


def _failed(name: str, code: int) -> int:
    print("check: {} failed (exit {})".format(name, code), file=sys.stderr, flush=True)
    return 1


def prepare(environ: Mapping[str, str], running: str, dev: bool = False) -> str:
    """The Python of an environment that holds gpucheck, with `dev` its tests' tools too: at once where there is one,
    else made now. Trouble where that cannot be."""
    python = choose(environ, running)
    pyproject, constraints = _read("pyproject.toml"), _read("constraints.txt")
    base = layer_folder(python, pyproject, constraints)
    tools = layer_folder(python, pyproject, constraints, dev=True)
    layers = (base, tools) if dev else (base,)
    if not all(map(is_ready, layers)):
        from . import making

        with _stopping_cleanly(), locked(ENVIRONMENTS) as descriptors:
            world = making.World(constraints, dict(environ), descriptors)
            if not is_ready(base):
                making.make_base(base, python, pyproject, world)
            if dev and not is_ready(tools):
                making.make_dev(tools, base, python, pyproject, world)
            making.remove_old(python, keep=(base, tools))
    for layer in layers:
        mark_in_use(layer)
    return layer_python(layers[-1])


def become(command: Sequence[str], folder: Optional[str] = None) -> int:
    """Run the command in place of this process; where the system cannot do that, wait for it and return its code."""
    if folder:
        os.chdir(folder)
    sys.stdout.flush()
    sys.stderr.flush()
    if not WINDOWS:
        os.execv(command[0], list(command))
    import subprocess

    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:  # Ctrl-C reached the command too, and it decides how it ends
            continue


def _read(name: str) -> str:
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


@contextmanager
def _stopping_cleanly() -> Iterator[None]:
    """SIGTERM becomes an exception, so that what is half-made is removed."""

    def stop(number: int, frame: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _guarded(command: Callable[[], int]) -> int:
    try:
        return command()
    except Trouble as trouble:
        say(str(trouble))
        return trouble.code
    except OSError as error:
        say("preparing the environment failed: {}; mend that and start again.".format(error))
        return COULD_NOT_PREPARE
    except KeyboardInterrupt:
        say("stopped while preparing; the next start begins anew")
        return INTERRUPTED
    except Terminated:
        say("stopped while preparing; the next start begins anew")
        return TERMINATED
