from __future__ import annotations

import io
import re

import pytest
from shown import shown

from gpucheck.render import terminal, text
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report, Summary

GIB = 2**30


def row(operation: str, moved: float, time_s: float, cache: str = "cold", flags: tuple[str, ...] = ()) -> Measurement:
    rate = None if "call-bound" in flags else Rate(moved / time_s, "B/s", moved / time_s * 0.99, moved / time_s * 1.01)
    return Measurement(
        name="bandwidth",
        device=DeviceRef("cuda:0", "GPU-1", "NVIDIA H200"),
        case={"operation": operation, "size_bytes": GIB},
        runs=(Run("", 1, (time_s,), (0.0,)),),
        time_s=TimeStats(time_s, 30),
        work={"bytes": moved},
        rate=rate,
        memory=MemoryFigures(),
        method=Method("device events", "held", cache),
        flags=flags,
    )


def test_a_row_for_each_operation_and_what_was_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    rows = (
        row("read", GIB * (1 + 1 / 16384), 2.5e-4),
        row("copy", 2.0 * GIB, 5e-4, flags=("noisy",)),
        row("triad", 3.0 * GIB, 1e-6, "warm", ("call-bound",)),
    )
    findings = (Finding("bandwidth.share_of_peak", "info", "share", "copy 89 % of 4.80 TB/s"),)
    made = Report(
        "gpucheck.report/1",
        "0.1.0",
        "bench bandwidth",
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
    terminal.show(terminal.console(stream), text.blocks(made, verbose=True))
    assert re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines() == [
        "! memory reaches 4.29 TB/s (copy; ! noisy) · H200 (cuda:0)",
        "",
        " operation   array   GB/s    p05    p95      time   bytes per call   samples   notes",
        "─",
        " read        1 GiB   4295   4252   4338    250 µs            1 GiB        30",
        " copy        1 GiB   4295   4252   4338    500 µs            2 GiB        30   ! noisy",
        " triad       1 GiB      –      –      –   1.00 µs            3 GiB        30   in cache; latency",
        "",
        "30 samples each",
        "",
        "· share: copy 89 % of 4.80 TB/s",
        "",
        "bytes read and written; timed by device events for 751 µs, after a warm-up, caches cold in 2 of 3 rows, "
        "float32, preallocated. The spread covers this process, not this machine",
        "noisy (interquartile range above 10 % of the median): copy, 1 GiB",
        "latency (the call itself takes more than 5 % of the time: a latency, no rate): triad, 1 GiB",
    ]


def test_a_share_of_the_memorys_peak_is_of_what_left_the_caches() -> None:
    """A row that a cache helped is no share of the memory's peak: not in the table, and not in the first line."""
    peak = Finding("bandwidth.share_of_peak", "info", "share", "", {"peak_bytes_per_s": 4.8e12})
    cold, warm = row("copy", 2.0 * GIB, 5e-4), row("copy", 2.0 * GIB, 1e-4, "warm")
    for rows, shares, first in (
        ((cold, warm), ["89 %", "–"], "memory reaches 89 % of its peak: 4.29 TB/s (copy)"),
        ((warm,), [], "memory reaches 21.5 TB/s (copy; ! in cache)"),
    ):
        made = Report("gpucheck.report/1", "0.1.0", "bench bandwidth", (), "", 1.0, Facts(), rows, (peak,), {}, (),
                      summary=Summary("pass", 0, True))  # fmt: skip
        lines = [line for line in shown(text.blocks(made)) if line]
        assert first in lines[0]
        assert [found for line in lines if line.startswith(" copy") for found in re.findall(r"\d+ %|–", line)] == shares
