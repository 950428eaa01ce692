"""A signal that comes as torch is imported is an interruption, never a broken torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from shown import sentence

pytestmark = [pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's"), pytest.mark.slow]

SOURCE = Path(__file__).parents[2] / "src"
# Python imports this by itself as it starts: the signal comes in the middle of torch's import, to the command alone.
SITE = """
import os, signal, sys
def watch(event, arguments):
    if event == "import" and arguments[0] == "torch.serialization":
        signal.raise_signal({number})
sys.addaudithook(watch)
"""
# What compiled code makes of an exception that a handler raises in it.
TORCH = """
import signal
try:
    signal.raise_signal({number})
    {more}
except KeyboardInterrupt:
    raise ImportError("initialization failed")
whole = True
"""
PROGRAM = """
import sys
from gpucheck.machine import installed_torch
try:
    installed_torch.load()
except BaseException as error:
    print(type(error).__name__, hasattr(sys.modules.get("torch"), "whole"))
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(SOURCE)))}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_in_the_first_seconds_is_an_interruption(
    tmp_path: Path, number: signal.Signals, code: int, word: str
) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE.format(number=int(number)))
    ended = run(tmp_path, "-m", "gpucheck", "smoke")
    # Where the import of torch takes long, the process ends at once, without a report.
    assert ended.returncode == code
    assert ended.stderr in (f"gpucheck: {word}\n", f"gpucheck: {word}: this is the report so far\n")
    # Nothing was read: nothing is said of what is not there.
    assert "no torch" not in ended.stdout and "no NVIDIA driver" not in ended.stdout


def test_a_second_signal_does_not_wait_for_the_import(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text(
        TORCH.format(number=int(signal.SIGINT), more=f"signal.raise_signal({int(signal.SIGINT)})")
    )
    ended = run(tmp_path, "-c", PROGRAM)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "gpucheck: interrupted\n")


def test_a_torch_that_cannot_be_imported_is_no_bug_of_ours(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')\n")
    ended = run(tmp_path, "-m", "gpucheck", "smoke")
    assert ended.returncode == 3
    assert sentence(ended.stderr) == (
        "torch cannot be imported; libcudart.so.12: cannot open shared object file; see `gpucheck doctor`"
    )
