"""The screens of `gpucheck run`."""

from __future__ import annotations

import signal
from dataclasses import fields, replace
from typing import Any

from shown import shown

from gpucheck.program.run import command, counters, judge, ranks_findings
from gpucheck.render import text
from gpucheck.report.events import Answered, Judged
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.run import (
    Collective,
    JobHang,
    JobRank,
    RanksResult,
    RunError,
    RunResult,
    Traced,
    TracedLine,
)


def a_run(busy: float | None, **parts: int) -> RunResult:
    """Twenty steps of 100 ms on an H200, of which so many milliseconds each went to `data`, `copies` and `waits`."""
    memory = bytearray(counters.SIZE)
    cells = counters.cells_of(memory)
    cells[counters.TORCH_NS], cells[counters.STEPS] = 1, 20
    cells[counters.KEPT] = 20 - counters.FIRST_STEPS
    for number in range(20):
        at = (
            counters.FIRST_AT
            if number < counters.FIRST_STEPS
            else counters.RING_AT - counters.FIRST_STEPS * len(counters.STEP)
        )
        row: dict[str, int] = dict.fromkeys(counters.STEP, 0) | {
            "allocated": 2**30,
            "reserved": 2**31,
            "number": number,
        }
        row |= {"duration_ns": 10**8, "end_ns": (number + 1) * 10**8, "resident": 2**29}
        row |= {f"{name}_ns": ms * 10**6 for name, ms in parts.items()}
        for place, value in enumerate(row.values()):
            cells[at + number * len(counters.STEP) + place] = value
    device = {"seen": 1, "allocated": 2**30, "reserved": 2**31, "peak_allocated": 2**35, "peak_reserved": 36 * 2**30}
    device |= {"peak_step": 1, "peak_phase": 1, "reserved_at_peak": 36 * 2**30}
    for place, name in enumerate(counters.DEVICE):
        cells[counters.DEVICES_AT + place] = device.get(name, 0)
    site = {
        "count": 20,
        "bytes": 20 * 2**20,
        "time_ns": 20 * parts.get("copies", 0) * 10**6,
        "pageable": 20,
        "steps": 20,
    }
    for place, name in enumerate(counters.SITE):
        cells[counters.SITES_AT + place] = site.get(name, 0)
    cells[counters.SITES] = 1
    line: dict[str, Any] = {"say": "site", "site": 0, "kind": "to_device", "file": "/job/train.py", "line": 31}
    line |= {"function": "main", "users": True, "discarded": False, "through": None}
    counters.write(memory, cells, line)
    line = {"say": "device", "index": 0, "name": "NVIDIA H200", "uuid": "GPU-1", "total": 141 * 2**30}
    counters.write(memory, cells, line)
    loads = () if busy is None else tuple((n / 10, busy) for n in range(20))
    return command.answer(
        counters.read(memory), command.Ended(("train.py",), 0, 0, 2 * 10**9, 1.0, 3 * 2**30, loads, "no NVML")
    )


def document(result: RunResult) -> Report:
    collector = Collector()
    collector(Answered("run", result))
    for finding in judge.findings(result, "/job"):
        collector(Judged(finding))
    return collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)


def screen(result: RunResult, width: int = 80) -> list[str]:
    return shown(text.blocks(document(result)), width)


def test_a_program_that_waits_for_data() -> None:
    assert screen(a_run(0.3, data=60, copies=1))[:4] == [
        "! the program waits for data: 60 % of the time is spent waiting for the",
        "DataLoader · NVIDIA H200",
        "→ more num_workers, or cheaper transforms, in the DataLoader",
        "! pageable copies block the program for 20.0 ms: train.py:31, 20 times, 20 MiB,",
    ]


def test_a_device_that_is_busy_asks_for_nothing() -> None:
    lines = screen(a_run(0.97, data=1))
    assert lines[0] == "✓ the device is busy: kernels ran for 97 % of the time · NVIDIA H200"
    assert not [line for line in lines if line.startswith(("!", "→", "✗", "?"))]
    assert "20 steps, 100 ms each (median), slowest 100 ms" in lines
    assert "cuda:0: peak 32 GiB of 141 GiB in backward, step 2; reserved 36 GiB, unused at" in lines


def test_who_waits_is_not_known_without_telemetry() -> None:
    assert screen(a_run(None), 120)[0] == ("? inconclusive: how busy the device was is unknown: no NVML · NVIDIA H200")


