"""What is made of the counts: shares, verdicts, advice, all without a device."""

from __future__ import annotations

import _thread
import inspect
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gpucheck.program.options import RunOptions, SimulatedGpu
from gpucheck.program.run import command, counters, dry, hooks, judge, memory_peaks
from gpucheck.report.results.run import OutOfMemory, RunLine, TimeShares, Traced, TracedLine

GIB = 2**30


def shares(**parts: Any) -> TimeShares:
    counted: dict[str, Any] = {"window_s": 10.0, "data": 0.0, "copies": 0.0, "waits": 0.0, "rest": 0.0}
    counted |= {"device_busy": None, "device_busy_unknown": "NVML", "cpu": 1.0}
    return TimeShares(**(counted | parts))


@pytest.mark.parametrize(
    ("seen", "device_used", "verdict"),
    [
        (shares(data=0.6, rest=0.4), True, "data"),
        (shares(data=0.6, rest=0.4), False, "data"),
        (shares(data=0.3, copies=0.4), True, "copies"),
        (shares(rest=1.0, device_busy=0.97), True, "device"),
        (shares(rest=1.0, device_busy=0.2), True, "host"),
        (shares(rest=1.0, device_busy=0.7), True, "inconclusive"),
        # The host's own part is the rest beside kernels: the larger of it and data is the answer, if it is known.
        (shares(data=0.28, copies=0.1, rest=0.6, device_busy=0.22), True, "host"),
        (shares(data=0.28, copies=0.1, rest=0.6), True, "data"),
        (shares(data=0.28, copies=0.1, rest=0.6, device_busy=0.4), True, "data"),
        (shares(data=0.28, rest=0.7, device_busy=0.6), True, "data"),
        (shares(waits=0.8, rest=0.2), True, "device"),
        # The host waits, but kernels hardly run: somebody else makes both wait.
        (shares(waits=0.8, rest=0.2, device_busy=0.1), True, "host"),
        (shares(waits=0.2, rest=0.8), True, "inconclusive"),
        (shares(rest=1.0), False, "device"),
        (shares(rest=1.0, cpu=0.1), False, "inconclusive"),
        (None, False, "inconclusive"),
    ],
)
def test_what_a_program_waits_for(seen: TimeShares | None, device_used: bool, verdict: str) -> None:
    assert command.waits_of(seen, device_used)[0] == verdict


def steps(held: list[int], *, on_device: bool) -> list[dict[str, int]]:
    return [{"number": n, "allocated": size if on_device else -1, "resident": size} for n, size in enumerate(held)]


def test_growth_is_what_every_part_of_the_run_adds_to() -> None:
    leak = command.growth(steps([GIB + n * 2**20 for n in range(60)], on_device=True))
    assert leak is not None
    assert (leak.of, leak.bytes_per_step, leak.steps, leak.bytes) == ("allocated", 2**20, 50, 50 * 2**20)
    # A cache that fills, a size that alternates, a resident set that breathes, too few steps.
    assert command.growth(steps([GIB] * 20 + [2 * GIB] * 40, on_device=True)) is None
    assert command.growth(steps([GIB + (n % 2) * 2**28 for n in range(60)], on_device=True)) is None
    assert command.growth(steps([GIB + n * 2**16 for n in range(60)], on_device=False)) is None
    assert command.growth(steps([GIB + n * 2**20 for n in range(11)], on_device=True)) is None
    assert command.growth(()) is None


FULL = OutOfMemory(
    device="cuda:0",
    asked_bytes=4 * GIB,
    allocated_bytes=78 * GIB,
    reserved_bytes=78 * GIB,
    other_processes_bytes=None,
    parameters_bytes=4 * GIB,
    gradients_bytes=4 * GIB,
    optimizer_bytes=8 * GIB,
    others_bytes=2 * GIB,
    unnamed_bytes=54 * GIB,
    blame="size",
    holders=(),
    phase="forward",
    step=3,
)


