from __future__ import annotations

import errno
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from shown import sentence

from gpucheck.cli import app as app_module
from gpucheck.cli import outputs, session
from gpucheck.cli.commands import Common
from gpucheck.errors import CannotLook, TargetError, Terminated, Undecided, Unprinted, UsageError
from gpucheck.machine import device_lifetime, watchdog
from gpucheck.report.events import Answered, Emit, Finished, Judged, Notice, Progress, Started
from gpucheck.report.facts import Device, Facts
from gpucheck.report.finding import Finding
from gpucheck.report.results.short import ExplainResult

FACTS = Facts(devices=(Device(kind="cpu", id="cpu", name="EPYC"),))


def passes(emit: Emit) -> None:
    emit(Started(FACTS))
    emit(Judged(Finding("a.check", "pass", "it works")))


def smoke(**more: object) -> Common:
    return Common("smoke", **more)  # type: ignore[arg-type]


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    return dict(json.loads(capsys.readouterr().out))


def test_the_document_is_all_that_stands_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    def work(emit: Emit) -> None:
        passes(emit)
        emit(Progress("measuring"))
        emit(Notice("working on the CPU"))

    assert session.run(smoke(json=True), work) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["summary"] == {"verdict": "pass", "exit": 0, "complete": True}
    assert json.loads(captured.out)["notices"] == ["working on the CPU"]
    assert captured.err == "measuring\ngpucheck: working on the CPU\n"


