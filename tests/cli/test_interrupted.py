"""Ctrl-C before the first command and after the last one: 130, and not a word of Python's."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")

# Sends this process SIGINT as the module `NAME` is looked for, then goes on looking.
IMPORTING = """
    import importlib.abc, os, signal, sys

    class Interrupting(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name == NAME:
                os.kill(os.getpid(), signal.SIGINT)

    sys.meta_path.insert(0, Interrupting())
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["gpucheck.cli", "gpucheck.cli.app", "typer", "gpucheck.units", "gpucheck.cli.parse"])
def test_while_it_is_imported(name: str) -> None:
    run = "sys.argv = ['gpucheck', '--version']; from gpucheck.__main__ import main; sys.exit(main())"
    done = ended(f"NAME = {name!r}" + IMPORTING.replace("\n    ", "\n") + run)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_while_python_ends() -> None:
    run = """
        import atexit, os, signal, sys
        sys.argv = ["gpucheck", "--version"]
        from gpucheck.__main__ import main
        atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
        sys.exit(main())
    """
    done = ended(run)
    assert (done.returncode, done.stderr) == (130, "") and done.stdout.startswith("gpucheck ")


@pytest.mark.parametrize("name", ["signal", "enum", "gpucheck.cli"])
def test_by_its_very_first_imports(name: str) -> None:
    """`import signal`, which imports others, would be interrupted with a traceback."""
    run = """for name in ("signal", "enum"):
        sys.modules.pop(name, None)
    import runpy
    sys.argv = ["gpucheck", "--version"]
    runpy.run_module("gpucheck", run_name="__main__")
    """
    done = ended(f"NAME = {name!r}" + (IMPORTING + run).replace("\n    ", "\n"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_where_python_ignores_what_a_handler_raises_it_is_raised_again(number: str, status: int) -> None:
    run = f"""
        import os, signal, sys, threading

        class Ignored:
            def __del__(self):
                os.kill(os.getpid(), signal.{number})
                os.getpid()

        from gpucheck.__main__ import main
        from gpucheck.devices import command

        def reads(*given, **more):
            Ignored()
            threading.Event().wait(60)

        command.command = reads
        sys.argv = ["gpucheck", "devices", "--quiet"]
        sys.exit(main())
    """
    done = ended(run)
    assert done.returncode == status and "Traceback" not in done.stderr


@pytest.mark.parametrize("patience", ["0.01", "None"])
def test_while_torch_is_imported_it_is_waited_for_only_so_long(patience: str) -> None:
    """Without patience, as in a notebook, the import ends and Ctrl-C raises then."""
    run = f"""
        import os, signal, threading
        from gpucheck.machine import child
        with child.signals_held(second_ends=True, patience_s={patience}):
            os.kill(os.getpid(), signal.SIGINT)
            if {patience}:
                threading.Event().wait()
            print("imported")
    """
    done = ended(run)
    if patience == "None":
        assert done.stdout == "imported\n" and "KeyboardInterrupt" in done.stderr
    else:
        assert (done.returncode, done.stdout, done.stderr) == (130, "", "gpucheck: interrupted\n")


def test_a_process_that_ends_at_once_leaves_no_temporary_file(tmp_path: Path) -> None:
    run = f"""
        import os, signal, threading
        from gpucheck.cli.outputs import Outputs
        from gpucheck.machine import child
        files = Outputs([{str(tmp_path / "out.json")!r}])
        print(len(os.listdir({str(tmp_path)!r})), flush=True)
        with child.signals_held(second_ends=True, patience_s=0.01):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait()
    """
    done = ended(run)
    assert (done.returncode, done.stdout, list(tmp_path.iterdir())) == (130, "1\n", [])


@pytest.mark.parametrize("loaded", [False, True])
def test_one_that_has_loaded_torch_leaves_at_once_with_all_that_it_printed(loaded: bool) -> None:
    run = f"""
        import atexit, sys, types
        if {loaded}:
            sys.modules["torch"] = types.ModuleType("torch")
        atexit.register(print, "Python has ended")
        sys.argv = ["gpucheck", "--version"]
        from gpucheck.__main__ import main
        sys.exit(main())
    """
    done = ended(run)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("gpucheck ")
    assert ("Python has ended" in done.stdout) is not loaded
