"""`bench transfer` in a pipe and on narrow screens: copies, the line through them, the curve, the idioms."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpucheck.bench.judging import Seen
from gpucheck.bench.transfer import judge
from gpucheck.render import terminal, text, transfer
from gpucheck.render.blocks import Line
from gpucheck.report.facts import Facts
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, TimeStats
from gpucheck.report.report import Report, Summary
from gpucheck.report.results import Results
from gpucheck.report.results.bench import CopyFit, TransferResult

KIB, MIB, GIB = 2**10, 2**20, 2**30
NOTHING = TransferResult("cuda:0")
SIZES = (64 * KIB, MIB, 16 * MIB, 128 * MIB, 512 * MIB, GIB)
H200 = DeviceRef("cuda:0", "GPU-1", "NVIDIA H200")
# Start and rate of each kind: what an H200 might show.
KINDS = {
    ("pageable", "as_called"): (20e-6, 12e9),
    ("pinned", "as_called"): (10e-6, 54e9),
    ("pinned", "link"): (2e-6, 55e9),
}


def row(name: str, case: dict[str, Any], seconds: float, flags: tuple[str, ...] = (), **details: Any) -> Measurement:
    size = float(case["size_bytes"])
    return Measurement(
        name=name,
        device=H200,
        case=case,
        runs=(),
        time_s=TimeStats(seconds, 30),
        work={"bytes": size},
        rate=None if "call-bound" in flags else Rate(size / seconds, "B/s"),
        memory=MemoryFigures(),
        method=Method("host", "host", "cold", details={"wrong_bytes": 0, "verified_slices": 4, **details}),
        flags=flags,
    )


def copies(sizes: Sequence[int] = SIZES, ways: Sequence[str] = ("host_to_device",)) -> list[Measurement]:
    return [
        row(
            "transfer",
            {"direction": way, "host_memory": memory, "size_bytes": size, "timed": timed},
            start_s + size / bytes_per_s,
            ("call-bound",) if size == 64 * KIB else (),
        )
        for way in ways
        for (memory, timed), (start_s, bytes_per_s) in KINDS.items()
        for size in sizes
    ]


def idiom(name: str, call: str, seconds: float, direction: str = "host_to_device", **more: Any) -> Measurement:
    case = {"idiom": name, "direction": direction, "host_memory": "pageable", "size_bytes": 64 * MIB}
    return row("transfer.idiom", case, seconds, call=call, first_call_s=2 * seconds, **more)


IDIOMS = [
    idiom("raw", "y.copy_(x)", 5e-3),
    idiom("to", "x.to(device)", 6e-3),
    idiom("pin_then_to", "x.pin_memory().to(device, non_blocking=True)", 12.5e-3, flags=("noisy",)),
    idiom("raw", "x.copy_(y)", 5e-3, "device_to_host"),
    idiom("cpu", "y.cpu()", 20e-3, "device_to_host"),
]


def report(measurements: Sequence[Measurement], **link: Any) -> Report:
    answer = judge.answer(Seen("cuda:0", measurements))
    assert answer.link is not None
    results: Results = {"bench_transfer": (replace(answer, link=replace(answer.link, **link)),)}
    parts = ("gpucheck.report/1", "0.1.0", "bench transfer", (), "", 1.0, Facts(), tuple(measurements), (), results, ())
    return Report(*parts, Summary("pass", 0, True))


def shown(
    made: Report, monkeypatch: pytest.MonkeyPatch, columns: int | None = None, *, verbose: bool = False
) -> list[str]:
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", str(columns))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=verbose))
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE).splitlines()


def test_one_sentence_tells_start_and_rate_of_each_direction() -> None:
    measurements = copies(ways=("host_to_device", "device_to_host"))
    (line,) = transfer.fitted(judge.answer(Seen("cuda:0", measurements)))
    assert line.text == (
        "fitted time: to device pinned (link) 2.00 µs + size / 55.0 GB/s, half that rate at 107 KiB; "
        "to host pinned (link) 2.00 µs + size / 55.0 GB/s, half that rate at 107 KiB"
    )


def test_a_line_that_does_not_hold_says_why_and_two_sizes_need_no_excuse() -> None:
    unknown, why = (None,) * 5, "the time does not grow with the size"
    fit = CopyFit("host_to_host", "pageable", "as_called", 19, *unknown, why)
    (line,) = transfer.fitted(replace(NOTHING, fits=(fit,)))
    assert line.text == "fitted time: host to host pageable has none: the time does not grow with the size"
    assert transfer.fitted(replace(NOTHING, fits=(replace(fit, sizes=2),))) == []
    assert transfer.fitted(NOTHING) == []  # a document from before there were fits


def test_what_lies_off_the_line_is_told() -> None:
    measurements = [one for one in copies() if one.case["timed"] == "link"]
    off = row("transfer", measurements[2].case, 1.5 * (2e-6 + 16 * MIB / 55e9))
    (line,) = transfer.fitted(judge.answer(Seen("cuda:0", [*measurements[:2], off, *measurements[3:]])))
    assert line.text.endswith("half that rate at 107 KiB, up to 33 % off")


def test_lines_of_code_beside_the_raw_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(report(IDIOMS), monkeypatch, verbose=True)
    # Without -v those that a user chooses between.
    short = lines[lines.index("common idioms at 64 MiB, allocation included") :]
    assert [line.split()[0] for line in short[3:6]] == ["x.to(device)", "x.pin_memory().to(device,", "y.cpu()"]
    at = lines.index("all idioms at 64 MiB, allocation included; raw: between preallocated buffers")
    assert lines[at + 1 : at + 8] == [
        "             line of code                                      time    GB/s   of raw   first time   notes",
        "─",
        " to device   y.copy_(x)                                     5.00 ms   13.42     1.0×      10.0 ms",
        "             x.to(device)                                   6.00 ms   11.18     1.2×      12.0 ms",
        "             x.pin_memory().to(device, non_blocking=True)   12.5 ms    5.37     2.5×      25.0 ms   ! noisy",
        " to host     x.copy_(y)                                     5.00 ms   13.42     1.0×      10.0 ms",
        "             y.cpu()                                        20.0 ms    3.36     4.0×      40.0 ms",
    ]


@pytest.mark.parametrize("columns", [80, 60, 40])
def test_nothing_is_wider_than_the_screen(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = report([*copies(ways=("host_to_device", "device_to_host")), *IDIOMS])
    lines = shown(made, monkeypatch, columns, verbose=True)
    assert max(map(len, lines)) <= columns
    assert any("x.pin_memory()" in line for line in lines)


def test_at_40_columns_each_row_becomes_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(report(IDIOMS[:2]), monkeypatch, 40)
    at = lines.index("line of code: x.to(device)")
    assert lines[at + 1 : at + 4] == ["time: 6.00 ms", "GB/s: 11.2", "of raw: 1.2×"]


def test_the_head_names_the_link(monkeypatch: pytest.MonkeyPatch) -> None:
    def head(**link: Any) -> str:
        return shown(report(copies(), **link), monkeypatch)[0]

    def told(**link: Any) -> list[str]:
        return shown(report(copies(SIZES[:1]), **link), monkeypatch, verbose=True)

    pcie = {"kind": "PCIe", "generation": 5, "width": 16, "limit_bytes_per_s": 63e9}
    assert head(**pcie) == "✓ pinned copies reach 87 % of the link: 55.0 GB/s · H200 (cuda:0), PCIe 5 x16"
    # What does not fit into 80 columns is left out: where it is attached, then its name.
    c2c = {"kind": "NVLink-C2C", "limit_bytes_per_s": 447e9}
    assert head(**c2c) == "✓ pinned copies reach 12 % of the link: 55.0 GB/s · H200 (cuda:0), NVLink-C2C"
    narrow = {**pcie, "width": 8, "max_width": 16, "limit_bytes_per_s": 56e9}
    assert head(**narrow) == "✓ pinned copies reach 98 % of the link: 55.0 GB/s · H200 (cuda:0), PCIe 5 x8/16"
    # Faster than the link is another link.
    assert head(**{**pcie, "limit_bytes_per_s": 30e9}) == "✓ pinned copies reach 55.0 GB/s · H200 (cuda:0)"
    assert "PCIe 5 x16 under load, limit 63.0 GB/s per direction" in told(**pcie)
    assert "link unknown: it was not read" in told()


def test_a_flag_of_many_rows_counts_them(monkeypatch: pytest.MonkeyPatch) -> None:
    measurements = [replace(one, flags=("noisy",)) for one in copies(SIZES[:2])]
    lines = shown(report([*measurements[:4], *copies(SIZES[:2])[4:]]), monkeypatch, verbose=True)
    assert (
        "noisy (interquartile range above 10 % of the median): 64 KiB pageable to device, "
        "1 MiB pageable to device, 64 KiB pinned to device, 1 MiB pinned to device" in lines
    )
    assert "noisy (interquartile range above 10 % of the median): 6 of 6 rows" in shown(
        report(measurements), monkeypatch, verbose=True
    )


@pytest.mark.parametrize("columns", [40, 120])
def test_a_direction_that_was_broken_off_after_its_first_row(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is timed before the call."""
    rows = [*copies(SIZES[:1]), copies(SIZES[:1], ("device_to_host",))[-1]]
    assert "64 KiB" in "\n".join(shown(report(rows), monkeypatch, columns))
    alone = "\n".join(shown(report(rows[-1:]), monkeypatch, columns))
    assert "64 KiB" in alone and "pageable" not in alone


def test_a_part_alone_has_no_table_of_copies() -> None:
    page = transfer.page(report(IDIOMS))
    laid_out = [*page.body, *page.details]
    assert not any(isinstance(block, Line) and "preallocated buffers, caches" in block.text for block in laid_out)
    assert transfer.idioms([], NOTHING) == ([], [])
