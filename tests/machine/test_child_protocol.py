"""The talk with children, and each way in which one can end: all with real processes."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace

import psutil
import pytest

from gpucheck import errors
from gpucheck.errors import CannotLook, DeviceFailed, TargetError, UsageError
from gpucheck.machine import child, child_protocol
from gpucheck.machine.child_protocol import ChildOutput, ChildSession, Ending, Lost, Message

PYTHON = sys.executable
posix = pytest.mark.skipif(os.name != "posix", reason="signals are POSIX's")

# The child's side as our own children have it.
PREFIX = "import os, signal, sys, time\nfrom gpucheck.machine import child_stdio\nsay = child_stdio.claim_stdout()\n"
ONE_LINE = "say({'n': 1})\n"
# name → what the child does after it said a line, and the ending that comes of it.
ENDINGS = {
    "it returns": ("pass", Ending("returned", 0)),
    "another exit status": ("sys.exit(3)", Ending("failed", 3)),
    "words on stderr": (
        "sys.exit('last words')",
        Ending("failed", 1, stderr="last words\n"),
    ),
    "its own fault": ("signal.raise_signal(signal.SIGSEGV)", Ending("crashed", -11)),
    "an abort": ("os.abort()", Ending("crashed", -6)),
    "somebody's signal": ("os.kill(os.getpid(), signal.SIGTERM)", Ending("killed", -15)),
    "the kernel's": ("os.kill(os.getpid(), signal.SIGKILL)", Ending("killed", -9)),
}


def argv(program: str) -> list[str]:
    return [PYTHON, "-c", PREFIX + program]


def talking(program: str) -> ChildSession:
    return ChildSession(lambda: child.LineChild(argv(program)))


def without_limit(ending: Ending) -> tuple[object, ...]:
    return (ending.how, ending.status, ending.stderr)


# --- a child that is run to its end -----------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize(("program", "ending"), ENDINGS.values(), ids=ENDINGS)
def test_how_a_child_ends_that_is_run(program: str, ending: Ending) -> None:
    output = child_protocol.run(argv(ONE_LINE + program), 60.0)
    assert (output.lines, without_limit(output.ending)) == (({"n": 1},), without_limit(ending))
    assert output.ending.limit_s == 60.0


@pytest.mark.slow
def test_one_that_is_late_keeps_its_lines() -> None:
    output = child_protocol.run(argv("say({'n': 1}); say({'n': 2, 'm': 3}); time.sleep(600)"), 3.0)
    assert output.lines == ({"n": 1}, {"n": 2, "m": 3}) and output.merged == {"n": 2, "m": 3}
    assert output.ending == Ending("late", None, 3.0)


def test_one_that_says_nothing_and_one_that_says_what_is_not_of_the_talk() -> None:
    assert child_protocol.run([PYTHON, "-c", "pass"], 60.0) == ChildOutput((), Ending("returned", 0, 60.0))
    garbage = "print('a word'); print([1]); print('{\"cut\": of')"
    assert child_protocol.run([PYTHON, "-c", garbage], 60.0) == ChildOutput((), Ending("returned", 0, 60.0))
    mixed = garbage + "; print('{\"n\": 1}')"
    assert child_protocol.run([PYTHON, "-c", mixed], 60.0) == ChildOutput(({"n": 1},), Ending("returned", 0, 60.0))


def test_what_cannot_be_started_is_an_ending() -> None:
    ending = child_protocol.run(["/no/such/program"], 1.0).ending
    assert ending == Ending("unstarted", reason="No such file or directory")
    with pytest.raises(Lost) as lost:
        ChildSession(lambda: child.LineChild(["/no/such/program"]))
    assert lost.value.ending == ending


# --- a child that stays alive -----------------------------------------------------------------------------------------

ADDS = """
for request in child_stdio.requests():
    for number in range(request["to"]):
        say({"number": number})
    say({"end": True, "sum": sum(range(request["to"]))})
"""


def test_requests_progress_and_results() -> None:
    with talking(ADDS) as adds:
        adds.send({"to": 3})
        assert list(adds.answer(60.0)) == [*({"number": n} for n in range(3)), {"end": True, "sum": 3}]
        assert adds.ask({"to": 4}, 60.0) == {"end": True, "sum": 6}
        assert adds.receive(0.01) is None
        assert psutil.pid_exists(adds.pid)
    assert not psutil.pid_exists(adds.pid)


def test_a_request_that_was_cut_off_is_none() -> None:
    """By the parent's death: the pipe ends in the middle of a line."""
    ended = child.run(argv("for one in child_stdio.requests(): say(one)"), 60.0, stdin='{"n": 1}\n{"n": 2')
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, '{"n": 1}\n', "")


