"""Each command's layout, from data made by hand, as it stands in a pipe."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpucheck.render import csv, terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results

GIB, MIB, KIB = 2**30, 2**20, 2**10
H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")


def report(command: str, **parts: Any) -> Report:
    empty: dict[str, Any] = {"facts": Facts(), "measurements": (), "findings": (), "results": {}, "notices": ()}
    summary = parts.pop("summary", Summary("pass", 0, True))
    return Report("gpucheck.report/1", "0.1.0", command, (), "", 1.0, summary=summary, **{**empty, **parts})


def shown(made: Report, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made))
    # A head's rule is as wide as its table, which the other lines show.
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE)


def measured(name: str, case: dict[str, Any], time_s: float, work: float, unit: str, **more: Any) -> Measurement:
    method = more.pop("method", Method("device events", "held", "cold"))
    flags = more.pop("flags", ())
    rate = None if "call-bound" in flags else Rate(work / time_s, unit, work / time_s * 0.99, work / time_s * 1.01)
    return Measurement(
        name=name,
        device=more.pop("device", H200),
        case=case,
        runs=(Run("", 1, (time_s,), (0.0,)),),
        time_s=TimeStats(time_s, 30),
        work={"work": work},
        rate=rate,
        memory=MemoryFigures(),
        method=method,
        flags=flags,
    )


def copies() -> tuple[Measurement, ...]:
    rows = []
    for size, times in ((64 * KIB, (2e-5, 7e-6, 1e-6)), (512 * MIB, (0.044, 0.0101, 0.0098))):
        for kind, timed, time_s in zip(
            ("pageable", "pinned", "pinned"), ("as_called", "as_called", "link"), times, strict=True
        ):
            case = {"direction": "host_to_device", "host_memory": kind, "size_bytes": size, "timed": timed}
            flags = ("call-bound",) if size == 64 * KIB and timed == "as_called" else ()
            rows.append(measured("transfer", case, time_s, float(size), "B/s", flags=flags))
    return tuple(rows)


def test_transfers_by_size_and_direction(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {
        "device": "cuda:0",
        "link": {"generation": 5, "width": 16, "max_width": 16, "limit_bytes_per_s": 6.3e10, "unknown_because": None},
        "gains": [{"direction": "host_to_device", "size_bytes": 512 * MIB, "gain": 4.36}],
        "latencies": [
            {"direction": "host_to_device", "host_memory": "pageable", "size_bytes": 64 * KIB, "time_s": 2e-5},
            {"direction": "host_to_device", "host_memory": "pinned", "size_bytes": 64 * KIB, "time_s": 7e-6},
        ],
    }
    made = report("bench transfer", measurements=copies(), results=from_json(Results, {"bench_transfer": [answer]}))
    lines = shown(made, monkeypatch).splitlines()
    assert lines == [
        "✓ pinned copies reach 87 % of the link: 54.8 GB/s · H200 (cuda:0), PCIe 5 x16",
        "",
        "           to device     GB/s",
        " size       pageable   pinned   gain   link      time",
        "─",
        " 64 KiB            –        –      –   65.5   7.00 µs",
        " 512 MiB        12.2     53.2   4.4×   54.8   10.1 ms",
        "",
        "30 samples each",
    ]


def test_a_product_in_another_precision_stands_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = {"dtype": "float32", "m": 8192, "n": 8192, "k": 8192, "support": "native"}
    method = Method("device events", "held", "warm", "float32", "tf32")
    made = report("bench matmul", measurements=(measured("matmul", case, 2e-3, 1.1e12, "FLOP/s", method=method),))
    lines = shown(made, monkeypatch).splitlines()
    assert lines[2].split() == ["dtype", "M×N×K", "TFLOP/s", "p05", "p95", "time", "computed", "in", "samples"]
    assert lines[4].split()[:3] == ["float32", "8192×8192×8192", "550"]
    assert "tf32" in lines[4]


def trial(size: int, outcome: str, peak: float, **more: Any) -> dict[str, Any]:
    base = {"batch_size": size, "outcome": outcome, "reason": None, "purpose": "search", "samples_per_s": 238.0}
    return {**base, "peak_bytes": int(peak * GIB), **more}


def test_a_search_with_its_answer_above_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        "target": "models.py:make_gpt",
        "mode": "train",
        "optimizer": "torch.optim.AdamW",
        "dtype": None,
        "device": {"id": "cuda:0", "name": "NVIDIA H200", "uuid": None},
        "budget_bytes": 138 * GIB,
        "budget_reason": "what is free",
        "margin_bytes": 4 * GIB,
        "max_batch_size": 116,
        "confirmed": True,
        "first_failing": 118,
        "first_failing_outcome": "out-of-memory",
        "limited_by": "out-of-memory",
        "limiting_factor": "memory",
        "method": {},
        "peak_bytes": int(135.6 * GIB),
        "samples_per_s": 238.4,
        "loss": "cross-entropy against random classes",
        "trials": [
            trial(16, "fits", 19.3),
            trial(118, "out-of-memory", 137.9, reason="CUDA out of memory", samples_per_s=None),
            trial(116, "fits", 135.6, purpose="confirm"),
        ],
    }
    findings = (Finding("batch_size.fits", "pass", "a batch of 116 fits"),)
    made = report("find-batch-size", results=from_json(Results, {"find_batch_size": found}), findings=findings)
    assert shown(made, monkeypatch).splitlines() == [
        "✓ largest that trains: 116",
        "models.py:make_gpt, training on H200 (cuda:0) · AdamW · budget 138 GiB",
        "",
        " batch   result            peak, GiB   samples/s   run       why",
        "─",
        "    16   ✓ fits                 19.3         238   search",
        "   118   ✗ out of memory       137.9           –   search    CUDA out of memory",
        "   116   ✓ fits                135.6         238   confirm",
    ]


def test_smoke_counts_and_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    made = report(
        "smoke",
        findings=(
            Finding("tensors.round_trip", "pass", "tensors survive", "27 dtypes", {"elapsed_s": 0.002}),
            Finding("copies.pinned", "fail", "pinned copies are right", "wrong bytes", fix="gpucheck bench transfer"),
            Finding("numerics.tf32", "skip", "TF32 errors stay within the bound", "no TF32 here"),
        ),
        summary=Summary("fail", 1, False),
    )
    assert shown(made, monkeypatch).splitlines() == [
        "✗ 1 failed, 1 passed, 1 skipped (no TF32 here)",
        "✗ pinned copies are right: wrong bytes",
        "→ gpucheck bench transfer",
        "! not complete: the command was cut off",
    ]


def test_csv_has_a_row_for_each_measurement_and_finding() -> None:
    made = report(
        "bench transfer",
        measurements=copies()[:1],
        findings=(Finding("transfer.corrupt", "pass", "t", "two\nlines, and a comma"),),
    )
    assert csv.rows(made).splitlines() == [
        ",".join(csv.COLUMNS),
        'measurement,transfer,cuda:0,"{""direction"": ""host_to_device"", ""host_memory"": ""pageable"", '
        '""size_bytes"": 65536, ""timed"": ""as_called""}",,,2e-05,,,,,call-bound',
        'finding,transfer.corrupt,,,pass,"two lines, and a comma",,,,,,',
    ]
