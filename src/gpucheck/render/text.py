"""A report as blocks: which command's layout, and what every layout ends with."""

from __future__ import annotations

import importlib

from gpucheck.render.blocks import Block, Line
from gpucheck.render.markdown import markdown
from gpucheck.report.report import Report

# The module of each command's layout, loaded when one is laid out: all together take longer than `devices` may.
LAYOUTS = {
    "devices": "devices",
    "memory": "memory",
    "doctor": "doctor",
    "explain": "explain",
    "smoke": "smoke",
    "bench transfer": "transfer",
    "bench bandwidth": "bandwidth",
    "bench matmul": "matmul",
    "bench overlap": "overlap",
    "bench crossover": "crossover",
    "bench all": "bench_all",
    "find-batch-size": "batch_size",
    "compare": "compare",
}


def blocks(report: Report) -> list[Block]:
    """The report as its command lays it out; a last line says so where it is not complete."""
    layout = importlib.import_module(f"gpucheck.render.{LAYOUTS[report.command]}")
    laid_out: list[Block] = layout.blocks(report)
    if report.command != "compare" and "compare" in report.results:
        from gpucheck.render import compare

        # Measured and compared in one go: what was measured, then what changed.
        laid_out += [Line(), *compare.comparison(report)]
    if not report.summary.complete:
        laid_out.append(Line("not complete: the command was cut off", "yellow"))
    return laid_out


def markdown_page(report: Report) -> str:
    """The report as a Markdown page."""
    return markdown(f"gpucheck {report.command}", blocks(report))
