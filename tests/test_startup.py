"""What must start at once loads no torch: neither the command nor any process that it starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import gpucheck
from gpucheck.machine import child, stack

ROOT = Path(__file__).parents[1]
# Python imports this by itself as it starts, in children too: it notes who imports torch.
WATCH = """
import os, sys

def watch(event, arguments, _open=os.open, _write=os.write):
    if event == "import" and arguments[0] == "torch":
        note = _open(os.environ["TORCH_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        _write(note, (" ".join(sys.orig_argv) + "\\n").encode())
        os.close(note)

sys.addaudithook(watch)
"""


def start(folder: Path, *command: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run `python …` under the watch; what ended, and the command lines that imported torch."""
    (folder / "sitecustomize.py").write_text(WATCH)
    notes = folder / "notes"
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    ended = subprocess.run(
        [sys.executable, *command],
        env={**os.environ, "PYTHONPATH": path, "TORCH_NOTES": str(notes)},
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return ended, notes.read_text() if notes.exists() else ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["bench", "--help"],
        ["find-batch-size", "--help"],
        ["schema"],
        ["lint", "--list"],
        ["explain", "CUDA out of memory"],
        ["compare", *2 * [str(ROOT / "benchmarks/results/nvidia-h200-2026-11-27/bench-transfer.json")]],
        pytest.param(
            ["devices", "--json"],
            marks=pytest.mark.skipif(
                not sys.platform.startswith("linux"), reason="elsewhere torch may be the only way to an accelerator"
            ),
        ),
    ],
    ids=" ".join,
)
def test_loads_no_torch(tmp_path: Path, arguments: list[str]) -> None:
    ended, importers = start(tmp_path, "-m", "gpucheck", *arguments)
    # A result of one run leaves a comparison inconclusive.
    assert (ended.returncode, importers) == (4 if arguments[0] == "compare" else 0, ""), ended.stderr
    assert ended.stdout


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a driver has other libraries")
@pytest.mark.parametrize("command", ["doctor", "status"])
def test_torch_is_asked_in_a_child_alone(tmp_path: Path, command: str) -> None:
    typed = [] if command == "status" else [command]  # the bare command
    ended, importers = start(tmp_path, "-m", "gpucheck", *typed, "--json")
    assert json.loads(ended.stdout)["command"] == command, ended.stderr
    # By the program that the diagnosed interpreter is given as its text, and in no process of gpucheck's own.
    assert stack.TORCH_PROGRAM.read_text(encoding="utf-8").splitlines()[0] in importers
    assert "-m gpucheck" not in importers and "gpucheck.machine" not in importers


def test_the_watch_sees_an_import_in_a_child(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'import torch'])"
    assert start(tmp_path, "-c", child)[1].endswith(" -c import torch\n")
    assert start(tmp_path, "-c", "import json")[1].count("\n") == 1  # the child's note alone: json imports no torch


@pytest.mark.parametrize(
    ("arguments", "packages"),
    [
        (["--help"], ""),
        (["bench", "--help"], "bench"),
        (["lint", "mistake.py"], "program render report"),
    ],
)
def test_a_command_loads_no_package_of_another(arguments: list[str], packages: str, tmp_path: Path) -> None:
    (tmp_path / "mistake.py").write_text("import torch\ntorch.ones(2).cuda()\n")
    code = "import sys; from gpucheck.cli.app import main; main(sys.argv[1:]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    loaded = {name.split(".")[1] for name in done.stderr.split() if name.startswith("gpucheck.")}
    folders = {path.name for path in Path(gpucheck.__file__).parent.iterdir() if (path / "__init__.py").exists()}
    # A start looks whether a device was lost, which is the machine's to know.
    assert loaded & folders == {"cli", "machine", *packages.split()}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere a driver has other libraries")
def test_devices_starts_two_processes_and_lays_out_itself_alone() -> None:
    code = """
import sys
started = []
sys.addaudithook(lambda event, arguments: started.append(arguments[1][-1]) if event == "subprocess.Popen" else None)
from gpucheck.cli.app import main
main(["devices"])
layouts = {f"gpucheck.render.{name}" for name in ("devices", "explain", "memory", "transfer", "ci")}
print(*[text.rpartition("import ")[2].partition(";")[0] for text in started], file=sys.stderr)
print(*sorted(layouts & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines()[-2:] == [
        "gpucheck.machine.nvml_read gpucheck.machine.cuda_driver",
        "gpucheck.render.devices",
    ]


@pytest.mark.skipif(os.name != "posix", reason="Windows keeps the current folder of a process")
def test_a_current_folder_that_was_deleted_is_no_traceback(tmp_path: Path) -> None:
    root = Path(gpucheck.__file__).parents[1]
    line = f"rmdir {tmp_path}/gone && PYTHONPATH={root} {sys.executable} -m gpucheck --version"
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(["sh", "-c", line], cwd=tmp_path / "gone", capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")


def devices_with(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `gpucheck devices` with a folder in front of the modules."""
    path = os.pathsep.join([str(folder), os.environ["PYTHONPATH"]])
    argv = [sys.executable, "-m", "gpucheck", "devices"]
    return subprocess.run(argv, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("name", ["psutil", "rich", "typer"])
def test_a_missing_dependency_is_no_bug_and_no_failed_check(name: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{name!r}] = None\n")
    ended = devices_with(tmp_path)
    assert (ended.returncode, ended.stdout) == (3, "")
    what, why, fix = ended.stderr.splitlines()
    assert what == f"error: {name}, which gpucheck needs, cannot be imported"
    assert why.startswith("cause: ") and fix == f"  fix: {sys.executable} -m pip install --force-reinstall {name}"


@pytest.mark.parametrize("reader", [child.NVML_READER, child.LIBCUDA_READER])
def test_what_reads_a_driver_starts_without_what_takes_as_long_as_the_rest(reader: str) -> None:
    """Every command that reads NVML starts such a process, and the user waits for it."""
    loads = f"import sys, gpucheck.errors, gpucheck.machine.device_lifetime, {reader}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True, check=True).stdout.split()
    assert reader in loaded and {"dataclasses", "inspect", "gpucheck.options", "torch"} & {*loaded} == set()
