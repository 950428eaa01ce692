from __future__ import annotations

import io
import re

import pytest

from gpucheck.render import terminal, text
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Report, Summary


def row(operation: str, size: int, side: str, transfers: bool, time_s: float, *flags: str) -> Measurement:
    return Measurement(
        name="crossover",
        device=DeviceRef("cuda:0", "GPU-1", "NVIDIA H200"),
        case={"operation": operation, "size": size, "side": side, "transfers": transfers},
        runs=(Run("", 1, (time_s,) * 20, (0.0,) * 20),),
        time_s=TimeStats(time_s, 20),
        work={},
        rate=None,
        memory=MemoryFigures(),
        method=Method("host", "host", "warm", details={"cpu": "EPYC", "threads": 16}),
        flags=flags,
    )


def test_the_crossings_come_first_then_the_sizes_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = (
        row("matmul", 512, "cpu", False, 1e-3, "noisy"),
        row("matmul", 512, "device", False, 3e-5),
        row("matmul", 512, "device", True, 4e-4, "noisy"),
        row("matmul", 64, "cpu", False, 5e-6),
        row("matmul", 64, "device", False, 1.5e-5),
        row("training", 32, "cpu", False, 0.1),
    )
    findings = (
        Finding("crossover.matmul", "info", "matmul: the device is faster from 256×256 on", "", {"device": "cuda:0"}),
        Finding("crossover.result", "pass", "the device's results are right at every size"),
        Finding("crossover.cpu_busy", "warn", "others", fix="run it again"),
    )
    made = Report(
        "gpucheck.report/1",
        "0.1.0",
        "bench crossover",
        (),
        "",
        1.0,
        Facts(),
        rows,
        findings,
        {},
        (),
        summary=Summary("pass", 0, True),
    )
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made))
    assert re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines() == [
        "NVIDIA H200 (cuda:0) against EPYC, 16 threads",
        "",
        "· matmul: the device is faster from 256×256 on",
        "",
        " operation      size       CPU    device   ratio   with copies   ratio so   rounds   notes",
        "─",
        " matmul        64×64   5.00 µs   15.0 µs   0.33×             –          –       20",
        " matmul      512×512   1.00 ms   30.0 µs     33×        400 µs       2.5×       20   noisy",
        " training         32    100 ms         –       –             –          –       20",
        "",
        "float32 on both sides, each call waited for, in turn by the host's clock, caches warm; ratio: the CPU's time "
        "over the device's; with copies: inputs from pageable memory and the result back, in the time; this covers "
        "this process, not this machine",
        "",
        "✓ the device's results are right at every size",
        "! others",
        "→ run it again",
    ]
