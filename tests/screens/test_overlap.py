from __future__ import annotations

import io
import re

import pytest
from shown import shown

from gpucheck.bench.overlap import judge
from gpucheck.render import terminal, text
from gpucheck.render.measured import FLAGS
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


def page(found: list[dict[str, object]], *findings: Finding) -> Report:
    return Report(
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


def test_the_answer_comes_first_then_a_row_for_each_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    found = [answer("pinned", 0.957, 0.949, 0.963), answer("pageable", -0.013, None, None, "noisy", "few-samples")]
    findings = (
        Finding("overlap.pinned_two_streams", "pass", "pinned copies hide", "96 % to the device"),
        Finding("overlap.pageable", "info", "pageable ones do not", fix="pin_memory=True"),
    )
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(page(found, *findings)))
    assert re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines() == [
        "✓ 96 % of a pinned copy hides behind compute · H200 (cuda:0)",
        "→ pin_memory=True",
        "",
        " host",
        " memory     streams   direction   hidden   95 % interval      copy   compute      both   rounds   notes",
        "─",
        " pinned           2   to device     96 %      95 to 96 %   2.40 ms   2.50 ms   2.60 ms       40",
        " pageable         2   to device   -1.3 %               –   2.40 ms   2.50 ms   2.60 ms       40   ! "
        "noisy, few samples",
        "",
        "1 sample each",
    ]


def test_no_two_rows_look_alike_on_a_narrow_screen() -> None:
    every = [
        answer(memory, 0.5, None, None) | {"direction": direction, "streams": streams}
        for memory in ("pinned", "pageable")
        for streams in (2, 1)
        for direction in ("host_to_device", "device_to_host")
    ]
    for width in (80, 60, 40):
        lines = [line for line in shown(text.blocks(page(every)), width) if line.startswith((" pinned", " pageable"))]
        assert len(set(lines)) == 8
        assert "to host" in lines[1]


@pytest.mark.parametrize("doubt", ["unbalanced", "noisy", "few-samples"])
def test_the_first_line_is_in_doubt_where_the_finding_is(doubt: str) -> None:
    # The other direction's row is the doubtful one.
    found = [
        answer("pinned", 0.94, 0.90, 0.95, "drift", "power-limited"),
        answer("pinned", 0.98, 0.98, 0.98, doubt) | {"direction": "device_to_host"},
    ]
    told = FLAGS[doubt][0]
    inconclusive = Finding("overlap.pinned_two_streams", "info", "inconclusive: how much hides", fix=judge.AGAIN)
    assert shown(text.blocks(page(found, inconclusive)), 80)[:2] == [
        f"! 94 % of a pinned copy hides behind compute (! {told}) · H200 (cuda:0)",
        f"→ {judge.AGAIN}",
    ]
    sound = [found[0], answer("pinned", 0.98, 0.98, 0.98, "drift", "power-limited") | {"direction": "device_to_host"}]
    assert shown(text.blocks(page(sound)), 80)[0].startswith("✓ 94 %")