@pytest.mark.parametrize(
    ("seen", "advice"),
    [
        (FULL, "a smaller batch first"),
        (replace(FULL, blame="fragmentation"), "run with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"),
        (replace(FULL, optimizer_bytes=60 * GIB), "weights, gradients and optimizer states (68 GiB) are the largest"),
        (replace(FULL, blame="other-processes"), "gpucheck devices shows the processes"),
    ],
)
def test_what_to_change_first(seen: OutOfMemory, advice: str) -> None:
    assert (judge.advice_of(seen) or "").startswith(advice)


@pytest.mark.parametrize(
    ("text", "asked", "others"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …", 2 * GIB, None),
        (
            "Tried to allocate 20 MiB. Process 12 has 3.00 GiB memory in use. Process 13 has 1.00 GiB memory in use",
            20 * 2**20,
            4 * GIB,
        ),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 805306368 bytes.", 805306368, None),
        ("std::bad_alloc", None, None),
    ],
)
def test_what_the_text_of_the_error_says(text: str, asked: int | None, others: int | None) -> None:
    memory = bytearray(counters.SIZE)
    with counters.cells_of(memory) as cells:
        cause = "oom.cpu" if "CPU" in text or "bad" in text else "oom.cuda"
        line = {"say": "error", "kind": "RuntimeError", "text": text, "cause": cause, "memory": True}
        counters.write(memory, cells, line | {"file": None, "line": None, "step": 0, "phase": 1})
    counted = command.answer(counters.read(memory), command.RunEnd(("x.py",), 1, 0, 10**9, 0.5, None)).out_of_memory
    assert counted is not None
    assert (counted.asked_bytes, counted.other_processes_bytes, counted.phase) == (asked, others, "backward")


@pytest.mark.parametrize(("ends_s", "busy"), [(0.9, None), (5.0, 0.9)])
def test_how_busy_the_device_was_is_read_after_a_whole_period_of_nvml(ends_s: float, busy: float | None) -> None:
    memory = bytearray(counters.SIZE)
    with counters.cells_of(memory) as cells:
        cells[counters.TORCH_NS] = 1
    read = counters.read(memory)
    at = ((0.5, 0.0), (2.0, 0.9), (6.0, 0.0))  # before a period is over, within, after the end
    counted = command.answer(read, command.RunEnd(("x.py",), 0, 0, int(ends_s * 1e9), 0.5, None, at)).shares
    assert counted is not None and counted.device_busy == busy
    assert (counted.device_busy_unknown is None) == (busy is not None)


@pytest.mark.parametrize(
    ("code", "verdict", "titles"),
    [
        (0, "pass", []),
        (3, "info", ["the program ended with status 3"]),
        (-9, "info", ["the program was ended by SIGKILL"]),
    ],
)
def test_a_program_that_was_broken_off_is_no_pass(code: int, verdict: str, titles: list[str]) -> None:
    ended = command.RunEnd(("x.py",), code, 0, 10**9, None, None)
    result = replace(command.answer(counters.read(bytearray(counters.SIZE)), ended), waits_for="device")
    time, *rest = judge.findings(result)
    assert (time.verdict, [finding.title for finding in rest]) == (verdict, titles)


def test_the_line_that_keeps_most_is_in_the_finding_of_growth() -> None:
    empty = command.answer(counters.read(bytearray(counters.SIZE)), command.RunEnd(("x.py",), 0, 0, 10**9, None, None))
    leak = command.growth(steps([GIB + n * 2**20 for n in range(60)], on_device=True))
    kept = TracedLine("/here/train.py", 7, "Net.0", "forward", 2**21, 2.0**20, None)
    held = replace(kept, line=9, kept_bytes_per_step=4.0, held_by="list losses of 9")
    traced = Traced(5, 2**21, 2.0, (held, kept))
    counted = {finding.id: finding for finding in judge.findings(replace(empty, growth=leak, traced=traced), "/here")}
    text = "1 MiB a step over 50 steps, 50 MiB in all; most is created at train.py:7, kept by list losses of 9"
    assert counted["run.memory.growth"].message == text


