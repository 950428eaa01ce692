"""What needs no Linux interface works without one: `resource`, `fcntl`, /proc and /sys are blocked here."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

# In a child, before anything of gpucheck is imported: as on macOS or Windows, as far as this can be shown on Linux.
WITHOUT_LINUX = """
import builtins, importlib.abc, io, json, os, pkgutil, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in ("resource", "fcntl"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None

import psutil  # reads /proc here; elsewhere it asks the system in another way
import torch  # and so does torch's OpenMP

assert not any(name.partition(".")[0] == "gpucheck" for name in sys.modules)
sys.meta_path.insert(0, Missing())
for name in ("resource", "fcntl"):
    sys.modules.pop(name, None)
real_open = io.open

def guarded(file, *args, **kwargs):
    frame = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(("psutil", "torch")):
            return real_open(file, *args, **kwargs)
        if module.startswith("gpucheck"):
            break
        frame = frame.f_back
    if str(file).startswith(("/proc", "/sys")):
        raise FileNotFoundError(2, "No such file or directory", str(file))
    return real_open(file, *args, **kwargs)

io.open = builtins.open = guarded

import gpucheck
modules = [found.name for found in pkgutil.walk_packages(gpucheck.__path__, "gpucheck.")]
for name in modules:
    if not name.endswith("__main__"):
        __import__(name)
from gpucheck.cli.app import main

codes = {}
for arguments in (("devices",), ("memory",), ("smoke", "--only", "tensors."),
                  ("bench", "matmul", "--size", "32", "--dtype", "float32", "--time-budget", "0.2s")):
    sys.stdout = io.StringIO()
    code = main([*arguments, "--device", "cpu", "--json", "--quiet"])
    text, sys.stdout = sys.stdout.getvalue(), sys.__stdout__
    codes[" ".join(arguments[:2])] = [code, json.loads(text)["summary"]["verdict"]]
print(json.dumps([len(modules), codes]))
"""


def test_everything_imports_and_the_commands_work(
    run_forked: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_forked([sys.executable, "-c", WITHOUT_LINUX], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    count, codes = json.loads(done.stdout.splitlines()[-1])
    assert count > 50
    assert set(codes) == {"devices", "memory", "smoke --only", "bench matmul"}
    for code, verdict in codes.values():
        # A warning says that other processes took the CPU while it was measured.
        assert code == 0 and verdict in ("pass", "warn")