@pytest.mark.parametrize(
    ("error", "code", "verdict"),
    [
        (CannotLook("no GPU", "none here", finding="device.usable"), 3, "skip"),
        (Undecided("out of time", finding="time"), 4, "inconclusive"),
    ],
)
def test_an_error_ends_in_a_document_too(
    error: CannotLook, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def work(emit: Emit) -> None:
        raise error

    assert session.run(smoke(json=True), work) == code
    found = document(capsys)
    assert found["summary"] == {"verdict": verdict, "exit": code, "complete": True}
    assert found["findings"][0]["id"] == error.finding


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_gives_the_report_so_far(number: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    def work(emit: Emit) -> None:
        passes(emit)
        signal.raise_signal(number)
        emit(Judged(Finding("never", "fail", "not reached")))

    assert session.run(smoke(json=True), work) == code
    found = document(capsys)
    assert found["summary"] == {"verdict": "inconclusive", "exit": code, "complete": False}
    assert [finding["id"] for finding in found["findings"]] == ["a.check"]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no alarm")
def test_out_of_time_in_what_nothing_may_interrupt_ends_the_process_with_the_report(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, said = list[int](), list[dict[str, Any]]()
    monkeypatch.setattr(device_lifetime, "leave", left.append)
    monkeypatch.setattr(watchdog, "GRACE_S", watchdog.ENDING_S)

    def work(emit: Emit) -> None:
        passes(emit)
        until = time.monotonic() + 60.0
        with watchdog.unbroken():
            watchdog.ends_by(0.0, 0.0)
            while not left and time.monotonic() < until:
                time.sleep(0.01)  # in parts: an alarm that rings as a wait begins is seen at its end
        said.append(document(capsys))

    session.run(smoke(json=True), work)
    assert left == [4]
    (found,) = said
    assert found["summary"] == {"verdict": "inconclusive", "exit": 4, "complete": False}
    assert [one["verdict"] for one in found["findings"]] == ["pass"]


def test_a_users_mistake_is_raised_on_and_leaves_no_file(tmp_path: Path) -> None:
    for error in (UsageError("bad"), TargetError("worse")):

        def work(emit: Emit, error: Exception = error) -> None:
            raise error

        with pytest.raises(type(error)):
            session.run(smoke(output=(str(tmp_path / "x.json"),)), work)
    assert list(tmp_path.iterdir()) == []


def test_an_output_takes_the_place_of_the_old_file_and_never_writes_into_it(tmp_path: Path) -> None:
    """Whoever reads the old document goes on reading it whole; another name of it keeps it."""
    target, other = tmp_path / "x.json", tmp_path / "kept.json"
    target.write_text("the old document")
    os.link(target, other)
    before = target.stat().st_ino
    with target.open(encoding="utf-8") as reader:
        assert session.run(smoke(output=(str(target),)), passes) == 0
        assert reader.read() == "the old document"
    assert other.read_text() == "the old document" and target.stat().st_ino != before
    assert json.loads(target.read_text())["command"] == "smoke"


def test_a_bad_path_fails_before_anything_is_done(tmp_path: Path) -> None:
    def work(emit: Emit) -> None:
        raise AssertionError("measured before the path was tried")

    with pytest.raises(CannotLook, match="No such file or directory"):
        session.run(smoke(output=(str(tmp_path / "no" / "x.json"),)), work)
    for path, why in (
        (str(tmp_path / "x.pdf"), "has an unknown format"),
        (str(tmp_path / "x"), "has an unknown format"),
    ):
        with pytest.raises(UsageError, match=why):
            session.run(smoke(output=(path,)), work)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        session.run(smoke(output=(str(tmp_path / "folder.json"),)), work)
    assert [path.name for path in tmp_path.iterdir()] == ["folder.json"]
    # Through a link too: the rename at the end would take the place of the machine's own /dev/null.
    (tmp_path / "null.json").symlink_to(os.devnull)
    os.mkfifo(tmp_path / "pipe.json")
    for name in ("null.json", "pipe.json"):
        with pytest.raises(UsageError, match="is not a regular file"):
            session.run(smoke(output=(str(tmp_path / name),)), work)


def test_a_full_disk_costs_neither_the_result_nor_the_old_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "x.json"
    target.write_text("old")

    def full(self: Path, *_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    assert session.run(smoke(json=True, output=(str(target),)), passes) == 3
    captured = capsys.readouterr()
    assert json.loads(captured.out)["summary"]["verdict"] == "pass"
    assert sentence(captured.err) == (
        f"--output {str(target)!r} cannot be written; No space left on device; free disk space and run it again"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert target.read_text() == "old"


def test_one_output_that_fails_does_not_cost_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.write_bytes

    def full(self: Path, data: bytes) -> int:
        if ".json." in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert session.run(smoke(output=(str(tmp_path / "x.json"), str(tmp_path / "x.md"))), passes) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["x.md"]


def test_a_stdout_that_takes_nothing_does_not_cost_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_reads(*_: object) -> int:
        raise BrokenPipeError(errno.EPIPE, "x")

    monkeypatch.setattr("sys.stdout.write", nobody_reads)
    with pytest.raises(Unprinted) as raised:
        session.run(smoke(json=True, output=(str(tmp_path / "x.json"),)), passes)
    assert isinstance(raised.value.error, BrokenPipeError) and raised.value.code == 0
    assert json.loads((tmp_path / "x.json").read_text())["summary"]["exit"] == 0


def test_ctrl_c_while_the_files_are_prepared_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(wanted: outputs.OutputFile) -> outputs.Output:
        if wanted.path.endswith(".md"):
            raise KeyboardInterrupt
        return real(wanted)

    real = outputs._opened
    monkeypatch.setattr(outputs, "_opened", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.run(smoke(output=(str(tmp_path / "x.json"), str(tmp_path / "x.md"))), passes)
    assert list(tmp_path.iterdir()) == []


def test_watching_shows_one_reading_after_another_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    def work(emit: Emit) -> None:
        for name in ("first", "second"):
            emit(Started(Facts(devices=(Device(kind="cpu", id="cpu", name=name),))))
            emit(Progress("next reading"))
        raise KeyboardInterrupt

    assert session.watch(Common("devices"), work, 2.0) == 130
    out = capsys.readouterr().out
    assert out.index("first") < out.index("second")


# main: what no command handles


def broken(error: BaseException) -> object:
    def run(*_: object, **__: object) -> int:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("bad size"), 2),
        (CannotLook("nothing there"), 3),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
        (OSError(errno.ENOSPC, "x"), 3),
        (OSError(errno.EACCES, "x"), 70),
        (ZeroDivisionError("oops"), 70),
    ],
)
def test_every_error_has_its_exit_status(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "app", broken(error))
    monkeypatch.setattr(app_module, "_silence_stdout", lambda: None)
    assert app_module.main([]) == code
    err = capsys.readouterr().err
    assert ("Traceback" in err) == (code == 70)
    if code == 70:
        assert "this is a bug in gpucheck" in err


@pytest.mark.parametrize(
    ("error", "asked", "code"),
    [
        (OSError(errno.ENOSPC, "full"), 0, 3),
        (OSError(errno.ENOSPC, "full"), 1, 1),
        (OSError(errno.ENOSPC, "full"), 130, 130),
        (BrokenPipeError(errno.EPIPE, "closed"), 1, 141),
        (BrokenPipeError(errno.EPIPE, "closed"), 130, 130),
    ],
)
def test_a_stdout_that_takes_nothing_costs_no_failure(
    error: OSError, asked: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "app", broken(Unprinted(error, asked)))
    monkeypatch.setattr(app_module, "_silence_stdout", lambda: None)
    assert app_module.main([]) == code


# What breaks a command off


def test_a_users_mistake_after_something_was_found_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    def work(emit: Emit) -> None:
        passes(emit)
        emit(Answered("explain", ExplainResult(characters=7)))
        raise TargetError("it raised", "no idea")

    assert session.run(smoke(json=True), work) == 2
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["results"]["explain"]["characters"] == 7
    assert found["findings"][-1]["id"] == "target"
    assert found["summary"] == {"verdict": "fail", "exit": 2, "complete": False}
    assert sentence(captured.err) == "it raised: no idea"


def test_files_are_brought_up_to_date_after_each_part(tmp_path: Path) -> None:
    target = tmp_path / "x.json"
    target.write_text("old")
    seen: list[dict[str, Any]] = []

    def work(emit: Emit) -> None:
        assert target.read_text() == "old"
        for number in range(2):
            emit(Judged(Finding(f"a.check{number}", "pass", "it works")))
            emit(Finished(f"part {number}"))
            seen.append(json.loads(target.read_text()))

    assert session.run(smoke(output=(str(target),)), work) == 0
    assert [len(one["findings"]) for one in seen] == [1, 2]
    # Whoever finds it after a kill must not take it for a pass.
    assert seen[0]["summary"] == {"verdict": "inconclusive", "exit": 4, "complete": False}
    assert json.loads(target.read_text())["summary"] == {"verdict": "pass", "exit": 0, "complete": True}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