LINE = RunLine(
    kind="to_device",
    file="/job/a.py",
    line=3,
    count=0,
    bytes=0,
    time_s=0.0,
    steps=1,
    pinned=0,
    pageable=0,
    unpinned_async=0,
    unchanged_again=0,
    discarded=False,
    source=None,
)


@pytest.mark.parametrize(
    ("count", "steps", "size", "many"),
    [
        (100, 1, 64, True),
        (99, 1, 64, False),
        # Twenty in each of ten steps.
        (200, 10, 64, False),
        (999, 10, 64, False),
        (1000, 10, 64, True),
        (100, 0, 64, True),
        (100, 1, 64 * 1024, True),
        (100, 1, 64 * 1024 + 1, False),
    ],
)
def test_small_copies_are_many_in_a_step_or_in_all(count: int, steps: int, size: int, many: bool) -> None:
    empty = command.answer(counters.read(bytearray(counters.SIZE)), command.RunEnd(("x.py",), 0, 0, 10**9, None, None))
    line = replace(LINE, count=count, steps=steps, bytes=count * size)
    found = judge.of_lines(replace(empty, lines=(line,)), "/job")
    assert [finding.id for finding in found] == ["run.copies.small"] * many


@pytest.mark.parametrize(
    ("counts", "ids"),
    [
        # One tensor made before the loop: from which memory it goes does not matter.
        ({"pageable": 20, "unpinned_async": 20, "unchanged_again": 19}, ["again"]),
        ({"count": 2000, "bytes": 64, "pageable": 2000, "unchanged_again": 1999}, ["again"]),
        ({"pageable": 20, "unchanged_again": 3}, ["again", "pageable"]),
        ({"pageable": 20, "unpinned_async": 20, "unchanged_again": 3}, ["again", "unpinned"]),
    ],
)
def test_a_copy_too_many_is_told_once(counts: dict[str, Any], ids: list[str]) -> None:
    empty = command.answer(counters.read(bytearray(counters.SIZE)), command.RunEnd(("x.py",), 0, 0, 10**9, None, None))
    line = replace(LINE, **{"count": 20, "steps": 20, "bytes": 2**22, "time_s": 0.5} | counts)
    found = judge.of_lines(replace(empty, lines=(line,)), "/job")
    assert [finding.id for finding in found] == [f"run.copies.{name}" for name in ids]


def test_lines_of_a_dry_run_stand_by_their_counts_whatever_time_they_took() -> None:
    read = counters.read(bytearray(counters.SIZE))
    empty = command.answer(read, command.RunEnd(("x.py",), 0, 0, 10**9, None, None))
    counts = {7: 2, 3: 1, 9: 1, 5: 2}
    lines = [replace(LINE, line=at, count=count, time_s=at * 1e-6) for at, count in counts.items()]
    options = RunOptions(("x.py",), dry=SimulatedGpu())
    for given in (lines, lines[::-1]):
        counted = judge.dry_result(read, replace(empty, lines=tuple(given)), options).lines
        assert [row.line for row in counted] == [5, 7, 3, 9]


def test_a_compiler_that_does_not_know_this_python_raises_in_a_dry_run_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 11, 0))
    assert dry._uncompiled(len) is len and dry._uncompiled(fullgraph=True)(len) is len
    with pytest.raises(TypeError, match="no_such_option"):
        dry._uncompiled(len, no_such_option=1)
    monkeypatch.setattr("sys.version_info", (3, 99, 0))
    with pytest.raises(RuntimeError, match=r"torch.compile is not supported on Python"):
        dry._uncompiled(len)


# -- the ring ---------------------------------------------------------------------------------------------------------


