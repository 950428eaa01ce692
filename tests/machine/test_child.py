from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from gpucheck.machine import child

PYTHON = sys.executable
SOURCE = Path(__file__).resolve().parents[2] / "src"
ECHO = "import sys\nfor line in sys.stdin: print(line.strip().upper(), flush=True)"


def test_a_child_that_ends_by_itself() -> None:
    result = child.run([PYTHON, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], 20)
    assert (result.returncode, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert not result.timed_out and not result.abandoned


def test_a_child_reads_its_input() -> None:
    result = child.run([PYTHON, "-c", "import sys; print(len(sys.stdin.read()))"], 20, stdin="x" * 300_000)
    assert result.stdout == "300000\n"


def test_a_child_that_does_not_end_is_killed() -> None:
    result = child.run([PYTHON, "-c", "import time; print('begun', flush=True); time.sleep(60)"], 1.0)
    assert result.timed_out and not result.abandoned
    assert result.stdout == "begun\n"
    assert result.elapsed_s < 30


@pytest.mark.slow
@pytest.mark.parametrize("closed", [False, True], ids=["its output open", "its output closed"])
def test_another_thread_may_cut_the_wait_for_a_child(closed: bool) -> None:
    """By what was learned meanwhile: the limit of a minute is not awaited."""
    cut = child.Cut()
    closing = "os.close(1); os.close(2);" if closed else ""
    program = f"import os, time; print('begun', flush=True); {closing} time.sleep(600)"
    threading.Timer(1.0, cut.after, (0.2, "pointless")).start()
    result = child.run([PYTHON, "-c", program], 600.0, cut=cut)
    assert (result.timed_out, result.stdout, cut.reason) == (True, "begun\n", "pointless")


@pytest.mark.skipif(os.name != "posix", reason="process groups are POSIX's")
def test_a_grandchild_that_holds_the_pipe_neither_delays_nor_survives() -> None:
    code = "import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)']).pid)"
    result = child.run([PYTHON, "-c", code], 30)
    assert result.returncode == 0 and not result.timed_out
    assert result.elapsed_s < 20
    deadline = time.monotonic() + 5
    while _runs(int(result.stdout)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _runs(int(result.stdout))


def _runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("start", [lambda argv: child.run(argv, 30), child.LineChild])
def test_a_signal_while_a_child_starts_ends_it(
    start: Callable[[list[str]], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started = subprocess.Popen, []

    def interrupted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **options))
        signal.raise_signal(signal.SIGINT)  # the id is not known to anybody yet
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(KeyboardInterrupt):
        start([PYTHON, "-c", "import time; time.sleep(600)"])
    assert len(started) == 1
    assert started[0].poll() is not None
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_child_for_which_there_is_no_thread_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    real, started = subprocess.Popen, []

    def noted(*args: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(real(*args, **options))
        return started[-1]

    def refused(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        child.LineChild([PYTHON, "-c", "import time; time.sleep(600)"])
    assert len(started) == 1
    assert started[0].poll() is not None


def test_a_child_whose_wait_never_returns_is_abandoned_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    real_wait = subprocess.Popen.wait

    def stuck(self: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        raise subprocess.TimeoutExpired(self.args, timeout or 0)

    monkeypatch.setattr(subprocess.Popen, "wait", stuck)
    monkeypatch.setattr(subprocess.Popen, "poll", lambda self: None)
    result = child.run([PYTHON, "-c", "import time; time.sleep(60)"], 0.3)
    assert result.abandoned and result.timed_out and result.returncode is None
    monkeypatch.setattr(subprocess.Popen, "wait", real_wait)


def test_a_stray_module_in_the_current_folder_does_not_break_a_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    code = child.python_argv("gpucheck.errors")
    code[2] = code[2].replace("sys.exit(gpucheck.errors.main())", "import json; print('clean')")
    result = child.run(code, 20)
    assert result.stdout == "clean\n", result.stderr


def test_a_child_collects_nothing_of_what_was_loaded_and_all_of_what_comes_later() -> None:
    code = child.python_argv("gpucheck.errors")
    code[2] = code[2].replace("sys.exit(gpucheck.errors.main())", "print(gc.isenabled(), gc.get_freeze_count() > 1000)")
    result = child.run(code, 20)
    assert result.stdout == "True True\n", result.stderr


def test_no_pipe_of_a_child_stays_open() -> None:
    """Python warns of each on stderr where warnings are errors."""
    program = """
from gpucheck.machine import child
from gpucheck.machine.child import LineChild, Lost
import sys
child.run([sys.executable, "-c", "print(1)"], 30)
child.run([sys.executable, "-c", "pass"], 30, stdin="x" * 10**6)
child.run([sys.executable, "-c", "import time; time.sleep(60)"], 0.2, stdin="x" * 10**6)
one = LineChild([sys.executable, "-c", "input()"])
one.kill()
one.kill()
dying = LineChild([sys.executable, "-c", "pass"])
for ask in (lambda: dying.receive(30), lambda: dying.send("x"), lambda: dying.receive(1)):
    try:
        ask()
    except Lost as lost:
        print(lost.ending.status)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "error", "PYTHONPATH": str(SOURCE)},
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.splitlines() == ["0", "0", "0"]


def test_a_long_lived_child_answers_line_for_line() -> None:
    process = child.LineChild([PYTHON, "-c", ECHO])
    for word in ("one", "two"):
        process.send(word)
        assert process.receive(20) == word.upper()
    assert process.receive(0.01) is None
    assert process.kill() and not _runs(process.pid)


def test_children_that_wait_are_taken_once_and_those_left_are_ended() -> None:
    with child.PreloadedChildren(child.NVML_READER, child.LIBCUDA_READER) as ahead:
        waiting = {name: one.pid for name, one in ahead._preloaded.items()}
        taken = ahead.start(child.NVML_READER)
        another = ahead.start(child.NVML_READER)
        assert (taken.pid, another.pid != taken.pid) == (waiting[child.NVML_READER], True)
        assert psutil.pid_exists(waiting[child.LIBCUDA_READER])
    assert not psutil.pid_exists(waiting[child.LIBCUDA_READER])
    for one in (taken, another):  # who took one ends it
        assert _runs(one.pid) and one.kill()


def test_another_python_gets_gpucheck_and_nothing_of_what_lies_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("gpucheck", "torch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(child, "ROOT", tmp_path)
    with child.own_folder() as folder:
        assert [path.name for path in folder.iterdir()] == ["gpucheck"] and (folder / "gpucheck/__init__.py").exists()
        assert child.python_argv("x", root=folder, python="/other")[::2] == [
            "/other",
            child._BOOT.format(root=str(folder), module="x"),
        ]
    assert not folder.exists()
    (tmp_path / "torch/__init__.py").unlink()
    (tmp_path / "torch").rmdir()
    with child.own_folder() as folder:
        assert folder == tmp_path
