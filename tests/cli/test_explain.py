"""`gpucheck explain` as a command: arguments, standard input, exit statuses, and errors that torch really raises."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from event_recorder import Recorder
from shown import sentence

from gpucheck import errors
from gpucheck.cli import app as app_module
from gpucheck.cli.health import decoded, read_end
from gpucheck.explain import command
from gpucheck.report.events import Answered

COMMAND = [sys.executable, "-m", "gpucheck", "explain"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = app_module.main(["explain", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def piped(data: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, "-", *arguments], input=data, capture_output=True, timeout=120)


# --- arguments --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["numerics.tf32", "transfer.link", "transfer.min_gbps", "xid.79", "oom.cuda"])
def test_an_id_is_a_page(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name)
    assert (code, err) == (errors.OK, "")
    first = out.splitlines()[0]
    assert (first.endswith(f"({name})") or first.startswith(f"{name} checks: ")) and "\n→ " in out


def test_the_page_of_a_finding_does_not_read_like_a_pass(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "device.error")[1].startswith("device.error checks: the device works\n")
    assert run(capsys, "torch.cpu_build")[1].splitlines()[-1].endswith(" · breaks the stage torch · proven")


def test_a_word_that_is_written_like_an_id_may_be_a_text(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "torch.cuda.OutOfMemoryError")
    assert code == errors.OK and "(oom.other)" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("  ",), "TEXT is empty: an unset variable gives an empty value; "),
        (("--list", "xid.79"), "--list takes no TEXT; "),
    ],
)
def test_wrong_usage(arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (errors.USAGE, "")
    assert sentence(err).startswith(words)


class Terminal(io.StringIO):
    """A standard input at which somebody sits."""

    def isatty(self) -> bool:
        return True


def test_without_a_text_a_terminal_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal("CUDA out of memory"))
    code, out, err = run(capsys)
    assert (code, out) == (errors.USAGE, "")
    assert sentence(err).startswith("no text to explain; give an error message in quotes, an ID or a file: ")


def test_a_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        command, "MOST_BYTES", 4096
    )  # of a megabyte without a break each pattern takes a tenth of a second
    (tmp_path / "train.log").write_bytes(b"step 1\n\xffCUDA out of memory\n" + b"." * (command.MOST_BYTES + 1))
    code, out, err = run(capsys, "train.log")
    assert code == errors.UNDECIDED and "only the last 4 KiB read" in err  # the line is above that
    (tmp_path / "train.log").write_bytes(b"step 1\nCUDA out of memory\n")
    code, out, err = run(capsys, "train.log")
    assert (code, err) == (errors.OK, "") and "(oom.cuda)" in out
    # An ID is one, whatever lies in the folder.
    (tmp_path / "oom.cpu").write_text("CUDA out of memory")
    assert "(oom.cpu)" in run(capsys, "oom.cpu")[1]
    (tmp_path / "torch.my_own").write_text("CUDA out of memory")
    assert "(oom.cuda)" in run(capsys, "torch.my_own")[1]
    (tmp_path / "empty").write_text(" \n")
    assert sentence(run(capsys, "empty")[2]).startswith("'empty' is empty; ")


@pytest.mark.parametrize("name", ["nofile.txt", "run.LOG", "logs/of_today", "/nowhere/error"])
def test_a_file_that_is_missing_is_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, name)
    assert (code, out) == (errors.USAGE, "") and sentence(err).startswith(f"the file {name!r} does not exist; ")


# --- standard input ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("-",), (), ("--list",)])
def test_a_log_on_standard_input(arguments: tuple[str, ...]) -> None:
    """Without a text a pipe is read, and for a list nothing."""
    log = b"step 1\nstep 2\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    ended = subprocess.run([*COMMAND, *arguments], input=log, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stderr) == (errors.OK, b"")
    assert b"oom.cuda" in ended.stdout


@pytest.mark.slow
def test_standard_input_that_is_no_utf8() -> None:
    ended = piped(b"\x80\x00\xff\xfe\xc3 caf\xe9\nRuntimeError: No CUDA GPUs are available\n\xfe\xfe")
    assert ended.returncode == errors.OK and b"(cuinit.100)" in ended.stdout


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "latin-1"])
def test_other_encodings(encoding: str) -> None:
    data = "erreur: RuntimeError: No CUDA GPUs are available\n".encode(encoding)
    assert "No CUDA GPUs are available" in decoded(data, data[:4])


@pytest.mark.slow
@pytest.mark.parametrize(("data", "arguments"), [(b"", ("-",)), (b"\n \n", ("-",)), (b"", ())])
def test_empty_standard_input_is_wrong_usage(data: bytes, arguments: tuple[str, ...]) -> None:
    ended = subprocess.run([*COMMAND, *arguments], input=data, capture_output=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (errors.USAGE, b"")
    assert sentence(ended.stderr.decode()).startswith("standard input is empty; ")


def test_the_end_of_a_stream_is_kept_whatever_its_length() -> None:
    chance = random.Random(1)
    for length in (0, 1, 99, 100, 101, 2**16, 3 * 2**16 + 7):
        data = chance.randbytes(length)
        assert read_end(io.BytesIO(data), 100) == (data[:4], data[-100:], length)


def test_closed_standard_input() -> None:
    code = "import os, sys; os.close(0); os.execv(sys.executable, [sys.executable, '-m', 'gpucheck', 'explain', '-'])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert ended.returncode == errors.USAGE
    assert sentence(ended.stderr.decode()).startswith("standard input is ")


# --- what torch really says -------------------------------------------------------------------------------------------

# Each is a mistake that a CPU is enough for.
MISTAKES: tuple[tuple[str, str], ...] = (
    ("tensor.device_mismatch", "torch.ones(2) + torch.ones(2, device='meta')"),
    ("tensor.device_mismatch", "torch.nn.Linear(2, 2, device='meta')(torch.ones(1, 2))"),
    ("tensor.meta", "torch.nn.Linear(2, 2, device='meta').to('cpu')"),
    ("tensor.dtype", "torch.ones(2, 2) @ torch.ones(2, 2, dtype=torch.float64)"),
    ("tensor.device_string", "torch.ones(2, device='gpu0')"),
    ("tensor.numpy", "torch.ones(2, requires_grad=True).numpy()"),
    ("assert.label", "torch.nn.functional.cross_entropy(torch.ones(1, 3), torch.tensor([7]))"),
    ("assert.index", "torch.ones(3)[torch.tensor([7])]"),
    ("assert.probabilities", "torch.multinomial(torch.tensor([float('nan'), 1.0]), 1)"),
    ("oom.cpu", "torch.empty(2**50)"),
    ("size.storage", "torch.empty_strided((2**40, 2**40), (2**40, 1))"),
    ("import.torch", "__import__('importlib').import_module('torch')"),
)


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_what_torch_really_says(name: str, mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole traceback of a real failure is explained."""
    import torch

    if name == "import.torch":
        monkeypatch.delitem(sys.modules, "torch")
        monkeypatch.setattr(sys, "path", [])
    with pytest.raises(Exception) as raised:
        eval(mistake, {"torch": torch})
    monkeypatch.undo()
    said = "".join(traceback.format_exception(raised.value))
    recorder = Recorder()
    command.explain(said, recorder)
    answered = recorder.events[0]
    assert isinstance(answered, Answered)
    assert [one.id for one in answered.value.matches][:1] == [name], said
