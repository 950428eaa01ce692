"""Tables made of columns and rows, and the lines around them."""

from __future__ import annotations

import bench_scenes as scenes
import pytest

from gpucheck.config import Limit
from gpucheck.render import text as tables
from gpucheck.render.text import Cell, Column, ColumnOf, Table
from gpucheck.report.report import Part

ROWS = [("a", 1.0), ("a", 20.0), ("b", None), ("a", 4.0)]
NAME, RATE = Column("name", "left"), Column("rate")


def texts(table: Table) -> list[tuple[str, ...]]:
    return [tuple(cell.text for cell in row) for row in table.rows]


def test_a_column_fills_itself_from_the_rows() -> None:
    columns: tuple[ColumnOf[tuple[str, float | None]], ...] = (
        tables.once(NAME, lambda row: row[0]),
        tables.numbers(RATE, lambda row: row[1]),
        tables.filled(Column("mark"), lambda row: Cell("!", "red") if row[1] is None else ""),
    )
    made = tables.table_of(ROWS, columns)
    assert [column.head for column in made.columns] == ["name", "rate", "mark"]
    # A group is named once, and one precision serves the column.
    assert texts(made) == [("a", "1.00", ""), ("", "20.00", ""), ("b", "–", "!"), ("a", "4.00", "")]
    assert made.rows[2][2].style == "red"


@pytest.mark.parametrize("verbose", [False, True])
def test_a_device_without_rows_is_on_the_screen_and_no_tick_stands_over_it(verbose: bool) -> None:
    two = scenes.machine(scenes.card(scenes.H200), scenes.card(scenes.SECOND))
    unmeasured = Part("matmul", "cuda:1", True, "")
    report = scenes.document("bench matmul", scenes.products(), two, parts=(unmeasured,))
    lines = scenes.shown(report, 120, verbose=verbose)
    assert lines[0].startswith("✓ bfloat16 reaches 79 %") and sum("cuda:1: nothing was timed" in x for x in lines) == 1
    limits = (Limit("matmul.min_tflops", 300e12, "FLOP/s", "--min-tflops"),)
    gated = scenes.document("bench matmul", scenes.products(), two, parts=(unmeasured,), limits=limits)
    first, *_ = scenes.shown(gated, 120, verbose=verbose)
    assert first.startswith("? cuda:1: inconclusive: products vs. 300 TFLOP/s (--min-tflops)")
    assert first.endswith("nothing was measured") and gated.summary.exit == 4


def test_a_device_that_a_benchmark_timed_nothing_on_has_a_row_in_the_table_of_all() -> None:
    two = scenes.machine(scenes.card(scenes.H200), scenes.card(scenes.SECOND))
    left_out = Part("matmul", "cuda:1", True, "memory")
    rows = [*scenes.products(), *scenes.memory(), *scenes.memory(scenes.SECOND)]
    lines = scenes.shown(scenes.document("bench all", rows, two, parts=(left_out,)), 120)
    assert [line.split()[:4] for line in lines if "nothing was timed" in line] == [
        ["cuda:1", "nothing", "was", "timed"]
    ]
    alone = scenes.shown(scenes.document("bench all", scenes.products()), 120)
    assert not any("nothing was timed" in line or "device " in line for line in alone)
