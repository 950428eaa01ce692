from __future__ import annotations

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from shown import shown

from gpucheck.bench.crossover import judge
from gpucheck.render import terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results


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


def report(
    rows: tuple[Measurement, ...],
    found: list[dict[str, Any]],
    findings: tuple[Finding, ...],
    verdict: Verdict,
) -> Report:
    """The document of `bench crossover` with these rows, answers and findings."""
    results = from_json(Results, {"bench_crossover": found})
    return Report(
        "gpucheck.report/1",
        "0.1.0",
        "bench crossover",
        (),
        "",
        1.0,
        Facts(),
        rows,
        findings,
        results,
        (),
        summary=Summary(verdict, 0, True),
    )


def answered(operation: str, start: int | None) -> dict[str, object]:
    empty = {"cpu_faster_up_to": 64, "even": [], "reason": None, "ended_by": None if start else "time", "speedup": None}
    tried = {"smallest": 16, "largest": 512}
    return {
        "device": "cuda:0",
        "operation": operation,
        "transfers": True,
        "device_faster_from": start,
        **empty,
        **tried,
    }


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
        Finding("crossover.matmul", "info", "matmul: GPU faster from 256×256", "", {"device": "cuda:0"}),
        Finding("crossover.result", "pass", "the device's results are right at every size"),
        Finding("crossover.cpu_busy", "warn", "others", fix="run it again"),
    )
    found = [answered("matmul", 256), answered("training", None)]
    made = report(rows, found, findings, "warn")
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=True))
    assert re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines() == [
        "! GPU pays from matmul 256×256; not training · H200 (cuda:0)",
        "! others",
        "→ run it again",
        "",
        "                                   CPU faster   GPU faster   largest",
        " operation              copies          up to         from     tried",
        "─",
        " matmul, N×N            included        64×64      256×256   512×512",
        " training, batch size   included           64            –       512   no gain; out of time",
        "",
        "20 samples each; all results verified",
        "",
        "· matmul: GPU faster from 256×256",
        "✓ the device's results are right at every size",
        "",
        " operation       size       CPU       GPU   ratio   with copies   ratio   rounds   notes",
        "─",
        " matmul         64×64   5.00 µs   15.0 µs   0.33×             –       –       20",
        " matmul       512×512   1.00 ms   30.0 µs     33×        400 µs    2.5×       20   ! noisy",
        " training    batch 32    100 ms         –       –             –       –       20",
        "against EPYC (threads: 16). Both sides use float32 and are timed in turn on the host's clock, each call "
        "synchronized, caches warm. Ratio: the CPU's time over the GPU's, round by round; with copies: inputs from "
        "pageable memory and the result back; this covers this process, not this machine",
        "noisy (interquartile range above 10 % of the median): matmul 512 cpu, matmul 512 device",
    ]


def test_the_details_have_the_ratio_that_the_finding_has() -> None:
    """The median of the ratios of each round, which is not the ratio of the medians."""
    cpu_s, device_s = (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), (1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0)
    rows = tuple(
        replace(
            row("training", 32, side, False, 0.0),
            runs=(Run("", 1, times, (0.0,) * 7),),
            time_s=TimeStats(sorted(times)[3], 7),
        )
        for side, times in (("cpu", cpu_s), ("device", device_s))
    )
    (race,) = judge.races(rows)["training", False].values()
    assert race[1].ratio == 2.5
    found = [answered("training", 32) | {"transfers": False}]
    made = report(rows, found, (), "pass")
    (line,) = (one for one in shown(text.blocks(made, verbose=True), 120) if "batch 32" in one)
    assert "2.5×" in line and "2.0×" not in line