@posix
@pytest.mark.parametrize(("program", "ending"), ENDINGS.values(), ids=ENDINGS)
def test_how_a_child_ends_that_is_asked(program: str, ending: Ending) -> None:
    lines: list[Message] = []
    with talking(f"next(child_stdio.requests())\n{ONE_LINE}{program}") as asked, pytest.raises(Lost) as lost:
        asked.send({})
        for line in asked.answer(60.0):
            lines.append(line)
    assert (lines, without_limit(lost.value.ending)) == ([{"n": 1}], without_limit(ending))
    with pytest.raises(Lost) as again:
        asked.receive(60.0)
    assert without_limit(again.value.ending) == without_limit(ending)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "said", "limit_s"), [("", "nothing", 0.3), ("say([1])", "garbage", 3.0), (ONE_LINE, "lines", 0.3)]
)
def test_one_that_does_not_answer_is_ended(program: str, said: str, limit_s: float) -> None:
    with talking(f"{program}\ntime.sleep(600)") as slow:
        if said == "lines":
            assert slow.receive(60.0) == {"n": 1}
        with pytest.raises(Lost) as lost:
            list(slow.answer(limit_s))
        ending = lost.value.ending
        assert (ending.how, ending.status, ending.limit_s) == ("late", None, limit_s)
        assert not psutil.pid_exists(slow.pid)


def test_a_limit_for_each_line_lets_a_long_answer_come() -> None:
    lines = "[(say({'n': n}), time.sleep(0.2)) for n in range(5)]; say({'end': True})"
    program = f"for request in child_stdio.requests():\n    {lines}"
    with talking(program) as slow:
        slow.send({})
        assert len(list(slow.answer(30.0, per_line=True))) == 6
        slow.send({})
        with pytest.raises(Lost) as lost:
            list(slow.answer(0.5))
    assert lost.value.ending.how == "late"


def test_one_that_is_gone_cannot_be_asked() -> None:
    with talking("sys.exit('no room')") as gone:
        deadline = time.monotonic() + 60.0
        with pytest.raises(Lost) as lost:
            while time.monotonic() < deadline:
                gone.send({"n": "x" * 70_000})
    assert (lost.value.ending.how, lost.value.ending.last_words) == ("failed", "no room")


@pytest.mark.parametrize(
    "error",
    [
        CannotLook("what", "why", "fix", finding="numa.bind"),
        UsageError("what"),
        DeviceFailed("cuda:0 failed", "CUDA error"),
        TargetError("the target raises", "ValueError", trace="Traceback …"),
    ],
)
def test_an_error_of_ours_is_raised_here(error: errors.GpucheckError) -> None:
    trace = error.trace if isinstance(error, TargetError) else ""
    made = f"errors.{type(error).__name__}({error.what!r}, {error.why!r}, {error.fix!r}, finding={error.finding!r})"
    program = f"from gpucheck import errors\nsay(child_stdio.raised({made}, {trace!r}))\nsys.stdin.read()"
    with talking(program) as failing, pytest.raises(type(error)) as raised:
        failing.receive(60.0)
    assert type(raised.value) is type(error)
    assert (str(raised.value), raised.value.finding) == (str(error), error.finding)
    assert getattr(raised.value, "trace", "") == trace


def test_an_error_class_of_another_module_becomes_its_base() -> None:
    program = "from gpucheck import errors\nclass Mine(errors.UsageError): pass\n"
    program += "say(child_stdio.raised(Mine('too long'), ''))\nsys.stdin.read()"
    with talking(program) as failing, pytest.raises(errors.GpucheckError) as raised:
        failing.receive(60.0)
    assert str(raised.value) == "too long"


# --- the account ------------------------------------------------------------------------------------------------------


ABORTED = """terminate called after throwing an instance of 'c10::AcceleratorError'
  what():  CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html
CUDA kernel errors might be asynchronously reported at some other API call.
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.

Exception raised from c10_cuda_check_implementation at CUDAException.cpp:43 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation) + 0x96 (0x7f in libc10.so)
frame #2: c10::cuda::c10_cuda_check_implementation(int, CUDA error) + 0x3f2 (0x7f in libc10_cuda.so)
"""


@pytest.mark.parametrize("ending", [Ending("crashed", -6, stderr=ABORTED), Ending("failed", 1, stderr=ABORTED)])
def test_the_last_words_are_the_last_line_that_names_an_error(ending: Ending) -> None:
    assert ending.last_words == "CUDA error: out of memory"
    two = "ValueError: first\n\nRuntimeError: CUDA error: device-side assert triggered\nFor debugging, set X=1\n"
    assert replace(ending, stderr=two).last_words == "RuntimeError: CUDA error: device-side assert triggered"
