from __future__ import annotations

import io
import re

import pytest

from gpucheck.render import terminal, text
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Run, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results

MIB = 2**20


def row(what: str) -> Measurement:
    return Measurement(
        name="overlap",
        device=DeviceRef("cuda:0", "GPU-1", "NVIDIA H200"),
        case={
            "direction": "host_to_device",
            "host_memory": "pinned",
            "streams": 2,
            "size_bytes": 128 * MIB,
            "what": what,
        },
        runs=(Run("", 1, (1.0,), (0.0,)),),
        time_s=TimeStats(1.0, 1),
        work={},
        rate=None,
        memory=MemoryFigures(),
        method=Method("host", "host", "cold", precision_requested=None if what == "copy" else "bfloat16"),
    )


def answer(memory: str, overlap: float, low: float | None, high: float | None, *flags: str) -> dict[str, object]:
    return {
        "device": "cuda:0",
        "direction": "host_to_device",
        "host_memory": memory,
        "streams": 2,
        "size_bytes": 128 * MIB,
        "overlap": overlap,
        "ci_low": low,
        "ci_high": high,
        "copy_s": 2.4e-3,
        "compute_s": 2.5e-3,
        "both_s": 2.6e-3,
        "rounds": 40,
        "flags": list(flags),
    }


def test_the_answer_comes_first_then_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = [answer("pinned", 0.957, 0.949, 0.963), answer("pageable", -0.013, None, None, "noisy", "few-samples")]
    findings = (
        Finding("overlap.pinned_two_streams", "pass", "pinned copies hide", "96 % to the device"),
        Finding("overlap.pageable", "info", "pageable ones do not", fix="pin_memory=True"),
    )
    made = Report(
        "gpucheck.report/1",
        "0.1.0",
        "bench overlap",
        (),
        "",
        1.0,
        Facts(),
        (row("copy"), row("compute"), row("both")),
        findings,
        from_json(Results, {"bench_overlap": found}),
        (),
        summary=Summary("pass", 0, True),
    )
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made))
    assert re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines() == [
        "✓ 96 % of a pinned copy hides behind compute · H200 (cuda:0)",
        "→ pin_memory=True",
        "",
        " host memory   streams   direction   hidden   95 % interval      copy   compute      both   rounds   notes",
        "─",
        " pinned              2   to device     96 %      95 to 96 %   2.40 ms   2.50 ms   2.60 ms       40",
        " pageable            2   to device   -1.3 %               –   2.40 ms   2.50 ms   2.60 ms       40   ! "
        "noisy, few samples",
        "",
        "1 sample each",
    ]
