"""The layout of a comparison, from data made by hand, as it stands in a pipe."""

from __future__ import annotations

import io
import re
from typing import Any

import pytest

from gpucheck.render import terminal, text
from gpucheck.report.facts import Facts
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report, Summary
from gpucheck.report.results.short import Change, ComparedRow, Comparison


def row(change: Change, **more: Any) -> ComparedRow:
    fields: dict[str, Any] = {
        "name": "transfer",
        "case": {"direction": "host_to_device", "size_bytes": 2**20},
        "old_device": "cuda:0",
        "new_device": "cuda:0",
        "old_runs": 7,
        "new_runs": 7,
        "old_s": 1e-3,
        "new_s": 1.1e-3,
        "old_rate": 55e9,
        "new_rate": 50e9,
        "rate_unit": "B/s",
        "ratio": 1.1,
        "ci_low": 1.05,
        "ci_high": 1.15234,
        "ci_level": 0.99,
    }
    return ComparedRow(change=change, **{**fields, **more})


def shown(command: str, comparison: Comparison, *findings: Finding) -> str:
    made = Report(
        "gpucheck.report/1",
        "0.1.0",
        command,
        (),
        "",
        1.0,
        Facts(),
        (),
        findings,
        {"compare": comparison},
        (),
        Summary("pass", 0, True),
    )
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=True))
    return re.sub("^─+$", "─", stream.getvalue(), flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def _in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_each_row_with_its_interval_and_verdict() -> None:
    rows = (
        row("slower", flags=("noisy",)),
        row(
            "cannot tell",
            name="matmul",
            case={"dtype": "bfloat16", "m": 64},
            old_rate=None,
            new_rate=None,
            rate_unit=None,
            new_runs=1,
            ci_low=None,
            ci_high=None,
            ci_level=None,
            why="7 and 1 runs; at least 3 a side are needed",
            differences=("launch held → graph",),
        ),
    )
    advice = Finding("compare.changes", "warn", "compared", "1 slower, 1 cannot tell", fix="use --runs 7")
    out = shown("compare", Comparison(rows, (), (), (), (), 0.01, 0.05), advice)
    print(out)
    assert [re.sub(" {2,}", " | ", line.strip()) for line in out.splitlines()] == [
        "✓ 1 of 2 rows is slower: transfer host to device 1 MiB ×0.91 (0.87 to 0.95)",
        "transfer on cuda:0, 7 old and 1 to 7 new runs",
        "→ use --runs 7",
        "",
        "row | old | new | speed, new/old | interval | runs | verdict | notes",
        "─",
        "transfer host to device 1 MiB | 55.0 GB/s | 50.0 GB/s | ×0.91 | 0.87 to 0.95 | 7 | ! slower | noisy",
        "matmul bfloat16 64 | 1.00 ms | 1.10 ms | ×0.91 | – | 7, 1 | ? inconclusive | launch held → graph",
        "",
        "speed new/old: below 1 is slower. Yuen's t on the logarithms of the runs' lower quartiles, 1.0 % for the "
        "whole table (Holm). same: within ±5.0 %",
    ]


def test_why_it_cannot_be_told_stands_in_the_row() -> None:
    out = shown(
        "compare", Comparison((row("cannot tell", why="the runs differ too much"),), (), (), (), (), 0.01, 0.05)
    )
    assert "? inconclusive   the runs differ too much" in out


def test_a_benchmark_with_a_baseline_shows_what_changed_too() -> None:
    assert "0.87 to 0.95" in shown("bench matmul", Comparison((row("slower"),), (), (), (), (), 0.01, 0.05))


def test_without_a_row_in_common_there_is_no_table() -> None:
    nothing = Finding("compare.changes", "inconclusive", "no row in common")
    assert shown("compare", Comparison((), ("a",), ("b",), (), (), 0.01, 0.05), nothing) == "? no row in common\n"


def test_what_changed_comes_first_and_what_did_not_is_counted() -> None:
    rows = tuple(row("same", ratio=1.0, case={"m": n}, old_rate=None, rate_unit=None) for n in range(20))
    changed = row("faster", ratio=0.8, ci_low=0.78, ci_high=0.82), row("slower", ratio=1.3), row("slower", ratio=1.2)
    made = Comparison((*rows, *changed), (), (), (), (), 0.01, 0.05)
    whole = shown("compare", made)
    ratios = re.findall(r"×(\d\.\d\d)", whole.split("\n\n")[1])
    assert ratios[:4] == ["0.77", "0.83", "1.25", "1.00"]
    assert "and 9 more rows, without a change: -v" in whole and len(re.findall("· same", whole)) == 11 + 20


def test_figures_have_one_direction_and_names_are_whole_on_a_narrow_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    """12.4 → 64.4 GB/s was "0.19×", and "pageable" was cropped."""
    cases = [
        {"direction": direction, "host_memory": memory, "size_bytes": 1 << 28, "timed": "as_called"}
        for direction in ("host_to_device", "device_to_host")
        for memory in ("pageable", "pinned")
    ]
    rates = {"old_rate": 12.4e9, "new_rate": 64.4e9, "ratio": 12.4 / 64.4, "ci_low": 0.18, "ci_high": 0.2}
    made = Comparison(tuple(row("faster", case=case, **rates) for case in cases), (), (), (), (), 0.01, 0.05)
    assert "×5.19 (5.00 to 5.56)" in shown("compare", made).splitlines()[0]
    for columns in (60, 80, 100, 110):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = shown("compare", made).splitlines()
        assert all(len(line) <= columns for line in lines)
        # Each row of a table keeps its words, on one line or several.
        words = " ".join(lines).split()
        assert words.count("pageable") >= 2 and words.count("pinned") >= 2 and "…" not in " ".join(lines), columns
        assert words.count("×5.19") >= 4


def test_rows_that_cannot_be_told_are_not_counted_as_changed() -> None:
    rows = tuple(row("cannot tell", case={"m": n}) for n in range(20))
    assert "and 6 more rows, 6 inconclusive: -v" in shown("compare", Comparison(rows, (), (), (), (), 0.01, 0.05))


def test_rows_of_several_devices_name_theirs() -> None:
    rows = row("slower"), row("slower", new_device="cuda:1")
    out = shown("compare", Comparison(rows, (), (), (), (), 0.01, 0.05))
    assert "1 MiB (cuda:1)" in out and "on cuda:0, cuda:1" in out


def test_a_single_run_is_in_the_singular() -> None:
    once = shown("compare", Comparison((row("cannot tell", old_runs=1, new_runs=1),), (), (), (), (), 0.01, 0.05))
    assert "transfer on cuda:0, 1 run each\n" in once