def test_a_long_run_keeps_its_last_steps() -> None:
    memory = bytearray(counters.SIZE)
    with counters.cells_of(memory) as cells:
        count = cells[counters.STEPS] = 3 * counters.MOST_KEPT + 5
        for number in range(count):
            cells[counters.step_at(number) + counters.STEP.index("number")] = number
    numbers = [row["number"] for row in counters.read(memory).steps]
    assert numbers == [*range(count - counters.MOST_KEPT, count)]


def test_the_innermost_folder_says_whose_a_file_is(tmp_path: Path) -> None:
    packages = tmp_path / "venv" / "site-packages"
    for name in ("program", "library"):
        (packages / name).mkdir(parents=True)
        (packages / name / "__init__.py").touch()
    (tmp_path / "kept.py").touch()
    (packages / "library" / "linked.py").symlink_to(tmp_path / "kept.py")
    (tmp_path / "developed").symlink_to(packages / "program")
    lines = memory_peaks.Lines(str(tmp_path), str(packages / "program" / "__main__.py"))
    users = ("train.py", f"{packages}/program/net.py", "developed/net.py", "<stdin>")
    installed = (f"{packages}/library/linked.py", "/usr/lib/python3/dist-packages/library.py")
    unnamed = (str(torch.nn.__file__), str(json.__file__), str(judge.__file__), "<string>")
    assert [[lines.distance(file) for file in each] for each in (users, installed, unnamed)] == [
        [0] * 4,
        [1] * 2,
        [2] * 4,
    ]


def test_what_a_thread_of_autograds_makes_is_traced_like_the_rest() -> None:
    """A GPU's backward pass calls the tracer from a thread that runs no Python beneath it."""
    tracer = memory_peaks.Tracer(memory_peaks.Lines("/", None), lambda: 1)
    # torch wraps it in a function of Python's, in some versions.
    dispatch = inspect.unwrap(memory_peaks.Tracer.__torch_dispatch__)
    _thread.start_new_thread(dispatch, (tracer, torch.ops.aten.neg.default, (), (torch.ones(3),)))
    deadline = time.monotonic() + 10
    while not tracer.memory.peak and time.monotonic() < deadline:
        time.sleep(0.01)
    assert tracer.memory.top().held == (((("", 0, ""), "backward"), 12),)
    assert judge.place_text("", 0, "/") == "an unknown line"


def test_a_sparse_gradient_counts_by_its_values_and_indices() -> None:
    layer = torch.nn.Embedding(10, 4, sparse=True)
    layer(torch.tensor([1, 2])).sum().backward()
    mine = (layer.weight, layer.weight.grad)
    counted = memory_peaks.sums([], lambda row: any(row is other for other in mine))
    assert counted == {"parameters": 160, "gradients": 2 * 4 * 4 + 2 * 8, "optimizer": 0, "others": 0}


# -- source -----------------------------------------------------------------------------------------------------------


def test_a_file_that_was_edited_while_its_program_ran_says_nothing(tmp_path: Path) -> None:
    """Its lines have moved: another line's source stood there."""
    file = tmp_path / "program.py"
    file.write_text("import torch\n  f = 1\n")
    written_s = file.stat().st_mtime
    assert command.source_of(str(file), 2, written_s) == "f = 1"
    assert command.source_of(str(file), 2, written_s - 1) is None
    os.utime(file, (0, written_s + 86400))  # unpacked in another time zone, or on a disk whose clock is ahead
    assert command.source_of(str(file), 2, written_s - 1) == "f = 1"


# -- what is replaced takes what torch's own takes ---------------------------------------------------------------------


def test_torchs_functions_stay_what_torchscript_and_subclasses_know_them_by() -> None:
    before = {name: row for name, row in vars(torch).items() if type(row) is type(len)}
    hooks.install()
    try:
        assert {name for name, row in before.items() if getattr(torch, name) is not row} == set()
        assert torch.jit.script(_script)(torch.ones(2)).tolist() == [[0], [1]]
    finally:
        hooks.uninstall()


def _script(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x)
