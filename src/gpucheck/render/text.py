"""A report as blocks: which command's layout, and what every layout ends with."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from gpucheck.render.blocks import Block, Line
from gpucheck.render.markdown import markdown
from gpucheck.report.report import Report

# The file of each command's layout, whose `blocks(report)` makes it. Only the one that is shown is loaded.
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
    "model": "model",
    "compare": "compare",
}


def blocks(report: Report) -> list[Block]:
    """The report as its command lays it out; a last line says so where it is not complete."""
    layout: Callable[[Report], list[Block]] = importlib.import_module(
        f"gpucheck.render.{LAYOUTS[report.command]}"
    ).blocks
    laid_out = layout(report)
    if report.command != "compare" and "compare" in report.results:
        # Measured and compared in one go: what was measured, then what changed.
        from gpucheck.render import compare

        laid_out += [Line(), *compare.comparison(report)]
    if not report.summary.complete:
        laid_out.append(Line("not complete: the command was cut off", "yellow"))
    return laid_out


def markdown_page(report: Report) -> str:
    """The report as a Markdown page."""
    return markdown(f"gpucheck {report.command}", blocks(report))