def test_the_error_that_ended_it_comes_first_and_what_explains_it() -> None:
    """What an H100 said; how busy it was for half a second is not the answer."""
    text = "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com/cuda"
    error = RunError("AcceleratorError", text, "cuda.device_assert", "/job/a.py", 3)
    assert screen(replace(a_run(None), error=error, exit=1), 120)[:3] == [
        "· the program ended with AcceleratorError at a.py:3: CUDA error: device-side assert triggered · NVIDIA H200",
        "→ gpucheck explain 'CUDA error: device-side assert triggered'",
        "",
    ]
    for silent in ("", "-1", "\x1b[31mCUDA error"):
        empty = replace(a_run(None), error=replace(error, text=silent), exit=1)
        assert not [line for line in screen(empty, 120) if line.startswith("→")]
    killed = replace(a_run(None), error=None, exit=-signal.SIGSEGV)
    assert screen(killed, 120)[0] == "· the program was ended by SIGSEGV · NVIDIA H200"
    interrupted = replace(a_run(0.97, data=1), error=None, exit=-signal.SIGINT)
    lines = screen(interrupted, 120)
    assert lines[0] == "· the device is busy: kernels ran for 97 % of the time · NVIDIA H200"
    assert "· the program was ended by SIGINT" in lines


def test_a_host_that_is_too_slow() -> None:
    first = "! the device waits for the host: kernels ran for only 12 % of the time; data 0.0 %, copies 0.0 %"
    assert screen(a_run(0.12), 120)[0] == f"{first} · NVIDIA H200"


def test_a_jobs_verdict_comes_before_what_ended_this_rank() -> None:
    """NCCL's watchdog aborts rank 0 of a job that hangs: which rank is missing is the answer."""
    call = Collective(name="all_reduce", group="0", number=41, sizes="[64]", place="train.py:31")
    hang = JobHang(call=call, waited_s=600.0, inside=(0, 1, 2), missing=(3,), unknown=(), resumed=False)
    blank: dict[str, Any] = dict.fromkeys(name.name for name in fields(JobRank))
    rows = tuple(JobRank(**blank | {"rank": rank, "host": "a", "steps": 20, "exit": -6}) for rank in range(4))
    empty: dict[str, Any] = dict.fromkeys(one.name for one in fields(RanksResult))
    told = {"world": 4, "outcome": "not_decided", "reason": "", "late": (), "arrival": "arrival", "steps": 20}
    job = RanksResult(**empty | told | {"hang": hang, "ranks": rows, "not_seen": ()})
    result = replace(a_run(0.97, data=1), exit=-signal.SIGABRT)
    collector = Collector()
    collector(Answered("ranks", job))
    for finding in ranks_findings.findings(job):
        collector(Judged(finding))
    collector(Answered("run", result))
    for finding in judge.findings(result, "/job"):
        collector(Judged(finding))
    report = collector.report(version="0", command="run", argv=(), started="", elapsed_s=2.0)
    lines = shown(text.blocks(report), 120)
    assert lines[0].startswith("✗ the job hangs: rank 3 missing")
    assert "rank 0: the program was ended by SIGABRT · NVIDIA H200" in lines


def test_a_minority_of_the_time_is_not_what_the_program_waits_for() -> None:
    """On an H100 28 % for data were the answer, where the host did something else for 60 %."""
    assert screen(a_run(0.22, data=28, copies=11, waits=2, cpu=95), 120)[:2] == [
        "! the device waits for the host: kernels ran for only 22 % of the time; data 28 %, copies 11 % · NVIDIA H200",
        "→ torch.profiler shows the host's time; a larger batch or torch.compile launches fewer kernels",
    ]


def test_a_program_whose_cpu_waits_too_is_not_told_to_launch_fewer_kernels() -> None:
    """Two ranks on one H200, one of which slept 80 ms of each step: both were."""
    assert screen(a_run(0.012, cpu=4), 120)[:2] == [
        "! the device waits for the host: kernels ran for only 1.2 % of the time; data 0.0 %, copies 0.0 % "
        "· NVIDIA H200",
        "→ the CPU worked for only 4.0 % of the time: the program waits for files, the network or another rank",
    ]


def test_the_line_that_starts_cuda_is_marked() -> None:
    result = a_run(0.97, copies=1)
    marked = replace(result.lines[0], starts_cuda=True)
    text = "\n".join(screen(replace(result, lines=(marked,)), 120))
    assert "train.py:31   first use of CUDA" in text and "copy to device" not in text


def test_no_step_is_named_where_none_was_seen() -> None:
    lines = screen(replace(a_run(0.97), steps=None), 120)
    assert [line for line in lines if line.startswith("cuda:0: peak")] == [
        "cuda:0: peak 32 GiB of 141 GiB in backward; reserved 36 GiB, unused at the peak 4 GiB"
    ]


def test_what_holds_next_to_nothing_at_the_peak_has_no_row() -> None:
    line = TracedLine("/job/train.py", 15, "main", "Sequential.0", "forward", 2**26, 0.0, 0, None)
    little = [replace(line, module=f"Sequential.{n}", peak_bytes=n) for n in (4, 512)]
    kept = replace(line, module="Metric", peak_bytes=4, kept_bytes_per_step=4.0, kept_tensors=1)
    text = "\n".join(screen(replace(a_run(0.97), traced=Traced(2, 2**27, 2.6, (line, *little, kept))), 120))
    assert "Sequential.0" in text and "Metric" in text
    assert "Sequential.4" not in text and "Sequential.512" not in text
