"""Every command for real on the CPU, small, as users start it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli import app as app_module

# What needs a document of an earlier run is given one of this command.
COMMAND = [sys.executable, "-m", "gpucheck"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ("bench", "transfer", "--size", "64parsec"),
            "--size must be a size from 64B to 32TiB, not '64parsec'; write it like 64MiB",
        ),
        (("bench", "transfer", "--size", "1000TiB"), "--size must be a size from 64B to 32TiB, not '1000TiB'"),
        (("bench", "transfer", "--direction", "sideways"), "--direction 'sideways' is unknown"),
        (("bench", "matmul", "--device", "cpu", "--size", "9000000"), "does not fit: its matrices, "),
        (("bench", "matmul", "--dtype", "float33"), "--dtype 'float33' is unknown"),
        (("smoke", "--only", "tensor_"), "matches no check; gpucheck smoke --only tensors"),
        (("smoke", "--require", "cud"), "gpucheck smoke --require cuda"),
        (("doctor", "--only", "torch_"), "--only 'torch_' matches no condition; gpucheck doctor --only torch"),
        (("doctor", "--require", "cud"), "gpucheck doctor --require cuda"),
        (("doctor", "--python", "/no/such/python"), "--python /no/such/python cannot be started"),
        (("find-batch-size", "nowhere.py:make"), "the target's file nowhere.py does not exist"),
        (("find-batch-size", f"{'x' * 300}.py:make"), "xxx.py does not exist"),
        (("model", f"{'x' * 300}.py:make"), "xxx.py does not exist"),
        (("smoke", "--python", "/no/such/python"), "--python /no/such/python cannot be started"),
        (("bench", "matmul", "--python", "/bin/echo"), "--python /bin/echo is not a Python interpreter"),
        (("memory", "--python", "/bin"), "--python /bin cannot be started"),
        (("doctor", "--python", "x" * 300), "xxx cannot be started"),
        (("find-batch-size", "mlp", "--input", "x"), "--input 'x' is not understood"),
        (("model",), "missing argument TARGET"),
        (
            ("run", "--dry", "train.py"),
            "'train.py' is the value of --dry cuda[:SIZE|:NAME]; put SCRIPT [ARGS]... after it",
        ),
        (("model", "nowhere.py:make"), "the target's file nowhere.py does not exist"),
        (("model", "mlp", "--input", "x"), "--input 'x' is not understood"),
        (("model", "mlp", "--input", "x:seq:float32"), "--input x names a dimension 'seq'; give its length"),
        (("model", "mlp", "--depth", "0"), "--depth must be an integer from 1 to"),
        (("model", "mlp", "--dtype", "int8"), "--dtype 'int8' is unknown"),
        (("model", "mlp", "--amp", "bfloat16", "--dtype", "float16"), "--amp bfloat16 and --dtype float16 exclude"),
        (
            ("find-batch-size", "mlp", "--max-batch-size", "-3"),
            "--max-batch-size must be an integer from 1 to 2147483647, not '-3'",
        ),
        (
            ("find-batch-size", "mlp", "--memory-limit", "lots"),
            "--memory-limit must be a size, a percentage or leave:SIZE, not 'lots'",
        ),
        (
            ("find-batch-size", "mlp", "--tolerance", "0.02"),
            "--tolerance must be a percentage, not '0.02': it looks like a fraction; gpucheck find-batch-size mlp "
            "--tolerance 2%",
        ),
        (("find-batch-size", "mlp", "--exact", "--tolerance", "2%"), "--exact and --tolerance exclude each other"),
        (("find-batch-size", "mlp", "--avoid-oom", "--exact"), "--exact and --avoid-oom exclude each other"),
        (("find-batch-size", "mlp", "--multiple-of", "0"), "--multiple-of must be an integer from 1 to"),
        (("find-batch-size", "mlp", "--start", "0"), "--start must be an integer from 1 to"),
    ],
)
def test_bad_input_is_one_sentence(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app_module.main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert words in sentence(captured.err)
    assert captured.out == "" and "Traceback" not in captured.err


def started(*arguments: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen([*COMMAND, *arguments], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, **more)


@pytest.mark.skipif(os.name != "posix", reason="SIGPIPE is POSIX's")
def test_a_reader_that_goes_away_is_no_traceback() -> None:
    process = started("schema", stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_sentence() -> None:
    with open("/dev/full", "w", encoding="utf-8") as full:
        process = started("devices", "--json", stdout=full)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 3
    assert sentence(err) == "stdout cannot be written; No space left on device; free disk space and run it again"


def in_a_removed_folder(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    gone = folder / "gone"
    gone.mkdir()
    remove = f"import os, sys; os.rmdir({str(gone)!r}); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", remove, *COMMAND, *arguments]
    return subprocess.run(command, cwd=gone, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in use can be removed on Linux")
@pytest.mark.parametrize("arguments", [("doctor", "--skip", "load"), ("smoke",), ("model", "mlp"), ()])
def test_a_removed_current_folder_is_no_broken_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = in_a_removed_folder(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (3, "")
    assert sentence(done.stderr) == "the current folder is gone; No such file or directory; cd to one that exists"


@pytest.mark.skipif(sys.platform != "linux", reason="a folder in use can be removed on Linux")
def test_what_loads_no_torch_needs_no_current_folder(tmp_path: Path) -> None:
    done = in_a_removed_folder(tmp_path, "explain", "oom.cuda")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
def test_a_watch_keeps_a_lost_card_and_tells_when_it_read(fake_driver: Callable[..., Path]) -> None:
    """For real: the driver loses a card between two readings."""
    script = fake_driver("nvml.count=8\ncuda.order=0,1,2,3,4,5,6,7\nutilization=100\nclock_reasons=0\nsm_clock=1980\n")
    process = started("devices", "--watch", "0.3s", stdout=subprocess.PIPE, env={**os.environ, "COLUMNS": "40"})
    assert process.stdout is not None
    first = process.stdout.readline()
    assert re.fullmatch(r"\d\d:\d\d:\d\d, next \d\d:\d\d:\d\d \(every 0\.3 s\)\n", first), first
    # In one go: half a script is another machine.
    (script.parent / "next").write_text("3.handle=!15\n" + script.read_text())
    (script.parent / "next").replace(script)
    while not (line := process.stdout.readline()).startswith("✗ cuda:3  lost"):
        assert process.poll() is None
    shown = [line] + [process.stdout.readline() for _ in range(20)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    rows = [line for line in shown if re.match(r" \d ", line)]
    assert len(rows) == 8 and rows[3].split()[:7] == ["3", "–", "–", "–", "–", "✗", "lost"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_a_watch_and_says_how(number: int, code: int) -> None:
    process = started("devices", "--watch", "0.2s", stdout=subprocess.PIPE)
    assert process.stdout is not None
    while "Python" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code and "Traceback" not in err
